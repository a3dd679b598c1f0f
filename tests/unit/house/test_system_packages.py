"""What tests/system-packages.sh installs for each target of the Makefile that calls it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.limits import limit_s
from tests.support.running import ROOT

CALLS = re.compile(r"^(\S+): [^\n]*\n\t@sh tests/system-packages\.sh([^\n]*)$", re.MULTILINE)
FOR_TEST = {"gcc", "rpm", "prometheus", "fuse3", "shellcheck", "slurm-client", "chromium"}
MOST_FOR_KUBERNETES = {"gcc", "libc6-dev", "debootstrap", "debian-archive-keyring", "iproute2", "qemu-user-static"}
MOST_FOR_KUBERNETES |= {"buildah", "mmdebstrap"}


def missing(folder: Path, *sets: str) -> set[str]:
    """What these sets install on a machine that has nothing but its folders sbin."""
    (folder / "uname").symlink_to("/bin/uname")
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "tests/system-packages.sh"), *sets],
        env={"PATH": str(folder)},
        check=True,
        capture_output=True,
        text=True,
        timeout=limit_s(60),
    )
    said, _, names = done.stderr.splitlines()[0].partition("not installed:")
    assert "no apt-get here" in said
    return set(names.split())


@pytest.mark.process
@pytest.mark.parametrize(("target", "installs"), [("test", FOR_TEST), ("test-kubernetes", {"gcc", "buildah"})])
def test_what_a_target_installs(tmp_path: Path, target: str, installs: set[str]) -> None:
    """The Makefile names its sets; without one it is what `make test` needs. Kubernetes needs no Slurm, no browser."""
    sets = dict(CALLS.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    found = missing(tmp_path, *sets[target].split())
    assert installs <= found
    assert target == "test" or found <= MOST_FOR_KUBERNETES
