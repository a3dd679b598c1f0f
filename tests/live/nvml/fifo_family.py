"""The family "fs" for a mount that takes its time: statvfs of a FIFO waits until another process has written to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from healthd.probe.fs_ops import FsFamily


def family(_arguments: Sequence[str]) -> FifoFamily:
    return FifoFamily()


class FifoFamily(FsFamily):
    """Answers as its base does, after the writer of a FIFO has closed it."""

    def answer(self, op: str, args: Mapping[str, Any]) -> Any:
        path = str(args["path"])
        if stat.S_ISFIFO(os.stat(path).st_mode):
            with open(path, "rb") as fifo:
                fifo.read()
        return super().answer(op, args)
