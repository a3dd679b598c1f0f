"""healthd-nccl beside healthd, in minimal roots: what it brings is found, and it takes nothing of healthd's along.

No machine of the tests has a GPU: libnccl is loaded and asked for its version, which needs none.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from healthd import __version__
from tests.installing.minimal_root import ran
from tests.installing.page import run
from tests.installing.test_own_python import OF_GLIBC, OLDEST_GLIBC, machine_code, read
from tests.support.debian_root import debian_root
from tests.support.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.process]

SITE = "opt/healthd/lib/python3.13/site-packages"
QUICK = {"DEB_COMPRESSION": "none", "RPM_LEVEL": "1"}
OF_THE_SYSTEM = {"libgcc_s.so.1", "libstdc++.so.6", "libz.so.1"}
# What the packages of both kinds must show, once they are installed. $over/NAME.json: a check's verdict.
SHOWS = """
mount -t sysfs -o ro sysfs "$root/sys" # where checks look for GPUs
shows() {
    for test in nvlink loopback; do
        inside healthd check --no-daemon --active --json nccl.$test >"$over/$test.json"
    done
    inside /opt/healthd/bin/python -IBc "$ASK" >"$over/library"
    inside /opt/healthd/bin/python -IB "/$SITE/healthd/probe/all_reduce.py" 1024 1 1 >"$over/child"
}
"""
ASK = """
from nccl.bindings.nccl import get_version
print(get_version(), *{line.split()[-1] for line in open("/proc/self/maps") if "libnccl" in line})
"""
DEBIAN = """
ours=/run/${1##*/} nccl=/run/${2##*/} next=/run/${3##*/} next_nccl=/run/${4##*/}
cp "$@" "$root/run/"
get() { inside apt-get -y -q --no-install-recommends "$@" >"$over/apt" 2>&1; }
if get install $nccl; then exit 3; fi
cp "$over/apt" "$over/alone"
get install $ours
start_daemon
list >"$over/before"
if get install $next_nccl; then exit 4; fi
cp "$over/apt" "$over/other"
get install $nccl
list >"$over/with"
inside dpkg --verify healthd healthd-nccl >"$over/verified"
shows
get remove healthd-nccl
list >"$over/removed"
get purge healthd-nccl
inside healthd status >"$over/status"
stop_daemon
get install $ours $nccl
get install $next $next_nccl
inside dpkg-query -Wf '${Package} ${Version} ${Status}\\n' 'healthd*' >"$over/upgraded"
get purge healthd-nccl
list >"$over/after"
"""
AMAZON = """
start() { book --nodeps --install "$1"; }
if book --install "$2" 2>"$over/alone"; then exit 3; fi
start "$1"
start_daemon
list >"$over/before"
if book --install "$4" 2>"$over/other"; then exit 4; fi
if book --install "$2" 2>"$over/missing"; then exit 5; fi # libraries, which this root has of Debian
start "$2"
list >"$over/with"
book --nodeps --verify healthd healthd-nccl >"$over/verified"
shows
book --erase healthd-nccl
list >"$over/removed"
inside healthd status >"$over/status"
stop_daemon
start "$2"
book --nodeps --upgrade "$3" "$4"
book --query healthd healthd-nccl >"$over/upgraded"
book --erase healthd-nccl
list >"$over/after"
"""


@pytest.fixture(scope="module")
def thin(nccl: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without machine code, which is all that the next revision needs to show."""
    return Path(shutil.copytree(nccl, tmp_path_factory.mktemp("thin") / "nccl", ignore=shutil.ignore_patterns("*.so*")))


def built(kind: str, folder: Path, staged: Path, package: str = "healthd-nccl", **further: str) -> Path:
    environ = {**QUICK, "STAGED": str(staged), "PACKAGE": package, **further}
    return Path(run("sh", f"packaging/{kind}/build.sh", folder, **environ))


def lived(script: str, over: Path, *packages: Path) -> None:
    """What both kinds of package must show: see the claims of the tests."""
    done = ran(SHOWS + script, debian_root("bookworm"), over, *packages, ASK=ASK, SITE=SITE)

    def text(name: str) -> str:
        return (over / name).read_text() if (over / name).exists() else f"({name} was not reached)"

    told = "\n".join(f"-- {name}\n{text(name)[-1500:]}" for name in ("apt", "daemon", "status"))
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}\n{told}"
    before, beside, removed, after = (
        {path for path in text(name).splitlines() if not path.startswith("./var/lib/healthd")}
        for name in ("before", "with", "removed", "after")
    )
    assert before - beside == set()
    strange = [path for path in beside - before if not path.startswith((f"./{SITE}/", "./usr/share/doc/healthd-nccl"))]
    assert strange == []
    assert (removed ^ before, after ^ before) == (set(), set())
    assert text("verified") == ""
    assert " · observe · " in text("status")
    for name in ("nvlink", "loopback"):
        (check,) = json.loads(text(f"{name}.json"))["checks"]
        assert (check["outcome"], check["reason"]) == ("not_applicable", "no NVIDIA GPU on the PCI bus")
    version, library = text("library").split()
    assert library == f"/{SITE}/nvidia/nccl/lib/libnccl.so.2"
    assert int(version) == locked_version()
    missing = json.loads(text("child"))["missing"]
    assert missing.startswith("NVIDIA's driver is not installed: libcuda.so.1")


