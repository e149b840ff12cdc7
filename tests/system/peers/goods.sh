#!/usr/bin/env bash
# What the registries of tests/clients serve, made with the makers' own tools where they have one: goods.sh DIRECTORY URL
set -euo pipefail
cd "$1"
url=$2
echo 'hello from the registry' > hello.txt

# npm: two packages, one of which needs the other.
mkdir -p npm/greeter npm/words src/greeter src/words
echo '{"name":"words","version":"1.0.0","main":"index.js"}' > src/words/package.json
echo 'module.exports = "hello from npm";' > src/words/index.js
echo '{"name":"greeter","version":"1.0.0","main":"index.js","dependencies":{"words":"^1.0.0"}}' > src/greeter/package.json
echo 'module.exports = require("words");' > src/greeter/index.js
npm pack --json --pack-destination npm ./src/greeter ./src/words > packed.json
node - "$url" <<'JS'
const fs = require('fs');
for (const packed of JSON.parse(fs.readFileSync('packed.json'))) {
  const made = JSON.parse(fs.readFileSync(`src/${packed.name}/package.json`));
  const tarball = `${process.argv[2]}/npm/${packed.filename}`;
  const version = { ...made, dist: { tarball, integrity: packed.integrity, shasum: packed.shasum } };
  // Some take nothing that is too new.
  const time = { created: '2020-01-01T00:00:00.000Z', modified: '2020-01-01T00:00:00.000Z', '1.0.0': '2020-01-01T00:00:00.000Z' };
  const all = { name: packed.name, 'dist-tags': { latest: '1.0.0' }, versions: { '1.0.0': version }, time };
  fs.writeFileSync(`npm/${packed.name}/index.json`, JSON.stringify(all));
}
JS

# PyPI: a wheel and its simple index. Go: a module as its proxies have it.
mkdir -p pypi/simple/greeter go/example.test/greeter/@v
python3 - <<'PY'
from zipfile import ZipFile

info = "greeter-1.0.0.dist-info"
with ZipFile("pypi/greeter-1.0.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("greeter.py", "WORDS = 'hello from PyPI'\n")
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", f"greeter.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
at = "go/example.test/greeter/@v/"
with ZipFile(at + "v1.0.0.zip", "w") as module:
    root = "example.test/greeter@v1.0.0/"
    module.writestr(root + "go.mod", "module example.test/greeter\n\ngo 1.19\n")
    module.writestr(root + "greeter.go", 'package greeter\n\nconst Words = "hello from Go"\n')
PY
echo '<a href="../../greeter-1.0.0-py3-none-any.whl">greeter-1.0.0-py3-none-any.whl</a>' > pypi/simple/greeter/index.html
(cd go/example.test/greeter/@v
echo v1.0.0 > list
echo '{"Version":"v1.0.0","Time":"2020-01-01T00:00:00Z"}' > v1.0.0.info
printf 'module example.test/greeter\n\ngo 1.19\n' > v1.0.0.mod)

# cargo: a sparse index and a crate.
mkdir -p cargo/gr/ee src/crate/src
printf '[package]\nname = "greeter"\nversion = "1.0.0"\nedition = "2021"\ndescription = "x"\nlicense = "MIT"\n[workspace]\n' > src/crate/Cargo.toml
echo 'pub const WORDS: &str = "hello from cargo";' > src/crate/src/lib.rs
(cd src/crate && cargo package --quiet --no-verify --allow-dirty --offline --target-dir ../target)
cp src/target/package/greeter-1.0.0.crate cargo/
sum=$(sha256sum cargo/greeter-1.0.0.crate | cut -d ' ' -f 1)
echo "{\"dl\":\"$url/cargo/{crate}-{version}.crate\"}" > cargo/config.json
echo "{\"name\":\"greeter\",\"vers\":\"1.0.0\",\"deps\":[],\"cksum\":\"$sum\",\"features\":{},\"yanked\":false}" > cargo/gr/ee/greeter
