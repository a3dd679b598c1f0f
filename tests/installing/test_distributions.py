"""One package for every distribution: in minimal roots it is installed, tried, started, removed and purged.

They have no Python of their own, no network but loopback, and no systemd: test_deb.py boots one that has. The .rpm goes
into a root that keeps its certificates where Amazon Linux does, by this machine's rpm. Those for arm64 go into a root
of arm64, whose programs qemu runs where this machine is of another processor.
"""

from __future__ import annotations

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
from tests.support.debian_root import debian_root, ubuntu_root
from tests.support.emulated import aarch64_programs
from tests.support.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.process]

ROOTS = {
    "Debian 11": ("bullseye", debian_root),
    "Debian 12": ("bookworm", debian_root),
    "Debian 13": ("trixie", debian_root),
    "Ubuntu 22.04": ("jammy", ubuntu_root),
    "Ubuntu 24.04": ("noble", ubuntu_root),
}
LIFE = """
hash=$1 package=$2
cp "$package" "$over/handshake.py" "$over/site.pem" "$over/site.key" "$root/run/"
case $package in
*.deb)
    trusted=$root/etc/ssl/certs/$hash.0
    install() { inside apt-get install -y -qq --no-install-recommends "/run/${package##*/}"; }
    remove() { inside apt-get remove -y -qq healthd; }
    purge() { inside apt-get purge -y -qq healthd; }
    ;;
*.rpm)
    trusted=$root/etc/pki/tls/cert.pem
    rm -rf "$root/etc/ssl"
    # This machine's rpm takes a package of another processor only with --ignorearch; what it needs is no .rpm here.
    install() { book --nodeps --install --ignorearch "$package"; }
    remove() { book --nodeps --erase healthd; }
    purge() { rm -r "$root/etc/healthd" "$root/var/lib/healthd"; }
    ;;
esac
if inside sh -c 'command -v python3'; then exit 3; fi
list >"$over/before"
install >"$over/installed" 2>&1
inside healthd version >"$over/version"
inside healthd explain gpu.xid.79 >"$over/explained"
inside /opt/healthd/bin/python -IBc "$LIBRARIES" >"$over/libraries"
trusts() {
    inside /opt/healthd/bin/python -I /run/handshake.py /run/site.pem /run/site.key
}
trusts >"$over/refused"
mkdir -p "${trusted%/*}"
cp "$over/site.pem" "$trusted"
trusts >"$over/trusted"
rm "$trusted"
rmdir --ignore-fail-on-non-empty -p "${trusted%/*}"
code=0
inside healthd check --no-daemon --json >"$over/verdict" 2>"$over/errors" || code=$?
echo $code >"$over/code"
start_daemon
inside healthd check --json >"$over/asked" || test $? -le 2
stop_daemon
remove >"$over/removed" 2>&1
test -e "$root/etc/healthd/config.toml"
purge >"$over/purged" 2>&1
list >"$over/after"
"""
LIBRARIES = """
import bz2, ctypes, hashlib, lzma, sqlite3, ssl, sysconfig, zlib
ctypes.CDLL(None)
print(sysconfig.get_platform(), sysconfig.get_config_var("MULTIARCH"))
"""


@pytest.fixture
def deb(own_debs: tuple[Path, Path]) -> Path:
    """The package for this machine's processor."""
    return own_debs[0]


