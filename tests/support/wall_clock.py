"""The wall clock of one process and its children, which a test sets as NTP or an operator would."""

from __future__ import annotations

from pathlib import Path


class WallClock:
    """A clock that is off by whole seconds. ``library``: ``tests/clock_sim``, compiled; ``file``: where it reads by how
    much; ``environ``: with which a process is started to have this clock."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file, self.by_s = file, 0
        file.write_bytes(bytes(8))
        self.environ = {"LD_PRELOAD": str(library), "CLOCK_SIM": str(file)}

    def is_off_by(self, seconds: int) -> None:
        """From now on."""
        self.by_s = seconds
        with self._file.open("r+b") as file:  # in place: it is mapped
            file.write(seconds.to_bytes(8, "little", signed=True))
