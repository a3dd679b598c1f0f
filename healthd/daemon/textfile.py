"""Files that other programs read while they are replaced, each as a whole: the metrics page for node_exporter's
textfile collector, and the controller's last status. And files that are written as a whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from healthd.core.strict_modes import others_may_write


def replace_file(path: Path, text: str) -> None:
    """Write the file as one act: who reads it sees the old page or the new one, never a part. Everyone may read it.

    The new page is written beside it under a name that node_exporter does not read (it reads ``*.prom``). A rename is
    enough: after a crash the page is of no use anyhow, so nothing is forced to the disk. No link is followed.
    Raises OSError where the folder does not take it, or others may write there; then the old page stays.
    """
    if why := others_may_write(path.parent):
        raise PermissionError(errno.EPERM, f"{why}: expected a folder that root alone may write", str(path.parent))
    with written_beside(path, text) as beside:
        beside.chmod(0o644)
        beside.replace(path)


@contextmanager
def written_beside(path: Path, text: str) -> Iterator[Path]:
    """The text in a new file beside ``path``, to be given its name; else it is removed. No link is followed. Raises
    OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)
        with open(beside, "x", encoding="utf-8", opener=_unfollowed) as file:
            file.write(text)
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


class TextFile:
    """The metrics in their file. ``page`` gives the text. A problem with the file is logged when it changes."""

    def __init__(self, path: str, page: Callable[[], str], log: Any) -> None:
        self._path, self._page, self._log, self._problem = Path(path), page, log, ""

    def write(self) -> None:
        """Replace the file."""
        problem = ""
        try:
            replace_file(self._path, self._page())
        except OSError as error:
            problem = str(error)
        if problem and problem != self._problem:
            self._log.error("metrics.unwritten", path=str(self._path), error=problem)
        self._problem = problem

    def remove(self) -> None:
        """Take it away at the end of the daemon: an old page looks like a new one. Where it stays, the log says so."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._log.error("metrics.left", path=str(self._path), error=str(error))