def locked_version() -> int:
    """libnccl's number for the version in the lock: 22705 for 2.27.5 (nccl.h, NCCL_VERSION)."""
    lock = (ROOT / "requirements/nccl.txt").read_text(encoding="utf-8")
    (found,) = re.findall(r"^nvidia-nccl-cu12==(\d+)\.(\d+)\.(\d+)", lock, re.MULTILINE)
    major, minor, patch = map(int, found)
    return major * 10000 + minor * 100 + patch


def test_the_deb_beside_healthd_on_debian(own_debs: tuple[Path, Path], nccl: Path, thin: Path, tmp_path: Path) -> None:
    """Refused without healthd and beside another revision. Beside its own, libnccl answers, and what is missing is
    NVIDIA's driver; removed while the daemon runs, it leaves nothing. Both are upgraded together."""
    first, second = built("deb", tmp_path, nccl), built("deb", tmp_path, thin, REVISION="2")
    lived(DEBIAN, tmp_path, own_debs[0], first, own_debs[1], second)
    assert f"healthd-nccl : Depends: healthd (= {__version__}-1)" in (tmp_path / "alone").read_text()
    assert f"healthd-nccl : Depends: healthd (= {__version__}-2)" in (tmp_path / "other").read_text()
    assert (tmp_path / "upgraded").read_text().splitlines() == [
        f"healthd {__version__}-2 install ok installed",
        f"healthd-nccl {__version__}-2 install ok installed",
    ]


def test_the_rpm_beside_healthd(own: Path, nccl: Path, thin: Path, tmp_path: Path) -> None:
    """The same by RPM, in a root of Debian 12. A healthd in a venv is not enough: it needs that healthd's Python."""
    if shutil.which("rpmbuild") is None:
        pytest.skip("no rpmbuild here: apt-get install rpm")
    rpms = [
        built("rpm", tmp_path, staged, package, REVISION=revision)
        for revision, of_nccl in (("1", nccl), ("2", thin))
        for package, staged in (("healthd", own), ("healthd-nccl", of_nccl))
    ]
    lived(AMAZON, tmp_path, *rpms)

    def needed(name: str) -> set[str]:
        return set(re.findall(r"^\s+(\S.*) is needed by healthd-nccl", (tmp_path / name).read_text(), re.MULTILINE))

    release = rpms[0].name.removeprefix("healthd-").rpartition(".")[0].rpartition(".")[0]
    libraries = {f"{name}()(64bit)" for name in OF_THE_SYSTEM}
    assert needed("alone") == {f"healthd = {release}", "/opt/healthd/bin/python3.13", *libraries}
    assert needed("other") == {f"healthd = {__version__}-2", *libraries}
    assert needed("missing") == libraries
    names = [line.rpartition(".")[0] for line in (tmp_path / "upgraded").read_text().splitlines()]
    assert names == [f"healthd-{__version__}-2", f"healthd-nccl-{__version__}-2"]


