"""NCCL's own words in the logs of a job, where the site names their path: ``[orchestrator.slurm] nccl_log``."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator

from healthd.job.nccl_words import NcclWords, parse_words

_MOST_FILES, _MOST_BYTES = 4096, 1 << 20
"""Of the job's logs: the last MiB of each, which holds the words that end a job."""


def read_words(pattern: str, job: str) -> NcclWords:
    """NCCL's words in the job's logs; none where the site names no path. ``pattern``: a glob, with ``%j`` for the
    job."""
    paths = sorted(glob.glob(pattern.replace("%j", job)))[:_MOST_FILES] if pattern else []
    return parse_words(text for path in paths for text in _ends(path))


def _ends(path: str) -> Iterator[str]:
    """The end of a plain file. A user of the cluster owns it: a link, a pipe or a file that may not be read is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # as if the job had not written it: the comparison rests on the readings
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if stat.S_ISREG(about.st_mode):
            file.seek(max(about.st_size - _MOST_BYTES, 0))
            yield file.read(_MOST_BYTES).decode(errors="replace")
