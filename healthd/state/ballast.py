"""Reserved space in healthd's state directory, so that it can act once more on a full disk.

Without it, a user who fills the disk could keep a node from being drained, because healthd records each step before it
acts. healthd removes the file when a write finds the disk full, and creates it again once there is room.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

BALLAST = "ballast"
"""The file in the state directory."""
_BYTES = (
    4 << 20
)  # many remediations and their events; SQLite's log beside the database is checkpointed at about as much
_ROOM = 8  # this many times its size must be free before it is created, so that it fills no disk


class Ballast:
    """The ballast of one folder. Nothing here raises: it is a precaution, and its lack is no trouble by itself."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BALLAST

    def lay(self) -> bool:
        """Create the file if needed; whether it exists now."""
        try:
            if self._path.exists() and self._path.stat().st_size == _BYTES:
                return True
            room = os.statvfs(self._path.parent)
            if room.f_bavail * room.f_frsize < _ROOM * _BYTES:
                return False
            self._path.unlink(missing_ok=True)  # a power cut leaves one that holds no space
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
        """Remove the file; whether that freed space."""
        with contextlib.suppress(OSError):
            self._path.unlink()
            return True
        return False
