"""What packages are made of, and the .rpm: built, installed, upgraded and removed in a clean root.

They are for this machine's distribution alone, which takes seconds; test_distributions.py has those of a release.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from healthd import __version__
from tests.installing.machine import clean_root, release
from tests.installing.page import run
from tests.packaging.image import files_of
from tests.support.limits import limit_s
from tests.support.running import ROOT
from tests.support.scripts import load_script

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.process]

# Root's own tree below an overlay, so that scriptlets run and leave no trace.
RPM_ROOT = """
set -eu
base=$1 over=$2 memory=$2/memory root=$2/memory/root
mkdir "$memory"
mount -t tmpfs -o mode=755 tmpfs "$memory" # a package manager waits for a disk after each of its files
mkdir "$memory/upper" "$memory/work" "$root"
mount -t overlay -o "lowerdir=$base,upperdir=$memory/upper,workdir=$memory/work" overlay "$root"
mount -t tmpfs tmpfs "$root/dev"
: >"$root/dev/null"
mount --bind /dev/null "$root/dev/null"
list() {
    cd "$root"
    find . -xdev \\( -path ./dev -o -path './var/lib/rpm*' -o -path ./usr/lib/sysimage \\) -prune -o -print | sort
    cd /
}
# Where this machine's own rpm comes from Debian, it asks to be told that a package of RPM is meant.
FORCE=
! rpm --help | grep -q force-debian || FORCE=--force-debian
book() { rpm --root "$root" --dbpath /var/lib/rpm $FORCE "$@"; }
mkdir -p "$root/etc/slurm"
echo 'Prolog=/usr/lib/healthd/slurm/prolog.sh' >"$root/etc/slurm/slurm.conf"
list >"$over/before"
book --nodeps --install "$3"
echo "mode = 1" >"$root/etc/healthd/config.toml"
mkdir -p "$root/var/lib/healthd"
chroot "$root" systemctl enable healthd.service 2>/dev/null
cat "$root/usr/lib/systemd/system/healthd.service" >"$over/unit"
book --nodeps --upgrade "$4"
book --query healthd >"$over/version"
chroot "$root" systemctl is-enabled healthd.service >"$over/enabled"
list >"$over/upgraded"
book --nodeps --verify healthd >"$over/verified"
book --nodeps --erase healthd 2>"$over/told"
list >"$over/after"
"""


def test_the_tree_is_compiled_and_names_no_place_of_its_making(staged: Path) -> None:
    """Every module has bytecode that is not compared with its source, and the venv holds one command: ours."""
    (site,) = (staged / "opt/healthd/lib").glob("python3*")
    sources = [path for path in files_of(site, "*.py") if "/site-packages/healthd/" in path.as_posix()]
    assert len(sources) > 100
    for path in sources:
        (compiled,) = (path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc")
        assert compiled.read_bytes()[4:8] == b"\x01\x00\x00\x00", f"{compiled}: not an unchecked hash (PEP 552)"
    services = [path for path in (site / "site-packages/botocore/data").iterdir() if path.is_dir()]
    assert 5 < len(services) < 20, "packaging/trim_botocore.py was not run"
    names = {path.name for path in (staged / "opt/healthd/bin").iterdir()}
    assert {name for name in names if not name.startswith("python")} == {"healthd"}
    assert (staged / "opt/healthd/bin/healthd").read_text().startswith("#!/opt/healthd/bin/python\n")


def test_the_tree_has_the_manual_the_completions_and_the_how_tos(staged: Path) -> None:
    """As the staged healthd itself makes them: what an operator without the network reads and types."""
    share = staged / "usr/share"
    made = load_script("manual_make", ROOT / "packaging/manual/manual.py").made()
    assert {name: (share / name).read_text(encoding="utf-8") for name in made} == made
    pages = {path.name for path in (share / "doc/healthd/how-to").iterdir()}
    assert pages == {path.name for path in (ROOT / "docs/how-to").glob("*.md")}


def test_the_rpm_installs_upgrades_and_removes(staged: Path, tmp_path: Path) -> None:
    """Built by rpmbuild from the spec; its scriptlets keep what was enabled and configured, and clear up at the end."""
    if shutil.which("rpmbuild") is None:
        pytest.skip("no rpmbuild here: apt-get install rpm")
    (python,) = (
        path.name for path in (staged / "opt/healthd/bin").iterdir() if re.fullmatch(r"python3\.\d+", path.name)
    )
    rpms = [
        run(
            "sh",
            "packaging/rpm/build.sh",
            tmp_path,
            STAGED=str(staged),
            REVISION=revision,
            RPM_LEVEL="1",
        )
        for revision in ("1", "2")
    ]
    required = subprocess.run(["rpm", "-qp", "--requires", rpms[0]], check=True, capture_output=True, text=True)
    assert {python, "systemd"} <= set(required.stdout.split("\n"))
    over = tmp_path / "over"
    over.mkdir()
    run("unshare", "--mount", "sh", "-c", RPM_ROOT, "sh", clean_root(), over, *rpms)

    def lines(name: str) -> set[str]:
        return set((over / name).read_text().splitlines())

    assert (over / "version").read_text().startswith(f"healthd-{__version__}-2")
    assert (over / "unit").read_text() == (ROOT / "packaging/systemd/healthd.service").read_text()
    assert lines("enabled") == {"enabled"}
    assert "./etc/healthd/config.toml" in lines("upgraded")
    assert lines("verified") == set()
    assert lines("after") - lines("before") == {
        "./etc/healthd",
        "./etc/healthd/config.toml",
        "./var/lib/healthd",
    }
    assert "/etc/slurm/slurm.conf still names hooks that go now" in (over / "told").read_text()


def test_a_deb_of_this_distribution_depends_on_its_python(staged: Path, tmp_path: Path) -> None:
    """Built with PYTHON, without root: its name says where it belongs, and it needs the Python of its venv."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here: apt-get install dpkg")
    deb = Path(run("sh", "packaging/deb/build.sh", tmp_path, STAGED=str(staged), DEB_COMPRESSION="none"))
    here = release()
    assert deb.name.startswith(f"healthd_{__version__}-1~{here['ID']}{here.get('VERSION_ID', '')}_")
    interpreter = (staged / "opt/healthd/bin/python").resolve().name
    depends = run("dpkg-deb", "-f", deb, "Depends").split(", ")
    assert depends == [interpreter, "libc6 (>= 2.31)", "init-system-helpers"]


def test_rpmlint_finds_no_error_in_the_spec() -> None:
    """rpmlint's errors are none but the one that a private folder below /usr/lib, which scripts share, must raise."""
    if shutil.which("rpmlint") is None:
        pytest.skip("no rpmlint here: apt-get install rpmlint")
    argv = ["rpmlint", str(ROOT / "packaging/rpm/healthd.spec")]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60))
    errors = [line for line in done.stdout.splitlines() if ": E: " in line]
    assert [line for line in errors if "hardcoded-library-path in /usr/lib/healthd" not in line] == []
    assert "1 specfiles checked" in done.stdout