@pytest.fixture(params=["nccl", "nccl_arm64"])
def staged_nccl(request: pytest.FixtureRequest) -> tuple[Path, str]:
    """The tree of each processor, and that processor as readelf names it."""
    folder: Path = request.getfixturevalue(request.param)
    here = {"x86_64": "X86-64", "aarch64": "AArch64"}[os.uname().machine]
    return folder, {"nccl": here, "nccl_arm64": "AArch64"}[request.param]


def test_its_machine_code_is_for_the_processor(staged_nccl: tuple[Path, str]) -> None:
    """Every library, libnccl, CUDA's bindings and NumPy's among them."""
    folder, processor = staged_nccl
    found = {
        path.name: re.findall(r"Machine: .*?(\S+)$", read("--file-header", path), re.M) for path in machine_code(folder)
    }
    assert {name.partition(".")[0] for name in found} >= {"libnccl", "driver", "runtime", "nccl", "_multiarray_umath"}
    assert {name for name, machine in found.items() if machine != [processor]} == set()


def test_it_needs_the_c_and_cpp_libraries_of_debian_11(staged_nccl: tuple[Path, str]) -> None:
    """glibc 2.31, the C++ library and zlib, which the packages ask for; every other library is its own."""
    files = list(machine_code(staged_nccl[0]))
    versions = {each for path in files for each in re.findall(r"Name: GLIBC_([\d.]+)", read("--version-info", path))}
    assert max(tuple(map(int, each.split("."))) for each in versions) <= OLDEST_GLIBC
    needed = {name for path in files for name in re.findall(r"\(NEEDED\).*\[(.*)\]", read("--dynamic", path))}
    others = {name for name in needed if not OF_GLIBC.fullmatch(name)} - {path.name for path in files}
    assert others == OF_THE_SYSTEM


def test_the_library_is_found_and_the_rest_left_out(staged_nccl: tuple[Path, str]) -> None:
    """No start of healthd's Python reads a .pth of it; nothing for compilers is there; RECORD names what is; each part
    has its licence's text."""
    site = staged_nccl[0] / SITE
    suffixes = {path.suffix for path in site.rglob("*") if path.is_file()}
    assert suffixes & {".pth", ".h", ".a", ".c", ".cuh", ".bc", ".ltoir", ".pyx", ".pxd"} == set()
    for record in site.glob("*.dist-info/RECORD"):
        with record.open(encoding="utf-8", newline="") as lines:
            assert [row[0] for row in csv.reader(lines) if not (site / row[0]).exists()] == []
    without = [info.name for info in site.glob("*.dist-info") if not list(info.glob("licenses/*"))]
    assert without == []
    modules = list(site.rglob("*.py"))
    kinds = {path.read_bytes()[4:8] for path in site.rglob("*.pyc")}
    assert (len(modules), kinds) == (len(list(site.rglob("*.pyc"))), {b"\x01\x00\x00\x00"}), "PEP 552: unchecked"


def test_the_rpm_names_the_licence_of_every_part(nccl: Path, thin: Path, tmp_path: Path) -> None:
    """The expression of the spec has each one that the parts' own metadata have, NVIDIA's among them."""
    if shutil.which("rpmbuild") is None:
        pytest.skip("no rpmbuild here: apt-get install rpm")
    argv = ["rpm", "-qp", "--queryformat", "%{LICENSE}", str(built("rpm", tmp_path, thin))]
    named = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    texts = [path.read_text("utf-8") for path in (nccl / SITE).glob("*.dist-info/METADATA")]
    wanted = [re.findall(r"^License-Expression: (.*)$", text, re.MULTILINE)[0] for text in texts]
    assert "LicenseRef-NVIDIA-Proprietary" in wanted
    assert [each for each in wanted if each not in named] == []
