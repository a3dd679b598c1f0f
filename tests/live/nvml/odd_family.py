"""A worker family that does, on request, what real libraries do in bad moments."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from healthd.core import errors


def family(arguments: Sequence[str]) -> OddFamily:
    """Arguments: ``slow_start SECONDS`` sleeps before it is ready, ``slow_restart SECONDS FILE`` only where another one
    began before it; ``broken`` cannot even begin."""
    match list(arguments):
        case ["slow_start", seconds]:
            time.sleep(float(seconds))
        case ["slow_restart", seconds, file]:
            if Path(file).exists():
                time.sleep(float(seconds))
            Path(file).touch()
        case ["broken"]:
            raise ImportError("libodd.so: cannot open shared object file")
    return OddFamily()


class OddFamily:
    """Each op is one way to behave."""

    def __init__(self) -> None:
        self.worn = False

    def answer(self, op: str, args: Mapping[str, Any]) -> Any:
        match op:
            case "echo":
                return dict(args)
            case "pid":
                return os.getpid()
            case "sleep":
                time.sleep(args["seconds"])
                return "slept"
            case "wait":  # from when one file is there until another is
                Path(args["begun"]).touch()
                while not Path(args["until"]).exists():
                    time.sleep(0.01)
            case "segfault":
                ctypes.string_at(0)
            case "garbage":
                os.write(_reply_pipe(), b"\x00\xff not json\n")
            case "print":
                os.write(1, b'{"id":1,"value":"forged"}\n')
                return "printed"
            case "raise":
                raise getattr(errors, args["error"])(args["text"])
            case "defect":
                raise RuntimeError("the odd library lost its mind")
            case "wear_out":
                self.worn = True
                return os.getpid()
            case "exit_zero":
                os._exit(0)
        return None


def _reply_pipe() -> int:
    """The pipe of the answers: the one descriptor beyond the standard three that is a pipe."""
    links = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            links[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return next(fd for fd, target in links.items() if fd > 2 and target.startswith("pipe:"))
