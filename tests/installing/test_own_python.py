"""The CPython that the packages bring along: it needs a glibc of 2020 and nothing else, and may lie anywhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installing.page import run
from tests.support.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.process]

# Debian 11's. Ubuntu 22.04 has 2.35, Amazon Linux 2023 has 2.34.
OLDEST_GLIBC = (2, 31)
# glibc's own libraries, some of them empty since 2.34 (its release notes).
OF_GLIBC = re.compile(r"(lib(c|m|dl|pthread|rt|util)\.so\.\d|ld-linux(-x86-64|-aarch64)\.so\.\d)")


@pytest.fixture(params=["own", "own_arm64"])
def opt(request: pytest.FixtureRequest) -> Path:
    """/opt/healthd of the packages for this machine's processor, and of those for arm64."""
    staged: Path = request.getfixturevalue(request.param)
    return staged / "opt/healthd"


def machine_code(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def read(option: str, path: Path) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf here: apt-get install binutils")
    argv = ["readelf", "--wide", option, str(path)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_glibc_of_debian_11_suffices(opt: Path) -> None:
    """No symbol of a newer glibc is needed, by the program and by every library of the wheels beside it."""
    found = {path: set(re.findall(r"Name: GLIBC_([\d.]+)", read("--version-info", path))) for path in machine_code(opt)}
    assert opt / "bin/python3.13" in found
    assert len(found) > 1, "the wheels' libraries were not looked at"
    newest = {path: max(tuple(map(int, each.split("."))) for each in needs) for path, needs in found.items() if needs}
    assert {path.name: version for path, version in newest.items() if version > OLDEST_GLIBC} == {}


def test_nothing_but_glibc_is_needed(opt: Path) -> None:
    """OpenSSL, SQLite, libffi and the compressors are in the program: no library of a distribution is loaded."""
    needed = {
        name for path in machine_code(opt) for name in re.findall(r"\(NEEDED\).*\[(.*)\]", read("--dynamic", path))
    }
    assert needed
    assert [name for name in needed if not OF_GLIBC.fullmatch(name)] == []


def test_what_is_linked_in_is_not_offered_to_others(opt: Path) -> None:
    """A library that is loaded later, such as one of NVIDIA's, does not find this OpenSSL in the place of its own."""
    offered = read("--dyn-syms", opt / "bin/python3.13")
    assert " PyLong_FromLong" in offered
    assert re.findall(r" (SSL_new|EVP_Digest|sqlite3_open|inflate|ffi_call|lzma_code|BZ2_bzCompress)\b", offered) == []


def test_no_test_no_tool_and_no_build_is_in_it(opt: Path) -> None:
    """What only developers of Python run is left out, and no file names the folder that it was compiled in."""
    (library,) = opt.glob("lib/python3*")
    left_out = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "venv", "pydoc_data")
    assert [name for name in left_out if (library / name).exists()] == []
    assert list(opt.rglob("*.a")) == []
    assert run("sh", "-c", f"grep -rlF /healthd-build {opt} || true") == ""
    assert sorted(path.name for path in (opt / "bin").iterdir()) == ["healthd", "python", "python3", "python3.13"]


def test_no_bytecode_is_compared_with_its_source(opt: Path) -> None:
    """Every module of Python's library, of the wheels and of healthd: unchecked bytecode (PEP 552)."""
    compiled = {path: path.read_bytes()[4:8] for path in opt.rglob("*.pyc")}
    assert len(compiled) > 1000
    assert {path for path, kind in compiled.items() if kind != b"\x01\x00\x00\x00"} == set()


def test_the_certificates_are_the_distributions(opt: Path) -> None:
    """A folder on Debian and Ubuntu, a file on Amazon Linux: each is a link, and the one that is there counts."""
    assert (opt / "ssl/certs").readlink() == Path("/etc/ssl/certs")
    assert (opt / "ssl/cert.pem").readlink() == Path("/etc/pki/tls/cert.pem")


def test_it_may_lie_anywhere(own: Path, tmp_path: Path) -> None:
    """Copied to another place it finds its library there, and gives a verdict."""
    shutil.copytree(own / "opt/healthd", tmp_path / "elsewhere", symlinks=True)
    python = tmp_path / "elsewhere/bin/python"
    ask = "import sys, ssl, site; print(sys.prefix, sys.exec_prefix, ssl.__file__, site.ENABLE_USER_SITE)"
    prefix, exec_prefix, module, user = run(python, "-c", ask, HOME=str(tmp_path)).split()
    assert prefix == exec_prefix == str(tmp_path / "elsewhere")
    assert module.startswith(prefix)
    assert user == "False", "packages below a home folder are not healthd's"
    argv = [str(python), "-I", "-m", "healthd", "check", "--no-daemon", "--json"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd="/")
    assert json.loads(done.stdout)["schema"] == "healthd.verdict/v1", done.stderr


def test_every_source_has_its_licence_in_the_package(own: Path) -> None:
    """What is compiled in is named by version, with Debian's text of its licence, as sources.txt pins it."""
    folder = own / "usr/share/doc/healthd/python"
    lines = [line.split() for line in (ROOT / "packaging/python/sources.txt").read_text().splitlines()]
    pinned = {name: version for name, version, *_ in (line for line in lines if line[0] != "#")}
    assert {each["name"]: each["version"] for each in json.loads((folder / "components.json").read_text())} == pinned
    assert [name for name in pinned if len((folder / f"{name}.copyright").read_text()) < 200] == []
