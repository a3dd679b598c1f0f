"""A stand-in for nccl4py's ``nccl.core``, on the memory of cuda_sim.c; tests install it as a package of that name.

It has the names, argument forms and enumerations of nccl4py 0.6.0 that healthd uses, and prints what NCCL's log says at
NCCL_DEBUG=INFO. ACTIVE_SIM_FAULT: nccl_init, nccl_async, nccl_wrong, nccl_swapped,
nccl_hang, nccl_slow. ACTIVE_SIM_NETWORK: what it
says it uses. ACTIVE_SIM_NOTE: a file for its environment and its pid.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nccl.bindings.nccl import NCCLError

SUM = 0
_MIB = 1 << 20
_FAULT = os.environ.get("ACTIVE_SIM_FAULT", "")
_queued: list[tuple[Any, Any]] = []
_reduced = False


class NcclInvalid(Exception):
    """An argument that nccl4py refuses."""


class Communicator:
    """One rank. ``init_all`` is the only way to make one."""

    @classmethod
    def init_all(cls, devices: int) -> list[Communicator]:
        """One communicator for each of the first ``devices`` GPUs."""
        _note()
        _log("NCCL version 2.27.5+cuda12.9")
        network = os.environ.get("ACTIVE_SIM_NETWORK", "Libfabric")
        _log(f"sim:1:1 [0] NCCL INFO Using network {network}")
        if _FAULT == "nccl_init":
            _log("sim:1:1 [0] transport.cc:42 NCCL WARN no transport between rank 0 and rank 1")
            raise NCCLError("SystemError (2): unhandled system error")
        return [cls() for _ in range(devices)]

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: int, *, stream: int | None = None) -> None:
        """Queue one rank's part."""
        assert op == SUM
        assert isinstance(stream, int)
        assert stream > 0
        _queued.append((sendbuf, recvbuf))

    def get_async_error(self) -> int:
        """ncclSuccess, or ncclRemoteError."""
        return 6 if _FAULT == "nccl_async" else 0


@contextmanager
def group() -> Iterator[None]:
    """Perform what was queued; the sum is made once, since it stays the same."""
    yield
    global _reduced  # noqa: PLW0603 - one process, one test
    if _FAULT == "nccl_hang":
        time.sleep(3600)
    if _FAULT == "nccl_slow":
        time.sleep(0.01)
    if not _reduced:
        _reduced = True
        _reduce()
    _queued.clear()


def get_error_string(result: int) -> str:
    """As NCCL has it."""
    return {6: "remote process exited or there was a network error"}[result]


def _reduce() -> None:
    sent = [_words(send) for send, _ in _queued]
    total = array.array("f", map(sum, zip(*sent, strict=True)))
    for rank, (_, receive) in enumerate(_queued):
        if _FAULT == "nccl_wrong" and rank == len(_queued) - 1:
            total[-1] += 1
            total[0] += 1
        if _FAULT == "nccl_swapped":
            total = total[_MIB:] + total[:_MIB]
        address, _ = receive.__cuda_array_interface__["data"]
        ctypes.memmove(address, total.tobytes(), len(total) * 4)


def _words(buffer: Any) -> array.array[float]:
    face = buffer.__cuda_array_interface__
    assert face["typestr"] == "<f4"
    assert face["version"] == 3
    return array.array("f", ctypes.string_at(face["data"][0], face["shape"][0] * 4))


def _log(line: str) -> None:
    with open(os.environ["NCCL_DEBUG_FILE"], "a", encoding="utf-8") as log:
        log.write(f"{line}\n")


def _note() -> None:
    """The environment as it came here; and a grandchild, in a session of its own, that must not outlive the test."""
    if path := os.environ.get("ACTIVE_SIM_NOTE"):
        orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        with open(f"{path}.new", "w", encoding="utf-8") as note:
            json.dump({"environ": dict(os.environ), "pids": [os.getpid(), orphan.pid], "guard": os.getppid()}, note)
        os.rename(f"{path}.new", path)
