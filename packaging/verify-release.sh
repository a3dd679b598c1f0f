#!/bin/sh
# Checks a downloaded release of healthd: packaging/verify-release.sh FOLDER. Exit 0: all of it is as it was built.
# Needs sha256sum and python3; dpkg-deb and rpm2cpio with cpio, each where it is there, to look into the packages.
#
# SHA256SUMS names every file and no other; the provenance names the same files and checksums, a commit, and the
# sources of the packages' CPython that the SBOM has; the SBOM names exactly what the packages bring along, in the same
# versions; the chart's OCI layout holds the chart.
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
for package in *.deb *.rpm; do
    mkdir "$work/$package"
    case $package in
    *.deb)
        command -v dpkg-deb >/dev/null || continue
        dpkg-deb --fsys-tarfile "$package" | tar -C "$work/$package" -xf -
        ;;
    *.rpm)
        { command -v rpm2cpio && command -v cpio; } >/dev/null || continue
        rpm2cpio "$package" | (cd "$work/$package" && cpio --extract --make-directories --quiet)
        ;;
    esac
done

python3 - "$work" <<'PYTHON'
import hashlib, json, pathlib, re, sys, tarfile

def one(pattern):
    (path,) = pathlib.Path().glob(pattern)
    return path

def same(what, have, want):
    if have != want:
        sys.exit(f"packaging/verify-release.sh: {what}: {sorted(have ^ want)}")

sums = {tuple(reversed(line.split())) for line in pathlib.Path("SHA256SUMS").read_text().splitlines()}
statement = one("*.intoto.json")
provenance = json.loads(statement.read_text())
subjects = {(each["name"], each["digest"]["sha256"]) for each in provenance["subject"]}
same("provenance and SHA256SUMS differ", subjects, {each for each in sums if each[0] != statement.name})
materials = provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
compiled = {each["uri"] for each in materials if each.get("uri", "").startswith("pkg:deb/")}
(commit,) = (each["digest"]["gitCommit"] for each in materials if each["name"] == "source")

bom = json.loads(one("*.cdx.json").read_text())
named = {(each["name"], each["version"]) for each in bom["components"]}
same("provenance and SBOM differ", compiled, {each["purl"] for each in bom["components"] if each["purl"].startswith("pkg:deb/")})
texts = set(re.findall(r"^(\S+) (\S+): ", one("*.licences.txt").read_text(), re.M))
same("licence texts and SBOM differ", {each for each in texts if each in named}, named)
looked = []
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    inside = [each.name.removesuffix(".dist-info") for each in folder.glob("opt/healthd/lib/python3*/site-packages/*.dist-info")]
    if not inside:
        print(f"not looked into, for want of a program: {folder.name}")
        continue
    found = {(re.sub(r"[-_.]+", "-", name).lower(), version) for name, _, version in (each.rpartition("-") for each in inside)}
    (python,) = folder.glob("usr/share/doc/healthd/python/components.json")
    found |= {(each["name"], each["version"]) for each in json.loads(python.read_text())}
    same(f"SBOM and {folder.name} differ", found - {("healthd", bom["metadata"]["component"]["version"])}, named)
    looked.append(folder.name)

with tarfile.open(one("*.oci.tar")) as layout:
    blobs = {each.name: layout.extractfile(each).read() for each in layout if each.isfile()}
for name, blob in blobs.items():
    if name.startswith("blobs/") and name != f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}":
        sys.exit(f"packaging/verify-release.sh: {name} in the OCI layout is not what its name says")
(tagged,) = json.loads(blobs["index.json"])["manifests"]
at = lambda digest: blobs["blobs/" + digest.replace(":", "/")]
(layer,) = json.loads(at(tagged["digest"]))["layers"]
if at(layer["digest"]) != one("*.tgz").read_bytes():
    sys.exit("packaging/verify-release.sh: the OCI layout holds another chart")
print(f"{len(sums)} files of commit {commit}: checksums, provenance, SBOM ({', '.join(looked)}), licences and chart agree")
PYTHON
