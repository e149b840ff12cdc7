//! Clients that read: of HTTP, and of registries.

use std::path::Path;

use system_tests::Res;

use super::{CARGO_PROJECT, Case, GO_PROJECT, Lab, NPM_PROJECT, case};

const HELLO: &str = "hello from the registry";
const NPM: &str = "hello from npm";
const READ: &str = "methods = [\"GET\", \"HEAD\"]";

fn plain() -> Vec<Case> {
    let ruby =
        "ruby -rnet/http -ropenssl -e 'print Net::HTTP.get(URI(ENV[\"U\"] + \"/hello.txt\"))'";
    vec![
        case("curl", HELLO, "curl -sS $U/hello.txt"),
        case("curl-http1", HELLO, "curl -sS --http1.1 $U/hello.txt"),
        // With no variables there are still the files.
        case("curl-bare", HELLO, "env -i /usr/bin/curl -sS $U/hello.txt"),
        case("wget", HELLO, "wget -qO- $U/hello.txt"),
        case("wget-bare", HELLO, "env -i /usr/bin/wget -qO- $U/hello.txt"),
        case(
            "openssl",
            HELLO,
            "printf 'GET /hello.txt HTTP/1.1\\r\\nHost: registry.test:%s\\r\\nConnection: close\\r\\n\\r\\n' $P | \
             openssl s_client -quiet -verify_return_error -servername registry.test -connect registry.test:$P",
        ),
        case(
            "urllib",
            HELLO,
            "python3 -c 'import os, urllib.request as r; print(r.urlopen(os.environ[\"U\"] + \"/hello.txt\").read())'",
        ),
        case(
            "requests",
            HELLO,
            "python3 -c 'import os, requests; print(requests.get(os.environ[\"U\"] + \"/hello.txt\").text)'",
        ),
        case(
            "httpx",
            HELLO,
            "python3 -c 'import os, httpx; r = httpx.Client(http2=True).get(os.environ[\"U\"] + \"/hello.txt\")
assert r.http_version == \"HTTP/2\", r.http_version
print(r.text)'",
        ),
        case(
            "node",
            HELLO,
            "node -e 'fetch(process.env.U + \"/hello.txt\").then((r) => r.text()).then(console.log)'",
        ),
        case(
            "bun",
            HELLO,
            "$BUN -e 'console.log(await (await fetch(process.env.U + \"/hello.txt\")).text())'",
        ),
        case(
            "deno",
            HELLO,
            "echo 'console.log(await (await fetch(Deno.env.get(\"U\") + \"/hello.txt\")).text())' > x.ts
$DENO run --quiet --allow-net --allow-env x.ts",
        ),
        case("ruby", HELLO, ruby),
        case(
            "php",
            HELLO,
            "php -r 'echo file_get_contents(getenv(\"U\") . \"/hello.txt\");'",
        ),
    ]
}

fn registries() -> Vec<Case> {
    let npm = |name, script: &str| case(name, NPM, format!("{NPM_PROJECT}{script}\n"));
    vec![
        npm(
            "npm",
            "npm install --package-lock-only --no-audit --no-fund && npm ci --no-audit --no-fund && NODE_PATH= node x.cjs",
        ),
        npm(
            "yarn",
            "$YARN install --no-progress && NODE_PATH= node x.cjs",
        ),
        npm(
            "yarn-berry",
            "touch yarn.lock; $BERRY install --no-immutable && NODE_PATH= node x.cjs",
        ),
        npm(
            "pnpm",
            "$PNPM install --no-frozen-lockfile && NODE_PATH= node x.cjs",
        ),
        npm(
            "bun-install",
            "$BUN install && NODE_PATH= node x.cjs",
        ),
        npm(
            "deno-install",
            "$DENO install && NODE_PATH= node x.cjs",
        ),
        case(
            "pip",
            "hello from PyPI",
            "python3 -m pip install --no-cache-dir --target out --index-url $U/pypi/simple greeter==1.0.0
PYTHONPATH=out python3 -c 'import greeter; print(greeter.WORDS)'",
        ),
        case(
            "uv",
            "hello from PyPI",
            "$UV pip install --python /usr/bin/python3 --target out --index-url $U/pypi/simple greeter==1.0.0
PYTHONPATH=out python3 -c 'import greeter; print(greeter.WORDS)'",
        ),
        case("cargo", "hello from cargo", format!("{CARGO_PROJECT}cargo run")),
        case("go", "hello from Go", format!("{GO_PROJECT}$GO run .")),
    ]
}

/// Java lies in the host's image where the machine has one, and its own keystore is what it looks at.
fn java() -> Option<Case> {
    Path::new("/usr/bin/javac").exists().then(|| {
        case(
            "java",
            HELLO,
            "cat > X.java <<'E'
import java.net.URI;
import java.net.http.*;
class X {
    public static void main(String[] a) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(System.getenv(\"U\") + \"/hello.txt\")).build();
        System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
E
javac X.java && java X 2>&1 && keytool -list -cacerts -storepass changeit | head -n 4",
        )
    })
}

#[test]
fn programs_of_all_kinds_read_over_tls_that_is_looked_into() -> Res<()> {
    if !crate::is_root("programs_of_all_kinds_read_over_tls_that_is_looked_into") {
        return Ok(());
    }
    let lab = Lab::new("programs", READ)?.with_goods()?;
    let mut cases = plain();
    cases.extend(java());
    lab.all(cases)?;
    lab.end()
}

#[test]
fn package_managers_install_from_their_registries() -> Res<()> {
    if !crate::is_root("package_managers_install_from_their_registries") {
        return Ok(());
    }
    let lab = Lab::new("registries", READ)?.with_goods()?;
    lab.all(registries())?;
    lab.end()
}
