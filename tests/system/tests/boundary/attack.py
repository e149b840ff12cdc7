# What the attacks of tests/boundary are made with, inside the sandbox. It trusts nobody's rules: no certificate is verified
# unless it is asked to, no proxy variable is obeyed, no redirect is followed.
import os, socket, ssl

PROXY = ("127.0.0.1", 8378)


def read(s):
    s.settimeout(30)
    data = b""
    try:
        while more := s.recv(65536):
            data += more
    except OSError as e:
        data += b"<%s>" % type(e).__name__.encode()
    return data


def talk(s, data):
    """Sends bytes and returns all that comes back."""
    try:
        s.sendall(data if isinstance(data, bytes) else data.encode("latin-1"))
    except OSError:
        pass
    return read(s)


def tcp(host, port):
    return socket.create_connection((host, port), 30)


def tls(host, sni=None, port=443, over=None, alpn=("http/1.1",)):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context.wrap_socket(over or tcp(host, port), server_hostname=sni or host)


def request(host, path="/", method="GET", headers=(), body=""):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines) + "\r\n\r\n" + body


def https(host, path="/", method="GET", headers=(), body="", sni=None, at=None):
    return talk(tls(at or host, sni or host), request(host, path, method, headers, body))


def http(host, path="/", at=None, **more):
    return talk(tcp(at or host, 80), request(host, path, **more))


def connect(target):
    """Asks the proxy for a way to somewhere; returns the connection and what the proxy said."""
    s = tcp(*PROXY)
    s.settimeout(30)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head:
        more = s.recv(1)
        if not more:
            break
        head += more
    if not head.startswith(b"HTTP/1.1 200"):
        head += read(s)
    return s, head


def said(answer):
    """`STATUS REASON` of each answer in these bytes, and whether words came with it."""
    text = answer.decode("latin-1")
    told = []
    for part in text.split("HTTP/1.1 ")[1:]:
        head, _, body = part.partition("\r\n\r\n")
        reason = [line.split(": ", 1)[1] for line in head.split("\r\n") if line.lower().startswith("x-durable-deny: ")]
        if reason and '"message":"' not in body:
            reason.append("(no words)")
        told.append(" ".join([head[:3]] + reason))
    return " | ".join(told) or "nothing"


def tell(attack, *args, **more):
    """Prints what an attack was told, or how it failed."""
    try:
        print(said(attack(*args, **more)))
    except OSError as e:
        print(type(e).__name__)
