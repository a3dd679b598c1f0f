"""The root of a clean Debian: made once by debootstrap, which knows Debian's mirror, and kept in the tests' cache.

HEALTHD_TEST_DEBIAN_MIRROR names another mirror, which then stands in the root's own sources.list as well.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "healthd-tests"
NO_DEBIAN = "no Debian to be had here (HEALTHD_TEST_DEBIAN_MIRROR names another mirror)"


def debian_root(suite: str, script: str = "", arguments: Sequence[str] = (), *, architecture: str = "") -> Path:
    """The root of a minimal Debian. Nobody may write in it: lay an overlay over it, or copy it.

    ``script``: what sh does to a new one, in a mount namespace of its own, given the root and then ``arguments``. A
    root of another script, or of other arguments, is another root. ``architecture``: Debian's name of a processor whose
    programs run here (``emulated``), "" for this machine's. Where none can be made the test is skipped; a script
    that fails is a failure.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root, for chroot and namespaces")
    if shutil.which("debootstrap") is None or not KEYRING.exists():
        pytest.skip("no debootstrap here, or no keyring of Debian: apt-get install debootstrap debian-archive-keyring")
    recipe = "\0".join((script, *arguments)).encode()
    name = f"debian-{suite}-{architecture}" if architecture else f"debian-{suite}"
    root = CACHE / (f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}" if script else name)
    if root.exists():
        return root
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = CACHE / f".{root.name}.{os.getpid()}"
    try:
        foreign = [f"--arch={architecture}"] if architecture else []
        if trouble := _failed(["nice", "debootstrap", "--variant=minbase", *foreign, *_source(suite, unfinished)]):
            pytest.skip(f"{NO_DEBIAN}: {trouble}")
        if script:
            trouble = _failed(["unshare", "--mount", "sh", "-c", script, "sh", str(unfinished), *arguments])
            assert not trouble, f"the root of {suite} was not finished: {trouble}"
        if not root.exists():  # another run has made it meanwhile
            unfinished.rename(root)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return root


def _source(suite: str, folder: Path) -> list[str]:
    mirror = os.environ.get("TEST_DEBIAN_MIRROR", "")
    return [f"--keyring={KEYRING}", suite, str(folder), *([mirror] if mirror else [])]


def _failed(argv: Sequence[str]) -> str:
    """Run it; the end of what it said if it failed."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=1800)
    return "" if done.returncode == 0 else f"{argv[0]}: exit {done.returncode}: {(done.stdout + done.stderr)[-1000:]}"
