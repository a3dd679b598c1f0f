"""Runs programs of another processor on this machine: qemu's user mode, which the kernel calls for them.

packaging/container/aarch64.sh registers that handler, and takes it back when its command ends, however the tests end.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.running import ROOT

_HOLD = "echo ready && exec cat >/dev/null"


@contextlib.contextmanager
def aarch64_programs() -> Iterator[None]:
    """Programs of aarch64 run meanwhile; the test is skipped where they cannot."""
    argv = ["sh", str(ROOT / "packaging/container/aarch64.sh"), "sh", "-c", _HOLD]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as holder:
        output = holder.stdout.readline() if holder.stdout else b""
        if output != b"ready\n":
            pytest.skip(f"no programs of aarch64 run here: {output.decode(errors='replace').strip()}")
        yield  # Popen closes its input, whatever happens, and waits for its end
