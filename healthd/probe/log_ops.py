"""The family "logs": NCCL's words in the logs of a job, which may lie on a file system that never answers. Runs in the
worker only."""

from __future__ import annotations

import glob
import os
import stat

from healthd.core.errors import SourceUnreadable
from healthd.job.nccl_words import parse_words

TYPE_CHECKING = False  # the name that type checkers know; a worker does without the module typing, which takes 2 MB
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

_MOST_BYTES, _MOST_IN_ALL = 1 << 20, 64 << 20
"""Of a job's logs: the last MiB of each, which holds the words that end a job, and 64 MiB in all."""


def family(_arguments: Sequence[str]) -> LogFamily:
    """The family takes no arguments: the path comes with the question."""
    return LogFamily()


class LogFamily:
    """Question: ``words``, of the logs whose paths match ``pattern``, a glob with ``%j`` for the ``job``."""

    worn = False

    def answer(self, op: str, args: Mapping[str, Any]) -> Any:
        if op != "words":
            raise SourceUnreadable(f"the logs worker got {op!r}; expected 'words'")
        paths = sorted(glob.glob(str(args["pattern"]).replace("%j", str(args["job"]))))
        logs = Logs(paths)
        found = parse_words(logs.ends())
        timeouts = [[rank, operation, number] for rank, (operation, number) in found.timeouts.items()]
        return {"timeouts": timeouts, "dumps": found.dumps, "dump": found.dump, "read": logs.read, "of": len(paths)}


class Logs:
    """The ends of these files. ``read``: how many were looked at."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths, self.read = paths, 0

    def ends(self) -> Iterator[str]:
        """One text each, up to the bound of all."""
        left = _MOST_IN_ALL
        for path in self._paths:
            if left <= 0:
                return
            self.read += 1
            if text := _end_of(path):
                left -= len(text)
                yield text.decode(errors="replace")


def _end_of(path: str) -> bytes:
    """The end of a plain file. A user of the cluster owns it: a link, a pipe or a file that may not be read is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""  # as if the job had not written it: the comparison rests on the readings
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            return b""
        file.seek(max(about.st_size - _MOST_BYTES, 0))
        return file.read(_MOST_BYTES)
