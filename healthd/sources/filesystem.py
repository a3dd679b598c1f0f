"""How full a file system is and whether it takes a file, asked where it may hang: in a probe worker.

Local file systems are asked one at a time; any other mount point by itself, so that one lost server hides nothing else:
the worker that asked it stays with it, and the next question goes to another. A worker that has answered serves
whichever file system is asked next. Workers start on demand and end by themselves when idle, and a mount point without
further requests is forgotten: automounted homes and mounts made for one job come by the thousand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from healthd.core.errors import SourceUnreadable
from healthd.core.node import FileProbe, Holders, ProbeState, Space
from healthd.probe.supervise import IdleWorkers, Probe

LOCAL_TYPES = frozenset(
    {
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "vfat",
        "f2fs",
        "zfs",
        "squashfs",
        "erofs",
        "iso9660",
        "overlay",
        "tmpfs",
        "ramfs",
        "devtmpfs",
        "hugetlbfs",
    }
)
"""Kinds that need no server. An unknown kind counts as one that does: the price of a wrong guess is a process."""

LOCAL = "local"

_STALL_KEPT_S = 172_800.0
"""How long a stall is remembered of a mount without requests: twice the longest interval of a check."""
_CHECKS_PER_IDLE = 10


class FilesystemSource:
    """statvfs and a small file, with a deadline. ``idle_s``: a worker without a request for so long ends by itself. It
    is longer than the interval of a check: starting a worker for each request costs more than keeping it. ``module``:
    the family of the workers; a drill has another."""

    def __init__(self, *, deadline_s: float = 5.0, idle_s: float = 300.0, module: str = "healthd.probe.fs_ops") -> None:
        self._deadline_s, self._idle_s, self._module = deadline_s, idle_s, module
        self._idle = IdleWorkers()
        self._adding, self._ended = threading.Lock(), False
        self._probes: dict[str, Probe] = {}
        self._asked_at: dict[str, float] = {}
        self._forgot_at = time.monotonic()

    def space(self, point: str, fstype: str = "") -> Space:
        """The space of the mount point. ``fstype`` as the mount table names it; "" is treated as a network one.

        Raises SourceMissing, SourceTimeout, SourceBusy or SourceUnreadable.
        """
        probe = self._probe(LOCAL if fstype in LOCAL_TYPES else point)
        answer = probe.request("statvfs", {"path": point}, deadline_s=self._deadline_s)
        try:
            return Space(**answer)
        except TypeError as error:
            raise SourceUnreadable(f"statvfs {point}: the worker answered {answer!r}") from error

    def holders(self, point: str, fstype: str = "") -> Holders:
        """The users of the space at the mount point, by the owners of the files. Raises as :meth:`space`."""
        probe = self._probe(LOCAL if fstype in LOCAL_TYPES else point)
        answer = probe.request("holders", {"path": point}, deadline_s=self._deadline_s)
        try:
            bytes_of = {int(uid): held for uid, held in answer.pop("bytes_of")}
            return Holders(bytes_of=bytes_of, **answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SourceUnreadable(f"holders {point}: the worker answered {answer!r}") from error

    def file_probe(self, point: str, path: str, fstype: str = "", *, size_bytes: int) -> FileProbe:
        """Write, read back and remove the file ``path`` on the mount ``point``, which is asked one question at a time.

        A file that an earlier probe left at ``path`` is removed first. Raises as :meth:`space`.
        """
        probe = self._probe(LOCAL if fstype in LOCAL_TYPES else point)
        answer = probe.request("file", {"path": path, "size_bytes": size_bytes}, deadline_s=self._deadline_s)
        try:
            return FileProbe(**answer)
        except TypeError as error:
            raise SourceUnreadable(f"file {path}: the worker answered {answer!r}") from error

    def state(self, point: str) -> ProbeState:
        """Whether a mount point answers, or the local file systems for ``"local"``; never blocks."""
        probe = self._probes.get(point)
        return ProbeState() if probe is None else probe.state()

    def states(self) -> Mapping[str, ProbeState]:
        """:meth:`state` of all that were asked recently, by mount point, the local ones under ``"local"``."""
        self._idle.reap()
        with self._adding:
            self._forget(time.monotonic())
        return {point: probe.state() for point, probe in tuple(self._probes.items())}

    def begin(self) -> None:
        """Start the worker of the local file systems ahead of the first request."""
        self._probe(LOCAL).begin()

    def close(self) -> None:
        """End all workers, for good."""
        with self._adding:
            self._ended = True
        for probe in tuple(self._probes.values()):
            probe.end()
        self._idle.close()

    def _probe(self, key: str) -> Probe:
        with self._adding:
            now = self._asked_at[key] = time.monotonic()
            self._forget(now)
            if key not in self._probes:
                self._probes[key] = Probe(f"statvfs {key}", module=self._module, idle=self._idle, idle_s=self._idle_s)
                if self._ended:
                    self._probes[key].end()
            return self._probes[key]

    def _forget(self, now: float) -> None:
        """Free the resources of workers that ended, and forget mounts whose last request is long past. A mount whose
        killed worker lives on is kept: no second one may be started beside it."""
        if now - self._forgot_at < self._idle_s / _CHECKS_PER_IDLE:
            return
        self._forgot_at = now
        for key, probe in tuple(self._probes.items()):
            state = probe.state()
            kept_s = max(2 * self._idle_s, _STALL_KEPT_S if state.stalled_s else 0.0)
            if now - self._asked_at[key] > kept_s and not state.abandoned and probe.worker_pid() is None:
                del self._probes[key], self._asked_at[key]
