"""Builds a release of the commit that is checked out: every file that a site downloads, and what vouches for them.

    python packaging/release.py [FOLDER]        by default dist/healthd-VERSION; it is replaced

It needs what `make wheel`, `make deb`, `make rpm` and packaging/container/build.sh need, and git; no container engine.
Everything is made of `git archive`, so nothing that is not committed gets in, and every time in it is the commit's.
Built again on the same distribution, and the image of the same packages of Debian, it is the same files to the byte.
packaging/verify-release.sh is for those who download them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

import yaml
from msgspec import Struct

ROOT = Path(__file__).resolve().parents[1]
# No address of ours exists that could be named instead; both formats ask for a URI.
BUILD_TYPE, BUILDER = "urn:healthd:release:1", "urn:healthd:packaging/release.py"
SUMS = "SHA256SUMS"
# One .deb and one .rpm of each package for each of them.
ARCHITECTURES = ("amd64", "arm64")
# Package URLs of the sources of the packages' CPython begin so.
DEBIAN = "pkg:deb/debian/"
_LICENCE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", re.IGNORECASE)


class Source(Struct, frozen=True, kw_only=True):
    """The commit of a release, its time in seconds since 1970, and its files below ``tree``."""

    commit: str
    epoch: int
    tree: Path

    @property
    def version(self) -> str:
        """The version that the source itself names."""
        found = re.search(r'^__version__ = "(.+)"$', (self.tree / "healthd/__init__.py").read_text("utf-8"), re.M)
        if found is None:
            raise SystemExit("packaging/release.py: healthd/__init__.py names no version")
        return found[1]


class Component(Struct, frozen=True, kw_only=True):
    """A third-party part of the packages: its name, version, licence (SPDX) and package URL.

    ``requires``: names of others that it needs. ``texts``: the files of its licence.
    """

    name: str
    version: str
    licence: str
    purl: str
    requires: frozenset[str] = frozenset()
    texts: tuple[Path, ...] = ()


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of artefact: files with the same third-party parts, whose names begin with its own and the version.

    An SBOM and a file of licence texts are for all of them. ``purl``: the kind's own package URL, without the version.
    """

    name: str
    purl: str
    components: Sequence[Component]


def main(arguments: Sequence[str]) -> int:
    """Build everything into the folder; each file is named on stdout."""
    with tempfile.TemporaryDirectory(prefix="healthd-release-") as name:
        source = export(Path(name) / "source")
        out = Path(arguments[0] if arguments else ROOT / "dist" / f"healthd-{source.version}").absolute()
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        python_packages(source, out)
        kinds = [
            system_packages(source, out, Path(name), "healthd", "pkg:pypi/healthd", lock="runtime"),
            system_packages(source, out, Path(name), "healthd-nccl", "pkg:generic/healthd-nccl", lock="nccl"),
        ]
        kinds.append(image(source, out, Path(name)))
        chart(source, out)
        for kind in kinds:
            base = f"{kind.name}-{source.version}"
            _write_json(out / f"{base}.cdx.json", sbom(source, kind))
            (out / f"{base}.licences.txt").write_text(licences(kind.components), encoding="utf-8")
        _write_json(out / f"healthd-{source.version}.intoto.json", provenance(source, out, kinds))
        (out / SUMS).write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in _files(out)), encoding="utf-8")
    for path in _files(out):
        sys.stdout.write(f"{path}  {path.stat().st_size / 1e6:.1f} MB\n")
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# what is built


def export(tree: Path) -> Source:
    """The files of the commit that is checked out, and nothing else."""
    commit = _git("rev-parse", "HEAD").strip()
    if changed := _git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit(f"packaging/release.py: a release is of a commit; not committed:\n{changed}")
    packed = tree.with_suffix(".tar")
    _git("archive", f"--output={packed}", commit)
    with tarfile.open(packed) as files:
        files.extractall(tree, filter="tar")
    return Source(commit=commit, epoch=int(_git("log", "-1", "--format=%ct", commit)), tree=tree)


