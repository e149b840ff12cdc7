//! What does not end by itself: an event stream, a WebSocket, gRPC in both directions.
//!
//! Nothing is timed: a second part is sent only to who has asked for it after the first one came.

use system_tests::Res;

use super::{Case, Lab, case};

const EVENTS: &str = "first then second";
const ECHO: &str = "echo of 300000";
const RPC: &str = "echo one, echo two";

fn cases() -> Vec<Case> {
    vec![
        case(
            "sse-node",
            EVENTS,
            "cat > x.mjs <<'E'
const at = (path) => `${process.env.U}${path}?node`;
const answer = await fetch(at('/events'));
const words = [];
for await (const chunk of answer.body) {
  words.push(...Buffer.from(chunk).toString().match(/(?<=data: )\\w+/g));
  if (words.length === 1) await fetch(at('/next'));
}
console.log(words.join(' then '));
E
node x.mjs",
        ),
        case(
            "sse-httpx",
            EVENTS,
            "cat > x.py <<'E'
import os, httpx
words = []
with httpx.Client(http2=True, timeout=60) as client:
    with client.stream('GET', os.environ['U'] + '/events?httpx') as answer:
        for line in answer.iter_lines():
            if line.startswith('data: '):
                words.append(line[6:])
                if len(words) == 1:
                    client.get(os.environ['U'] + '/next?httpx')
print(' then '.join(words))
E
python3 x.py",
        ),
        case(
            "sse-curl",
            EVENTS,
            "curl -sSN \"$U/events?curl\" | while read -r name word; do
  case $word in
    first) printf 'first then '; curl -sS -o answer \"$U/next?curl\" ;;
    second) echo second ;;
  esac
done",
        ),
        case(
            "ws-node",
            ECHO,
            "cat > x.cjs <<'E'
const { WebSocket } = require('ws');
const socket = new WebSocket(process.env.U.replace('https', 'wss') + '/echo');
const sent = Buffer.alloc(300000, 'durable');
socket.on('open', () => socket.send(sent));
socket.on('message', (data) => {
  console.log(data.equals(sent) ? `echo of ${data.length}` : 'other bytes');
  socket.close();
});
E
node x.cjs",
        ),
        case(
            "ws-python",
            ECHO,
            "cat > x.py <<'E'
import os
from websockets.sync.client import connect
sent = b'durable' * 50000
with connect(os.environ['U'].replace('https', 'wss') + '/echo') as socket:
    socket.send(sent[:300000])
    answer = socket.recv()
print('echo of', len(answer)) if answer == sent[:300000] else print('other bytes')
E
python3 x.py",
        ),
        case(
            "ws-deno",
            ECHO,
            "cat > x.ts <<'E'
const socket = new WebSocket(Deno.env.get('U')!.replace('https', 'wss') + '/echo');
socket.onopen = () => socket.send('x'.repeat(300000));
socket.onmessage = (event) => { console.log('echo of', event.data.length); socket.close(); };
E
$DENO run --quiet --no-check --allow-net --allow-env x.ts",
        ),
        case(
            "ws-bun",
            ECHO,
            "cat > x.ts <<'E'
const socket = new WebSocket(process.env.U!.replace('https', 'wss') + '/echo');
socket.onopen = () => socket.send('x'.repeat(300000));
socket.onmessage = (event) => { console.log('echo of ' + event.data.length); socket.close(); };
E
$BUN x.ts",
        ),
        case(
            "grpc-python",
            RPC,
            "cat > x.py <<'E'
import os, queue, grpc
channel = grpc.secure_channel(os.environ['G'], grpc.ssl_channel_credentials())
talk = channel.stream_stream('/durable.Echo/Talk', lambda x: x, lambda x: x)
said = queue.Queue()
said.put(b'one')
words = []
for answer in talk(iter(said.get, None), timeout=60):
    words.append(answer.decode())
    said.put(b'two' if len(words) == 1 else None)
print(', '.join(words))
E
python3 x.py",
        ),
        case(
            "grpc-node",
            RPC,
            "cat > x.cjs <<'E'
const grpc = require('@grpc/grpc-js');
const client = new grpc.Client(process.env.G, grpc.credentials.createSsl());
const call = client.makeBidiStreamRequest('/durable.Echo/Talk', (x) => x, (x) => x);
const words = [];
call.on('data', (answer) => {
  words.push(answer.toString());
  if (words.length === 1) call.write(Buffer.from('two'));
  else call.end();
});
call.on('end', () => { console.log(words.join(', ')); client.close(); });
call.write(Buffer.from('one'));
E
node x.cjs",
        ),
    ]
}

#[test]
fn what_is_streamed_comes_as_it_is_sent() -> Res<()> {
    if !crate::is_root("what_is_streamed_comes_as_it_is_sent") {
        return Ok(());
    }
    let rule = "methods = [\"GET\", \"POST\"]\nwebsocket = true";
    let lab = Lab::new("streams", rule)?;
    lab.all(cases())?;
    let asked = lab.servers.asked();
    assert_eq!(
        asked.matches("UPGRADE /echo HTTP/1.1").count(),
        4,
        "{asked}"
    );
    lab.end()
}
