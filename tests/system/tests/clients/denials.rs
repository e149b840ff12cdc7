//! What people and models read of a refusal: the reason, in as many clients as show anything.

use system_tests::Res;

use super::{CARGO_PROJECT, Case, GO_PROJECT, Lab, NPM_PROJECT, case};

/// In what the policy says of every request here.
const WHY: &str = "is not allowed";
/// In its body.
const BODY: &str = "egress_denied";
/// All that some show.
const NUMBER: &str = "403";

/// A client that must fail; what it says is all on stdout.
fn refused(name: &'static str, says: &'static str, script: &str) -> Case {
    let script = format!(
        "if {{ {script}\n}} > said 2>&1; then echo 'it was not refused'; exit 1; fi; cat said"
    );
    case(name, says, script)
}

fn cases() -> Vec<Case> {
    let npm = |name, says, script: &str| {
        let script = format!("{NPM_PROJECT}{script}");
        refused(name, says, &script)
    };
    vec![
        // The body.
        refused("curl", BODY, "curl -sS --fail-with-body $U/x"),
        refused("cargo", BODY, &format!("{CARGO_PROJECT}cargo build")),
        refused("git", WHY, "git clone $U/git/acme/app"),
        refused("git-http1", WHY, "git -c http.version=HTTP/1.1 clone $U/git/acme/app"),
        refused("go", WHY, &format!("{GO_PROJECT}$GO mod download")),
        npm("npm", WHY, "npm install --no-audit --no-fund"),
        npm("yarn", WHY, "$YARN install"),
        refused("uv", WHY, "$UV pip install --python /usr/bin/python3 --target out $U/pypi/greeter-1.0.0-py3-none-any.whl"),
        // The reason phrase.
        refused("pip", WHY, "python3 -m pip install --no-cache-dir --target out $U/pypi/greeter-1.0.0-py3-none-any.whl"),
        refused("pip-index", WHY, "python3 -m pip -vv install --no-cache-dir --target out --index-url $U/pypi/simple greeter==1.0.0"),
        refused("uv-index", NUMBER, "$UV pip install --python /usr/bin/python3 --target out --index-url $U/pypi/simple greeter==1.0.0"),
        refused("wget", WHY, "wget -O x $U/x"),
        refused("urllib", WHY, "python3 -c 'import os, urllib.request as r; r.urlopen(os.environ[\"U\"] + \"/x\")'"),
        refused("requests", WHY, "python3 -c 'import os, requests; requests.get(os.environ[\"U\"] + \"/x\").raise_for_status()'"),
        refused("httpx", WHY, "python3 -c 'import os, httpx; httpx.get(os.environ[\"U\"] + \"/x\").raise_for_status()'"),
        refused("ruby", WHY, "ruby -ropen-uri -e 'URI.open(ENV[\"U\"] + \"/x\")'"),
        refused("php", WHY, "php -r 'exit(file_get_contents(getenv(\"U\") . \"/x\") === false ? 1 : 0);'"),
        npm("yarn-berry", WHY, "touch yarn.lock; $BERRY install --no-immutable"),
        npm("pnpm", WHY, "$PNPM install --no-frozen-lockfile"),
        npm("bun-install", NUMBER, "$BUN install"),
        npm("deno-install", BODY, "$DENO install"),
        refused("apt", WHY, "echo \"deb [trusted=yes] $U/debian ./\" > list; mkdir -p state/lists/partial cache/archives/partial
apt-get -o Dir::Etc::SourceList=$PWD/list -o Dir::Etc::SourceParts=/dev/null -o Dir::State=$PWD/state -o Dir::Cache=$PWD/cache \
  -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any update"),
        refused("grpc-python", WHY, "cat > x.py <<'E'
import os, grpc
channel = grpc.secure_channel(os.environ['G'], grpc.ssl_channel_credentials())
talk = channel.stream_stream('/durable.Echo/Talk', lambda x: x, lambda x: x)
list(talk(iter([b'one']), timeout=60))
E
python3 x.py"),
        refused("grpc-node", WHY, "cat > x.cjs <<'E'
const grpc = require('@grpc/grpc-js');
const client = new grpc.Client(process.env.G, grpc.credentials.createSsl());
const call = client.makeBidiStreamRequest('/durable.Echo/Talk', (x) => x, (x) => x);
call.on('error', (error) => { console.log(error.message); process.exit(1); });
call.on('data', () => {});
call.write(Buffer.from('one'));
E
node x.cjs"),
        refused("ws-node", NUMBER, "cat > x.cjs <<'E'
const { WebSocket } = require('ws');
new WebSocket(process.env.U.replace('https', 'wss') + '/echo').on('error', (error) => { console.log(error.message); process.exit(1); });
E
node x.cjs"),
        refused("ws-python", NUMBER, "python3 -c 'import os
from websockets.sync.client import connect
connect(os.environ[\"U\"].replace(\"https\", \"wss\") + \"/echo\")'"),
    ]
}

#[test]
fn a_refusal_is_shown_by_those_who_show_anything() -> Res<()> {
    if !crate::is_root("a_refusal_is_shown_by_those_who_show_anything") {
        return Ok(());
    }
    let lab = Lab::new("denials", "methods = [\"DELETE\"]")?;
    lab.all(cases())?;
    lab.end()
}
