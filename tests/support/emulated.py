"""Runs programs of another processor on this machine: qemu's user mode, which the kernel calls for them (binfmt_misc).

Where such a handler is registered, it is used. Else root registers one, in a mount namespace of a process that holds it
for as long as it is needed and takes it back when its input ends, however the tests end.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

HANDLERS = Path("/proc/sys/fs/binfmt_misc")
# e_ident of a 64-bit little-endian ELF, any ABI; e_type EXEC or DYN; e_machine 183 (EM_AARCH64 in elf.h).
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
_NAME = "healthd-tests-aarch64"
# F: the kernel opens the interpreter now, so that a chroot need not hold it (admin-guide/binfmt-misc.rst).
_HOLD = f"""
set -eu
mount -t binfmt_misc binfmt_misc {HANDLERS}
test ! -e {HANDLERS}/{_NAME} || echo -1 >{HANDLERS}/{_NAME}
printf '%s' "$1" >{HANDLERS}/register
echo ready
cat >/dev/null
echo -1 >{HANDLERS}/{_NAME}
"""


@contextlib.contextmanager
def aarch64_programs() -> Iterator[None]:
    """Programs of aarch64 run meanwhile; the test is skipped where they cannot."""
    if platform.machine() == "aarch64" or _is_registered():
        yield
        return
    qemu = shutil.which("qemu-aarch64-static")
    if qemu is None:
        pytest.skip("no qemu-aarch64-static here: apt-get install qemu-user-static")
    if os.geteuid() != 0:
        pytest.skip("needs root, to have the kernel call qemu for programs of aarch64")
    rule = f":{_NAME}:M::{_MAGIC}:{_MASK}:{qemu}:F"
    argv = ["unshare", "--mount", "sh", "-c", _HOLD, "sh", rule]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as holder:
        output = holder.stdout.readline() if holder.stdout else b""
        if output != b"ready\n":
            pytest.skip(f"the kernel here takes no handler of qemu's: {output.decode(errors='replace').strip()}")
        yield  # Popen closes its input, whatever happens, and waits for its end


def _is_registered() -> bool:
    """Whether qemu is called for aarch64 here already, as docker or the package qemu-user-static set it up."""
    with contextlib.suppress(OSError):
        return "enabled" in (HANDLERS / "qemu-aarch64").read_text(encoding="ascii")
    return False