def certified(folder: Path) -> str:
    """A certificate for localhost that signs itself, with its key; the name that OpenSSL looks for in a folder."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here: apt-get install openssl")
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=localhost"]
    extensions = ("subjectAltName=DNS:localhost", "keyUsage=critical,digitalSignature,keyCertSign")
    named = [word for each in extensions for word in ("-addext", each)]
    run(*request, *named, "-keyout", folder / "site.key", "-out", folder / "site.pem")
    return run("openssl", "x509", "-noout", "-hash", "-in", folder / "site.pem")


def lived(base: Path, package: Path, over: Path, machine: str = "") -> None:
    """From installation to purge in a root over ``base``; what every distribution must show.

    ``machine``: the processor that the root is of, as uname names it, "" for this machine's.
    """
    machine = machine or os.uname().machine
    shutil.copy(ROOT / "tests/installing/handshake.py", over)
    done = ran(LIFE, base, over, certified(over), package, LIBRARIES=LIBRARIES)

    def text(name: str) -> str:
        return (over / name).read_text() if (over / name).exists() else f"({name} was not reached)"

    assert done.returncode != 3, f"this root has a Python of its own: {done.stdout}"
    told = "\n".join(f"-- {name}\n{text(name)[-1500:]}" for name in ("installed", "errors", "init", "daemon", "status"))
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}\n{told}"
    assert text("version") == f"healthd {__version__}\n"
    assert text("libraries") == f"linux-{machine} {machine}-linux-gnu\n"
    assert text("explained").startswith("gpu.xid.79: ")
    assert "self-signed" in text("refused"), "a certificate that the distribution does not trust"
    assert text("trusted") == "TLSv1.3\n"
    verdict, asked = json.loads(text("verdict")), json.loads(text("asked"))
    assert int(text("code")) in (0, 1, 2)
    assert verdict["schema"] == asked["schema"] == "healthd.verdict/v1"
    assert {each["name"] for each in verdict["checks"]} >= {"host.clock", "host.filesystems", "kmsg.reader"}
    broken = [each for each in verdict["checks"] if re.search(r"\w+Error\b", str(each.get("reason", "")))]
    assert broken == []
    assert " · observe · " in text("status")
    assert set(text("after").splitlines()) ^ set(text("before").splitlines()) == set()


@pytest.mark.parametrize("name", ROOTS)
def test_one_deb_from_installation_to_purge_on_each_distribution(name: str, deb: Path, tmp_path: Path) -> None:
    """Without a Python there, with what the root has alone: version, verdict, daemon, certificates of the
    distribution; after the purge it is as it was."""
    suite, root = ROOTS[name]
    lived(root(suite), deb, tmp_path)


def test_the_package_is_of_no_distribution(deb: Path) -> None:
    """Neither its name nor what it depends on tells where it was built."""
    assert deb.name == f"healthd_{__version__}-1_{run('dpkg', '--print-architecture')}.deb"
    depends = run("dpkg-deb", "-f", deb, "Depends").split(", ")
    assert depends == ["libc6 (>= 2.31)", "init-system-helpers"]


def test_one_rpm_from_installation_to_removal(own: Path, tmp_path: Path) -> None:
    """It needs no Python, runs, and trusts the certificates of Amazon Linux, which are one file. Its name has the
    processor."""
    if shutil.which("rpmbuild") is None:
        pytest.skip("no rpmbuild here: apt-get install rpm")
    rpm = Path(run("sh", "packaging/rpm/build.sh", tmp_path, STAGED=str(own), RPM_LEVEL="1"))
    assert rpm.name == f"healthd-{__version__}-1.{os.uname().machine}.rpm"
    required = subprocess.run(["rpm", "-qp", "--requires", rpm], check=True, capture_output=True, text=True).stdout
    assert {"systemd", "glibc >= 2.31"} <= set(required.splitlines())
    assert "python" not in required
    lived(debian_root("bookworm"), rpm, tmp_path)


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_both_packages_for_arm64_from_installation_to_purge(kind: str, own_arm64: Path, tmp_path: Path) -> None:
    """On Debian 12 for arm64 they show the same; their names have the processor."""
    if kind == "rpm" and shutil.which("rpmbuild") is None:
        pytest.skip("no rpmbuild here: apt-get install rpm")
    quick = {"DEB_COMPRESSION": "none", "RPM_LEVEL": "1"}
    built = run("sh", f"packaging/{kind}/build.sh", tmp_path, STAGED=str(own_arm64), ARCH="arm64", **quick)
    names = {"deb": f"healthd_{__version__}-1_arm64.deb", "rpm": f"healthd-{__version__}-1.aarch64.rpm"}
    assert Path(built).name == names[kind]
    with aarch64_programs():
        lived(debian_root("bookworm", architecture="arm64"), Path(built), tmp_path, "aarch64")
