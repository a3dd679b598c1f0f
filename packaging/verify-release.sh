#!/bin/sh
# Checks a downloaded release of healthd: packaging/verify-release.sh FOLDER. Exit 0: all of it is as it was built.
# Needs sha256sum and python3; dpkg-deb and rpm2cpio with cpio, each where it is there, to look into the packages.
#
# SHA256SUMS names every file and no other; the provenance names the same files and checksums, a commit, and the
# sources of Debian that the SBOMs have. There is an SBOM for each kind of artefact: it names exactly what the packages of
# that name bring along, in the same versions, or the layers of the image, and so do the licence texts. The chart's OCI layout holds the chart.
# It cannot say who built the files: compare the SHA256SUMS with those of a build of your own (make release).
set -eu
test $# -eq 1 || { sed -n '2p' "$0" >&2; exit 64; }
cd "$1"
bad() {
    echo "packaging/verify-release.sh: $*" >&2
    exit 1
}

test -f SHA256SUMS || bad "no SHA256SUMS in $1"
sha256sum --check --quiet --strict SHA256SUMS || bad "a file is not what SHA256SUMS says"
listed=$(sed 's/^[0-9a-f]*  //' SHA256SUMS | LC_ALL=C sort)
there=$(find . -mindepth 1 -maxdepth 1 ! -name SHA256SUMS | sed 's|^\./||' | LC_ALL=C sort)
test "$listed" = "$there" || bad "the files here and those of SHA256SUMS differ"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

python3 - "$work" <<'PYTHON'
import hashlib, io, json, pathlib, re, shutil, subprocess, sys, tarfile

here, work = pathlib.Path(), pathlib.Path(sys.argv[1])
# Modules and machine code are not unpacked: they name nothing, and libnccl alone is 470 MB.
UNPACK = {
    ".deb": ("dpkg-deb", """dpkg-deb --fsys-tarfile "$1" | tar -C "$2" -xf - --exclude='*.so*' --exclude='*.py*'"""),
    ".rpm": ("rpm2cpio cpio", """rpm2cpio "$1" | (cd "$2" && cpio -id --quiet --nonmatching '*.so*' '*.py*')"""),
}

def one(pattern):
    (path,) = here.glob(pattern)
    return path

def same(what, have, want):
    if have != want:
        sys.exit(f"packaging/verify-release.sh: {what}: {sorted(have ^ want)}")

def inside(package):
    """Name and version of what the package brings along; None for want of a program."""
    programs, script = UNPACK[package.suffix]
    if not all(map(shutil.which, programs.split())):
        return None
    folder = work / package.name
    folder.mkdir()
    subprocess.run(["sh", "-c", script, "sh", package.absolute(), folder], check=True)
    infos = folder.glob("opt/healthd/lib/python3*/site-packages/*.dist-info")
    split = [each.name.removesuffix(".dist-info").rpartition("-") for each in infos]
    found = {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, _, version in split}
    for python in folder.glob("usr/share/doc/healthd/python/components.json"):
        found |= {(each["name"], each["version"]) for each in json.loads(python.read_text())}
    return found

sums = {tuple(reversed(line.split())) for line in pathlib.Path("SHA256SUMS").read_text().splitlines()}
statement = one("*.intoto.json")
provenance = json.loads(statement.read_text())
subjects = {(each["name"], each["digest"]["sha256"]) for each in provenance["subject"]}
same("provenance and SHA256SUMS differ", subjects, {each for each in sums if each[0] != statement.name})
materials = provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
compiled = {each["uri"] for each in materials if each.get("uri", "").startswith("pkg:deb/")}
(commit,) = (each["digest"]["gitCommit"] for each in materials if each["name"] == "source")

boms = {path: json.loads(path.read_text()) for path in sorted(here.glob("*.cdx.json"))}
purls = {each["purl"] for bom in boms.values() for each in bom["components"]}
same("provenance and SBOM differ", compiled, {each for each in purls if each.startswith("pkg:deb/")})
parts = {}
for path, bom in boms.items():
    kind, version = (bom["metadata"]["component"][word] for word in ("name", "version"))
    named = parts[kind, version] = {(each["name"], each["version"]) for each in bom["components"]}
    texts = set(re.findall(r"^(\S+) (\S+): ", (here / path.name.replace(".cdx.json", ".licences.txt")).read_text(), re.M))
    same("licence texts and SBOM differ", {each for each in texts if each in named}, named)

looked = []
for package in sorted(path for path in here.iterdir() if path.suffix in UNPACK):
    (kind,) = (each for each in parts if re.match(rf"{each[0]}[-_]{re.escape(each[1])}-", package.name))
    found = inside(package)
    if found is None:
        print(f"not looked into, for want of a program: {package.name}")
        continue
    same(f"SBOM and {package.name} differ", found - {kind}, parts[kind])
    looked.append(package.name)

def layout(path):
    """The content by its digest, and what the index of an OCI layout in a tar leads to."""
    with tarfile.open(path) as archive:
        files = {each.name: archive.extractfile(each).read() for each in archive if each.isfile()}
    for name, content in files.items():
        if name.startswith("blobs/") and name != f"blobs/sha256/{hashlib.sha256(content).hexdigest()}":
            sys.exit(f"packaging/verify-release.sh: {name} in {path.name} is not what its name says")
    (tagged,) = json.loads(files["index.json"])["manifests"]
    at = lambda descriptor: files["blobs/" + descriptor["digest"].replace(":", "/")]
    return at, json.loads(at(tagged))

PARTS = re.compile(r"var/lib/dpkg/status|opt/healthd/.*\.dist-info/METADATA")
FIELDS = re.compile(r"^(?:Package|Name): (\S+)\n(?:.*\n)*?Version: (\S+)$", re.M)

def in_layers(at, manifest):
    """Name and version of Debian's packages and of Python's in one processor's image."""
    files = {}
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(at(layer))) as archive:
            files |= {each.name: archive.extractfile(each).read().decode() for each in archive if PARTS.fullmatch(each.name)}
    found = set()
    for name, text in files.items():
        ours = name.endswith("METADATA")
        for stanza in [text.partition("\n\n")[0]] if ours else text.strip().split("\n\n"):
            name, version = FIELDS.search(stanza).groups()
            found.add((re.sub(r"[-_.]+", "-", name).lower() if ours else name, version))
    return found

image = one("healthd-image-*.oci.tar")
at, index = layout(image)
(kind,) = (each for each in parts if each[0] == "healthd-image")
found = set().union(*(in_layers(at, json.loads(at(each))) for each in index["manifests"]))
same(f"SBOM and {image.name} differ", found - {("healthd", kind[1])}, parts[kind])
looked.append(image.name)

at, manifest = layout(one("*.tgz").with_suffix(".oci.tar"))
(layer,) = manifest["layers"]
if at(layer) != one("*.tgz").read_bytes():
    sys.exit("packaging/verify-release.sh: the OCI layout holds another chart")
print(f"{len(sums)} files of commit {commit}: checksums, provenance, SBOM ({', '.join(looked)}), licences and chart agree")
PYTHON
