"""The users that fill a full file system: its files by owner, counted within a second.

Runs in the probe worker only. It counts first where users can write: folders of users, and those that every user may
write to; root's own come after. A file that is deleted and still open does not count. Mounts below it are not
touched: a lost server would hold this process, and with it all local file systems.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

LASTS_S = 1.0
"""How long a count takes at most, in seconds: it runs beside a job, at each check run on a full disk."""
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own is (stat(2))
_MOST = 16  # the number of owners in the answer


def holders(path: str, *, lasts_s: float = LASTS_S) -> dict[str, Any]:
    """Bytes of each uid on the file system at ``path``, the largest first, as far as the time allows.

    Raises OSError where ``path`` itself cannot be read.
    """
    until, bytes_of, files, whole = time.monotonic() + lasts_s, Counter[int](), 0, True
    for found in _files(path):
        files += 1
        bytes_of[found.st_uid] += found.st_blocks * _BLOCK_BYTES
        if time.monotonic() > until:
            whole = False
            break
    return {"bytes_of": bytes_of.most_common(_MOST), "files": files, "whole": whole}


def _files(path: str) -> Iterator[os.stat_result]:
    """Every file and folder below ``path`` on its own file system, one with several names once."""
    device, linked, mounted = os.lstat(path).st_dev, set[int](), _mounted()
    folders = [(False, 0, path)]
    while folders:
        _, depth, folder = heapq.heappop(folders)
        for found, name in _entries(folder, mounted):
            if found.st_dev != device or found.st_ino in linked:
                continue
            if stat.S_ISDIR(found.st_mode):
                heapq.heappush(folders, (_is_roots(found), depth + 1, name))
            elif found.st_nlink > 1:
                linked.add(found.st_ino)
            yield found


def _mounted() -> frozenset[str]:
    """Every mount point, by the kernel's table, which touches none (proc_pid_mountinfo(5), field 5)."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        points = (line.split(" ")[4] for line in table)
        return frozenset(re.sub(r"\\([0-7]{3})", lambda byte: chr(int(byte[1], 8)), point) for point in points)


def _entries(folder: str, mounted: frozenset[str]) -> Iterator[tuple[os.stat_result, str]]:
    """The entries of a folder without mount points, links not followed. A folder that has gone meanwhile is empty."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.path in mounted:
                    continue
                try:
                    yield entry.stat(follow_symlinks=False), entry.path
                except OSError:
                    continue
    except OSError:
        return


def _is_roots(folder: os.stat_result) -> bool:
    """Whether only root may write there."""
    return folder.st_uid == 0 and not folder.st_mode & stat.S_IWOTH