def python_packages(source: Source, out: Path) -> None:
    """The sdist, with the commit's time on all its files, and the wheel that is made of it."""
    _run(source, sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), ".")
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        contents = {
            member.name: (archive.extractfile(member) or io.BytesIO()).read()
            for member in archive.getmembers()
            if member.isfile()
        }
        executable = {member.name for member in archive.getmembers() if member.mode & 0o100 and member.isfile()}
    sdist.write_bytes(_tar_gz(contents, executable, source.epoch))


def system_packages(source: Source, out: Path, work: Path, name: str, purl: str, *, lock: str) -> Kind:
    """The .deb and the .rpm of a package for each processor; ``lock``: the file of requirements/ that they hold."""
    found = []
    for architecture in ARCHITECTURES:
        staged = work / f"{name}-{architecture}"
        given = {"PACKAGE": name, "ARCH": architecture, "STAGED": str(staged), "PYTHON": ""}
        _run(source, "sh", f"packaging/stage{name.removeprefix('healthd')}.sh", str(staged), **given)
        for kind in ("deb", "rpm"):
            _run(source, "sh", f"packaging/{kind}/build.sh", str(out), **given)
        found.append(components(source, staged, lock))
    if len({licences(each) for each in found}) > 1:
        raise SystemExit(f"packaging/release.py: the packages {name} of two processors hold different components")
    return Kind(name=name, purl=purl, components=found[0])


def components(source: Source, staged: Path, lock: str) -> list[Component]:
    """The third-party parts of a package that is staged there: those of its lock, and a CPython where it has one."""
    (site,) = staged.glob("opt/healthd/lib/python3*/site-packages")
    installed = distributions(site)
    locked(source.tree / "requirements" / f"{lock}.txt", installed)
    bundled = [each for folder in staged.glob("usr/share/doc/*/python") for each in interpreter(folder)]
    return sorted([*installed, *bundled], key=lambda each: each.name)


def image(source: Source, out: Path, work: Path) -> Kind:
    """The container image for both processors, and what its layers hold: Debian's packages and those of its lock."""
    _run(source, "sh", "packaging/container/build.sh", str(out))
    layout = work / "layout"
    with tarfile.open(out / f"healthd-image-{source.version}.oci.tar") as archive:
        archive.extractall(layout, filter="data")

    def blob(descriptor: Mapping[str, str]) -> Path:
        return layout / "blobs" / descriptor["digest"].replace(":", "/")

    found: dict[str, Component] = {}
    (tagged,) = json.loads((layout / "index.json").read_text("utf-8"))["manifests"]
    for manifest in json.loads(blob(tagged).read_text("utf-8"))["manifests"]:
        root = work / f"image-{manifest['platform']['architecture']}"
        for layer in json.loads(blob(manifest).read_text("utf-8"))["layers"]:
            with tarfile.open(blob(layer)) as files:
                files.extractall(root, [each for each in files if _NAMES_PARTS.match(each.name)], filter="tar")
        (site,) = root.glob("opt/healthd/lib/python3*/site-packages")
        installed = distributions(site)
        locked(source.tree / "requirements" / "kubernetes.txt", installed)
        found |= {each.purl: each for each in [*installed, *debian_packages(root)]}
    return Kind(name="healthd-image", purl="pkg:oci/healthd", components=[each for _, each in sorted(found.items())])


# Of an image's files, those that name its parts and their licences.
_NAMES_PARTS = re.compile(
    r"(usr/lib/os-release|var/lib/dpkg/status|usr/share/doc/[^/]+(/copyright)?|opt/healthd/.*\.dist-info/.*)$"
)


