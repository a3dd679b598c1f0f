"""The root of a clean Debian or Ubuntu: made once by debootstrap, which knows their mirrors, and kept in a cache.

HEALTHD_TEST_DEBIAN_MIRROR names another mirror of Debian, which then stands in the root's own sources.list as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
UBUNTU_KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
# Debian 13 has a package of it, and Debian 12 has none.
_WITH_UBUNTU_KEYRING = """
cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
chroot "$1" apt-get update -qq
chroot "$1" apt-get install -y -qq --no-install-recommends ubuntu-archive-keyring
chroot "$1" apt-get clean
"""
SCRIPTS = Path("/usr/share/debootstrap/scripts")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "healthd-tests"
NO_DEBIAN = "no Debian to be had here (HEALTHD_TEST_DEBIAN_MIRROR names another mirror)"
NO_UBUNTU = "no Ubuntu to be had here"


def debian_root(suite: str, script: str = "", arguments: Sequence[str] = (), *, architecture: str = "") -> Path:
    """The root of a minimal Debian. Nobody may write in it: lay an overlay over it, or copy it.

    ``script``: what sh does to a new one, in a mount namespace of its own, given the root and then ``arguments``. A
    root of another script, or of other arguments, is another root. ``architecture``: Debian's name of a processor whose
    programs run here (``emulated``), "" for this machine's. Where none can be made the test is skipped; a script
    that fails is a failure.
    """
    recipe = "\0".join((script, *arguments)).encode()
    name = f"debian-{suite}-{architecture}" if architecture else f"debian-{suite}"
    if script:
        name += f"-{hashlib.sha256(recipe).hexdigest()[:12]}"
    options = [f"--keyring={KEYRING}", *([f"--arch={architecture}"] if architecture else [])]
    mirror = os.environ.get("TEST_DEBIAN_MIRROR", "")
    with _unfinished(name) as root:
        if root is not None:
            _bootstrapped(NO_DEBIAN, *options, suite, str(root), *([mirror] if mirror else []))
            if script:
                trouble = _failed(["unshare", "--mount", "sh", "-c", script, "sh", str(root), *arguments])
                assert not trouble, f"the root of {suite} was not finished: {trouble}"
    return CACHE / name


def ubuntu_root(suite: str) -> Path:
    """The root of a minimal Ubuntu, on the same terms."""
    with _unfinished(f"ubuntu-{suite}") as root:
        if root is not None:
            keyring = UBUNTU_KEYRING
            if not keyring.exists():
                keyring = debian_root("trixie", _WITH_UBUNTU_KEYRING) / keyring.relative_to("/")
            # A debootstrap that is older than a release does not know it; since 17.10 all of them are made alike.
            alike = [] if (SCRIPTS / suite).exists() else ["", str(SCRIPTS / "gutsy")]
            _bootstrapped(NO_UBUNTU, f"--keyring={keyring}", suite, str(root), *alike)
    return CACHE / f"ubuntu-{suite}"


@contextlib.contextmanager
def _unfinished(name: str) -> Iterator[Path | None]:
    """A folder for a root of this name, which goes into the cache at the end; None where the cache has it."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for chroot and namespaces")
    if shutil.which("debootstrap") is None or not KEYRING.exists():
        pytest.skip("no debootstrap here, or no keyring of Debian: apt-get install debootstrap debian-archive-keyring")
    root = CACHE / name
    if root.exists():
        yield None
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = CACHE / f".{name}.{os.getpid()}"
    try:
        yield unfinished
        if not root.exists():  # another run has made it meanwhile
            unfinished.rename(root)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _bootstrapped(without: str, *words: str) -> None:
    if trouble := _failed(["nice", "debootstrap", "--variant=minbase", *words]):
        pytest.skip(f"{without}: {trouble}")


def _failed(argv: Sequence[str]) -> str:
    """Run it; the end of what it said if it failed."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=1800)
    return "" if done.returncode == 0 else f"{argv[0]}: exit {done.returncode}: {(done.stdout + done.stderr)[-1000:]}"
