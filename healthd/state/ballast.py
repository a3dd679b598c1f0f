"""Room that healthd keeps for itself in its state directory, so that a full disk lets it act once more.

Without it, whoever fills the disk keeps a node from being taken out: what is not written down is not done. The file is
given up when a write finds the disk full, and laid again once there is room.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

BALLAST = "ballast"
"""The file in the state directory."""
_BYTES = 4 << 20  # many cases and their events; SQLite's log beside the database is checkpointed at about as much
_ROOM = 8  # as many times as much must be free before it is laid: what is short of room is not made shorter


class Ballast:
    """The ballast of one folder. Nothing here raises: it is a precaution, and its lack is no trouble by itself."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BALLAST

    def lay(self) -> bool:
        """See that it is there; whether it is."""
        try:
            if self._path.exists():
                return True
            room = os.statvfs(self._path.parent)
            if room.f_bavail * room.f_frsize < _ROOM * _BYTES:
                return False
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            os.posix_fallocate(file, 0, _BYTES)
        except OSError:
            self.give_up()
            return False
        finally:
            os.close(file)
        return True

    def give_up(self) -> bool:
        """Take it away; whether there is more room now."""
        with contextlib.suppress(OSError):
            self._path.unlink()
            return True
        return False
