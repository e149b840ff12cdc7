// The internet of tests/clients: one TLS server with HTTP/2 and HTTP/1.1, and one of gRPC.
//
// node server.cjs DIRECTORY CERTIFICATE KEY. Says `ready PORT GRPC_PORT` when it listens, then a line for each request.
//
//   /git/…      git's smart protocol: the real `git http-backend` on DIRECTORY/git
//   /events     an event stream: the second event and the end come only when the client has asked for /next with the same query
//   /long       1 MiB whose second half is sent only to who asks for it with `Range`
//   /echo       a WebSocket that says the same
//   anything    a file below DIRECTORY

'use strict';
const fs = require('fs');
const http2 = require('http2');
const path = require('path');
const { spawn } = require('child_process');
const grpc = require('@grpc/grpc-js');
const { WebSocketServer } = require('ws');

const [directory, certificate, key] = process.argv.slice(2);
const tls = { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) };
const half = 512 * 1024;
const long = Buffer.alloc(2 * half, 'durable sandbox\n');
const next = new Map();

const server = http2.createSecureServer({ ...tls, allowHTTP1: true }, (request, response) => {
  const url = new URL(request.url, 'https://registry.test');
  console.log(`${request.method} ${url.pathname} HTTP/${request.httpVersion}`);
  response.on('error', () => {});
  if (url.pathname.startsWith('/git/')) return git(request, response, url);
  if (url.pathname === '/events') return events(response, url.search);
  if (url.pathname === '/next') {
    next.get(url.search)?.();
    return response.end('ok\n');
  }
  if (url.pathname === '/long') return inHalves(request, response);
  return file(response, url);
});

function git(request, response, url) {
  const env = {
    PATH: process.env.PATH,
    GIT_PROJECT_ROOT: path.join(directory, 'git'),
    GIT_HTTP_EXPORT_ALL: '1',
    REMOTE_USER: 'test',
    REMOTE_ADDR: '127.0.0.1',
    REQUEST_METHOD: request.method,
    PATH_INFO: url.pathname.slice('/git'.length),
    QUERY_STRING: url.search.slice(1),
    CONTENT_TYPE: request.headers['content-type'] || '',
    HTTP_CONTENT_ENCODING: request.headers['content-encoding'] || '',
    GIT_PROTOCOL: request.headers['git-protocol'] || '',
    GIT_CONFIG_COUNT: '2',
    GIT_CONFIG_KEY_0: 'http.receivepack',
    GIT_CONFIG_VALUE_0: 'true',
    GIT_CONFIG_KEY_1: 'safe.directory',
    GIT_CONFIG_VALUE_1: '*',
  };
  if (request.headers['content-length']) env.CONTENT_LENGTH = request.headers['content-length'];
  const child = spawn('git', ['http-backend'], { env, stdio: ['pipe', 'pipe', 'inherit'] });
  request.pipe(child.stdin);
  child.stdin.on('error', () => {});
  // Of a client that breaks off nothing stays.
  response.on('close', () => child.kill());
  let head = Buffer.alloc(0);
  child.stdout.on('data', function begin(chunk) {
    head = Buffer.concat([head, chunk]);
    const end = head.indexOf('\r\n\r\n');
    if (end < 0) return;
    child.stdout.off('data', begin);
    for (const line of head.subarray(0, end).toString().split('\r\n')) {
      const [name, value] = line.split(/: (.*)/s);
      if (name === 'Status') response.statusCode = parseInt(value, 10);
      else response.setHeader(name, value);
    }
    response.write(head.subarray(end + 4));
    child.stdout.pipe(response);
  });
}

function events(response, id) {
  response.setHeader('content-type', 'text/event-stream');
  response.write('data: first\n\n');
  next.set(id, () => response.end('data: second\n\n'));
}

function inHalves(request, response) {
  const range = /^bytes=(\d+)-$/.exec(request.headers.range || '');
  response.setHeader('accept-ranges', 'bytes');
  response.setHeader('etag', '"one"');
  response.setHeader('content-type', 'application/octet-stream');
  if (!range) {
    response.setHeader('content-length', long.length);
    response.write(long.subarray(0, half));
    return;
  }
  const from = parseInt(range[1], 10);
  response.statusCode = 206;
  response.setHeader('content-range', `bytes ${from}-${long.length - 1}/${long.length}`);
  response.setHeader('content-length', long.length - from);
  response.end(long.subarray(from));
}

const kinds = { '.json': 'application/json', '.html': 'text/html', '.tgz': 'application/octet-stream' };

function file(response, url) {
  let name = path.join(directory, path.normalize(decodeURIComponent(url.pathname)));
  if (fs.statSync(name, { throwIfNoEntry: false })?.isDirectory()) {
    name = ['index.json', 'index.html'].map((index) => path.join(name, index)).find((index) => fs.existsSync(index)) || name;
  }
  fs.readFile(name, (error, bytes) => {
    if (error) {
      response.statusCode = 404;
      return response.end('not found\n');
    }
    response.setHeader('content-type', kinds[path.extname(name)] || 'text/plain');
    response.setHeader('content-length', bytes.length);
    response.end(bytes);
  });
}

const sockets = new WebSocketServer({ noServer: true });
server.on('upgrade', (request, socket, head) => {
  console.log(`UPGRADE ${request.url} HTTP/${request.httpVersion}`);
  sockets.handleUpgrade(request, socket, head, (client) => client.on('message', (data, binary) => client.send(data, { binary })));
});
server.on('sessionError', () => {});

const same = (bytes) => bytes;
const rpc = new grpc.Server();
rpc.addService(
  {
    talk: {
      path: '/durable.Echo/Talk',
      requestStream: true,
      responseStream: true,
      requestSerialize: same,
      requestDeserialize: same,
      responseSerialize: same,
      responseDeserialize: same,
    },
  },
  {
    talk(call) {
      call.on('data', (bytes) => call.write(Buffer.concat([Buffer.from('echo '), bytes])));
      call.on('end', () => call.end());
    },
  },
);
const credentials = grpc.ServerCredentials.createSsl(null, [{ private_key: tls.key, cert_chain: tls.cert }]);
rpc.bindAsync('127.0.0.1:0', credentials, (error, grpcPort) => {
  if (error) throw error;
  server.listen(0, '127.0.0.1', () => console.log(`ready ${server.address().port} ${grpcPort}`));
});