def chart(source: Source, out: Path) -> None:
    """The chart as `helm package` names it, and the same as an OCI layout in a tar, for a registry without internet."""
    folder = source.tree / "packaging" / "helm" / "healthd"
    left_out = {line.strip() for line in (folder / ".helmignore").read_text("utf-8").splitlines()}
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in left_out]
    packed = _tar_gz({f"healthd/{path.relative_to(folder)}": path.read_bytes() for path in paths}, set(), source.epoch)
    meta = yaml.safe_load((folder / "Chart.yaml").read_text("utf-8"))
    name = f"{meta['name']}-{meta['version']}"
    (out / f"{name}.tgz").write_bytes(packed)
    helm = "application/vnd.cncf.helm"
    config = _bytes(meta)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _described(f"{helm}.config.v1+json", config),
        "layers": [_described(f"{helm}.chart.content.v1.tar+gzip", packed)],
        "annotations": {"org.opencontainers.image.title": meta["name"]},
    }
    blob = _bytes(manifest)
    tagged = {**_described(manifest["mediaType"], blob), "annotations": {_TAG: str(meta["version"])}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [tagged]}
    blobs = {f"blobs/sha256/{hashlib.sha256(each).hexdigest()}": each for each in (config, packed, blob)}
    layout = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index, sort_keys=True).encode(),
    }
    (out / f"{name}.oci.tar").write_bytes(_tar({**layout, **blobs}, set(), source.epoch))


_TAG = "org.opencontainers.image.ref.name"


def _bytes(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _described(media_type: object, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


# ---------------------------------------------------------------------------------------------------------------------
# what vouches for it


def distributions(site: Path) -> list[Component]:
    """Every third-party distribution that is installed below ``site``, by what its own metadata say."""
    found = []
    for info in sorted(site.glob("*.dist-info")):
        meta = HeaderParser().parsestr((info / "METADATA").read_text("utf-8"))
        name = _normal(meta["Name"])
        if name != "healthd":
            requires = frozenset(_normal(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in _required(meta))
            texts = [path for path in sorted(info.rglob("*")) if path.is_file() and _LICENCE.search(path.name)]
            found.append(
                Component(
                    name=name,
                    version=meta["Version"],
                    licence=_licence(meta),
                    purl=f"pkg:pypi/{name}@{meta['Version']}",
                    requires=requires,
                    texts=tuple(texts),
                )
            )
    return found


def interpreter(folder: Path) -> list[Component]:
    """CPython and the libraries that are compiled into it (packaging/python/sources.txt), by what its build left."""
    return [
        Component(
            name=each["name"],
            version=each["version"],
            licence=each["licence"],
            purl=f"{DEBIAN}{each['name']}@{quote(each['version'])}?arch=source&distro={each['distro']}",
            texts=(folder / f"{each['name']}.copyright",),
        )
        for each in json.loads((folder / "components.json").read_text("utf-8"))
    ]


def debian_packages(root: Path) -> list[Component]:
    """The packages of a Debian whose files are below ``root``, by dpkg's own list."""
    suite = _os_release(root)["VERSION_CODENAME"]
    found = []
    for stanza in (root / "var/lib/dpkg/status").read_text("utf-8").strip().split("\n\n"):
        fields = HeaderParser().parsestr(stanza)
        name, version, architecture = (fields[each] for each in ("Package", "Version", "Architecture"))
        found.append(
            Component(
                name=name,
                version=version,
                licence=f"as /usr/share/doc/{name}/copyright says",
                purl=f"{DEBIAN}{name}@{quote(version)}?arch={architecture}&distro={suite}",
                texts=(root / "usr/share/doc" / name / "copyright",),
            )
        )
    return found


def locked(lock: Path, found: Sequence[Component]) -> None:
    """Stop unless the lock and what is installed are the same, name by name and version by version."""
    pinned = {
        (_normal(name), version) for name, version in re.findall(r"^([\w.-]+)==(\S+)", lock.read_text("utf-8"), re.M)
    }
    if different := pinned ^ {(each.name, each.version) for each in found}:
        raise SystemExit(f"packaging/release.py: {lock.name} and the packages differ: {sorted(different)}")


def sbom(source: Source, kind: Kind) -> dict[str, Any]:
    """CycloneDX 1.6: a kind of artefact, what it brings along, and what needs what."""
    here = {each.name: each.purl for each in kind.components}
    root = f"{kind.purl}@{source.version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, f'{BUILD_TYPE}:{source.commit}:{kind.name}')}",
        "version": 1,
        "metadata": {
            "timestamp": _utc(source.epoch),
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": kind.name,
                "version": source.version,
                "purl": root,
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": each.purl,
                "name": each.name,
                "version": each.version,
                "purl": each.purl,
                "licenses": [{"license": {"name": each.licence}}],
            }
            for each in kind.components
        ],
        "dependencies": [
            {"ref": root, "dependsOn": sorted(each.purl for each in kind.components)},
            *(
                {"ref": each.purl, "dependsOn": sorted(here[name] for name in each.requires if name in here)}
                for each in kind.components
            ),
        ],
    }


def licences(found: Sequence[Component]) -> str:
    """The licence texts of everything that the packages bring along, as its authors ship them."""
    parts = []
    # The same package for two processors is one.
    for each in {(each.name, each.version): each for each in found}.values():
        parts.append(f"{'=' * 79}\n{each.name} {each.version}: {each.licence}\n{'=' * 79}\n\n")
        parts += [path.read_text("utf-8", errors="replace").strip() + "\n\n" for path in each.texts]
        if not each.texts:
            parts.append("This distribution ships no licence text; its metadata name the licence above.\n\n")
    return "".join(parts)


def provenance(source: Source, out: Path, kinds: Sequence[Kind]) -> dict[str, Any]:
    """An in-toto statement with SLSA's predicate: these files, of this commit, these locks and these sources of Debian.

    It is not signed.
    """
    locks = sorted((source.tree / "requirements").glob("*.txt"))
    found = {each.purl: each.name for kind in kinds for each in kind.components if each.purl.startswith(DEBIAN)}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": _sha256(path)}} for path in _files(out)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": source.version, "command": "make release"},
                "internalParameters": {"SOURCE_DATE_EPOCH": source.epoch, "system": _system()},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": source.commit}},
                    *({"name": f"requirements/{path.name}", "digest": {"sha256": _sha256(path)}} for path in locks),
                    *({"name": name, "uri": purl} for purl, name in sorted(found.items())),
                ],
            },
            "runDetails": {"builder": {"id": BUILDER}},
        },
    }


