"""A release, built twice of a fresh clone: the same to the byte, whole, and refused once anything in it is changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from healthd import __version__
from tests.installing.page import run
from tests.support.limits import limit_s
from tests.support.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.process]

BASE, NCCL, IMAGE = (f"{kind}-{__version__}" for kind in ("healthd", "healthd-nccl", "healthd-image"))


class Released(Struct, frozen=True, kw_only=True):
    """The clone that was built, and what came of it twice."""

    clone: Path
    first: Path
    second: Path


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    """Two builds of the commit that is checked out here, from different folders.

    The second takes CPython from a cache that was filled at another time, and from which nothing has run.
    """
    for program, package in (
        ("git", "git"),
        ("rpmbuild", "rpm"),
        ("dpkg-deb", "dpkg"),
        ("cpio", "cpio"),
        ("debootstrap", "debootstrap"),
        ("buildah", "buildah"),
        ("mmdebstrap", "mmdebstrap"),
    ):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here: apt-get install {package}")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: a release is built of a commit")
    folder = tmp_path_factory.mktemp("release")
    clone = folder / "clone"
    run("git", "clone", "--quiet", str(ROOT), clone)

    def build(name: str, **environ: str) -> None:
        tmp = folder / name / "tmp"
        tmp.mkdir(parents=True)
        script = clone / "packaging" / "release.py"
        run(sys.executable, script, folder / name / "dist", TMPDIR=str(tmp), **environ)

    build("first")
    cache = folder / "cache"
    for architecture in ("amd64", "arm64"):
        kept = Path(run("sh", clone / "packaging/python/build.sh", architecture))
        copied = cache / "healthd/python" / kept.name
        fresh = shutil.ignore_patterns("__pycache__")
        shutil.copytree(kept, copied, symlinks=True, ignore=fresh, copy_function=shutil.copy)
    build("second", XDG_CACHE_HOME=str(cache))
    return Released(clone=clone, first=folder / "first" / "dist", second=folder / "second" / "dist")


def sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def deb(released: Released, architecture: str, package: str = "healthd") -> Path:
    (found,) = released.first.glob(f"{package}_*_{architecture}.deb")
    return found


def verify(folder: Path) -> subprocess.CompletedProcess[str]:
    argv = ["sh", str(ROOT / "packaging/verify-release.sh"), str(folder)]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(300))


def test_a_release_is_whole(released: Released) -> None:
    """Wheel, sdist, a .deb and an .rpm of both packages for each processor, the image, the chart in both forms, an
    SBOM and licences of each package and of the image, provenance and checksums are there."""
    assert {path.name for path in released.first.iterdir()} == {
        f"{BASE}-py3-none-any.whl",
        f"{BASE}.tar.gz",
        f"healthd_{__version__}-1_amd64.deb",
        f"healthd_{__version__}-1_arm64.deb",
        f"{BASE}-1.x86_64.rpm",
        f"{BASE}-1.aarch64.rpm",
        f"healthd-nccl_{__version__}-1_amd64.deb",
        f"healthd-nccl_{__version__}-1_arm64.deb",
        f"{NCCL}-1.x86_64.rpm",
        f"{NCCL}-1.aarch64.rpm",
        f"{BASE}.tgz",
        f"{BASE}.oci.tar",
        f"{BASE}.cdx.json",
        f"{BASE}.licences.txt",
        f"{NCCL}.cdx.json",
        f"{NCCL}.licences.txt",
        f"{IMAGE}.oci.tar",
        f"{IMAGE}.cdx.json",
        f"{IMAGE}.licences.txt",
        f"{BASE}.intoto.json",
        "SHA256SUMS",
    }


def test_built_twice_it_is_the_same_to_the_byte(released: Released) -> None:
    """Neither the folder nor the time of a build is in any of its files."""
    first, second = sums(released.first), sums(released.second)
    assert {name for name in first if first[name] != second.get(name)} == set()
    assert set(first) == set(second)


def test_a_release_verifies(released: Released) -> None:
    """The script for those who download it looks into all packages and names the commit."""
    done = verify(released.first)
    assert done.returncode == 0, done.stderr
    commit = run("git", "-C", released.clone, "rev-parse", "HEAD")
    assert f"20 files of commit {commit}" in done.stdout
    packages = [
        f"{IMAGE}.oci.tar",
        *(path.name for path in released.first.iterdir() if path.suffix in (".deb", ".rpm")),
    ]
    assert len(packages) == 9
    assert [name for name in packages if name not in done.stdout] == []


def in_json(pattern: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        (path,) = folder.glob(pattern)
        before = path.read_text()
        path.write_text(change(before))
        assert path.read_text() != before

    return changed


def grown(folder: Path) -> None:
    (wheel,) = folder.glob("*.whl")
    with wheel.open("ab") as file:
        file.write(b"\0")


def resummed(pattern: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    """A change whose author also wrote new checksums, and a statement with them."""

    def changed(folder: Path) -> None:
        in_json(pattern, change)(folder)
        (statement,) = folder.glob("*.intoto.json")
        value = json.loads(statement.read_text())
        for subject in value["subject"]:
            subject["digest"]["sha256"] = sums(folder)[subject["name"]]
        statement.write_text(json.dumps(value))
        only_sums(folder)

    return changed


def only_sums(folder: Path) -> None:
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums(folder).items()) if name != "SHA256SUMS"]
    (folder / "SHA256SUMS").write_text("".join(lines))


def grown_and_summed(folder: Path) -> None:
    grown(folder)
    only_sums(folder)


def another_version(kind: str, name: str) -> Callable[[Path], None]:
    """SBOM and licences agree, and the artefact holds another one."""

    def changed(folder: Path) -> None:
        in_json(f"{kind}.licences.txt", lambda text: re.sub(rf"\n{name} \S+: ", f"\n{name} 1.0: ", text))(folder)
        version = rf'("name": "{name}".*?"version": )"[^"]+"'
        resummed(f"{kind}.cdx.json", lambda text: re.sub(version, r'\1"1.0"', text, flags=re.DOTALL))(folder)

    return changed


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a byte more": (grown, "is not what SHA256SUMS says"),
    "a file more": (lambda folder: (folder / "more.whl").touch(), "and those of SHA256SUMS differ"),
    "a file less": (lambda folder: next(folder.glob("*.tgz")).unlink(), "is not what SHA256SUMS says"),
    "new checksums alone": (grown_and_summed, "provenance and SHA256SUMS differ"),
    "another name in the SBOM": (
        resummed(f"{BASE}.cdx.json", lambda text: text.replace('"name": "msgspec"', '"name": "msgspek"')),
        "licence texts and SBOM differ",
    ),
    "another OpenSSL in the SBOM": (
        resummed(f"{BASE}.cdx.json", lambda text: text.replace("/openssl@3", "/openssl@2")),
        "provenance and SBOM differ",
    ),
    "another NumPy in the SBOM and the licences": (
        another_version(NCCL, "numpy"),
        f"SBOM and {NCCL}-1.aarch64.rpm differ",
    ),
    "another systemd in the SBOM and the licences": (
        another_version(IMAGE, "systemd"),
        f"SBOM and {IMAGE}.oci.tar differ",
    ),
    "a licence less": (
        resummed(f"{BASE}.licences.txt", lambda text: text.replace("\nmsgspec ", "\nmessages ")),
        "licence texts and SBOM differ",
    ),
}


def linked(source: str, destination: str) -> None:
    """A link to a package or an image, a copy of anything else."""
    (os.link if source.endswith((".deb", ".rpm", ".oci.tar")) else shutil.copy)(source, destination)


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_release_is_refused(released: Released, tmp_path: Path, name: str) -> None:
    """Whatever is changed, added or taken away, the script ends with 1 and says what does not agree."""
    change, words = CHANGES[name]
    folder = tmp_path / "dist"
    # Packages and images are gigabytes, and no change is made in one.
    shutil.copytree(released.first, folder, copy_function=linked)
    change(folder)
    done = verify(folder)
    assert done.returncode == 1, done.stdout
    assert words in done.stderr


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
@pytest.mark.parametrize("package", ["healthd", "healthd-nccl"])
def test_the_sbom_has_what_is_in_the_package(
    released: Released, tmp_path: Path, architecture: str, package: str
) -> None:
    """Name and version of each distribution in the .deb and of each source of its CPython, with licence and what it
    needs, and nothing else."""
    run("dpkg-deb", "-x", deb(released, architecture, package), tmp_path)
    (site,) = tmp_path.glob("opt/healthd/lib/python3*/site-packages")
    infos = [info.name.removesuffix(".dist-info").rpartition("-") for info in site.glob("*.dist-info")]
    inside = {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in infos}
    for compiled in tmp_path.glob("usr/share/doc/healthd/python/components.json"):
        inside |= {each["name"]: each["version"] for each in json.loads(compiled.read_text())}
    bom = json.loads((released.first / f"{package}-{__version__}.cdx.json").read_text())
    assert bom["metadata"]["component"]["name"] == package
    assert {each["name"]: each["version"] for each in bom["components"]} == {
        name: version for name, version in inside.items() if name != "healthd"
    }
    purls, (needing, needed) = PARTS[package]
    assert {each["purl"].partition("@")[0] for each in bom["components"]} >= purls
    references = {each["bom-ref"] for each in bom["components"]}
    needs = {each["ref"]: set(each["dependsOn"]) for each in bom["dependencies"]}
    assert set(needs) == references | {bom["metadata"]["component"]["bom-ref"]}
    assert set().union(*needs.values()) == references
    (part,) = (each for each in references if each.startswith(f"{needing}@"))
    assert {each.partition("@")[0] for each in needs[part]} >= needed
    assert all(each["licenses"][0]["license"]["name"] for each in bom["components"])


PARTS = {
    "healthd": (
        {"pkg:deb/debian/python3.13", "pkg:deb/debian/openssl", "pkg:pypi/boto3"},
        ("pkg:pypi/boto3", {"pkg:pypi/botocore", "pkg:pypi/s3transfer"}),
    ),
    "healthd-nccl": (
        {"pkg:pypi/nvidia-nccl-cu12", "pkg:pypi/nccl4py"},
        ("pkg:pypi/nccl4py", {"pkg:pypi/cuda-core", "pkg:pypi/numpy"}),
    ),
}


def test_the_licences_of_nvidia_are_named(released: Released) -> None:
    """libnccl is under NVIDIA's terms, and the text that its wheel ships stands below its name."""
    text = (released.first / f"{NCCL}.licences.txt").read_text()
    _, _, below = text.partition("nvidia-nccl-cu12")
    assert re.match(r" [\d.]+: LicenseRef-NVIDIA-Proprietary\n=+\n\nCopyright .* NVIDIA CORPORATION", below), below[
        :200
    ]