# ---------------------------------------------------------------------------------------------------------------------


def _run(source: Source, *argv: str, **environ: str) -> None:
    given = {**os.environ, **environ, "SOURCE_DATE_EPOCH": str(source.epoch), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=source.tree, env=given)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}")


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout  # noqa: S607  whichever git made this checkout


def _tar_gz(contents: Mapping[str, bytes], executable: set[str], epoch: int) -> bytes:
    return gzip.compress(_tar(contents, executable, epoch), mtime=0)


def _tar(contents: Mapping[str, bytes], executable: set[str], epoch: int) -> bytes:
    """A tar of these files that depends on nothing else: no owner, no other time, the order given."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, text in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(text), epoch, 0o755 if name in executable else 0o644
            archive.addfile(member, io.BytesIO(text))
    return data.getvalue()


def _required(meta: Message) -> Iterator[str]:
    """The requirements of a distribution without any extra."""
    return (text for text in meta.get_all("Requires-Dist", []) if "extra ==" not in text)


def _licence(meta: Message) -> str:
    """The licence by the metadata: the SPDX expression, else the classifier, else the free text."""
    if expression := meta["License-Expression"]:
        return str(expression)
    classified = [
        text.rpartition(" :: ")[2] for text in meta.get_all("Classifier", []) if text.startswith("License ::")
    ]
    named = " OR ".join(classified) or (meta["License"] or "").splitlines()[0]
    if not named:
        raise SystemExit(f"packaging/release.py: {meta['Name']} names no licence")
    return named


def _normal(name: str) -> str:
    """A distribution's name as PEP 503 compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _system() -> str:
    words = _os_release(Path("/"))
    return f"{words['ID']} {words['VERSION_ID']} {os.uname().machine}"


def _os_release(root: Path) -> dict[str, str]:
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', (root / "usr/lib/os-release").read_text("utf-8"), re.M))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _utc(epoch: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