def test_what_is_in_the_deb_runs(released: Released, tmp_path: Path) -> None:
    """Unpacked anywhere, it gives a verdict on this machine."""
    run("dpkg-deb", "-x", deb(released, run("dpkg", "--print-architecture")), tmp_path)
    argv = [str(tmp_path / "opt/healthd/bin/python"), "-I", "-m", "healthd", "check", "--no-daemon", "--json"]
    environ = {"PATH": os.environ["PATH"], "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60), cwd="/", env=environ)
    assert done.returncode in (0, 1, 2), done.stderr
    assert json.loads(done.stdout)["schema"] == "healthd.verdict/v1"


def test_the_chart_is_the_commits(released: Released) -> None:
    """The chart has the files of the commit and none that .helmignore names, each with the commit's time."""
    (chart,) = released.first.glob("*.tgz")
    epoch = int(run("git", "-C", released.clone, "log", "-1", "--format=%ct"))
    with tarfile.open(chart) as archive:
        members = {member.name: member for member in archive}
    folder = released.clone / "packaging/helm/healthd"
    there = {f"healthd/{path.relative_to(folder)}" for path in folder.rglob("*") if path.is_file()}
    assert there - set(members) == {"healthd/values.schema.base.json"}
    assert set(members) - there == set()
    assert {member.mtime for member in members.values()} == {epoch}
