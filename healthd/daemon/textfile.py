"""Files that others read while they are written anew: the metrics page for node_exporter's textfile collector, and what
the controller said last. Each is replaced whole."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from healthd.config.schema.notify import MetricsSection
from healthd.core.strict_modes import others_may_write

_FIRST_S = 5.0  # the first look at the machine is worth waiting for


def replace_file(path: Path, text: str) -> None:
    """Write the file as one act: who reads it sees the old page or the new one, never a part. Everyone may read it.

    The new page is written beside it under a name that node_exporter does not read (it reads ``*.prom``). A rename is
    enough: after a crash the page is of no use anyhow, so nothing is forced to the disk. No link is followed.
    Raises OSError where the folder does not take it, or others may write there; then the old page stays.
    """
    if why := others_may_write(path.parent):
        raise PermissionError(errno.EPERM, f"{why}: expected a folder that root alone may write", str(path.parent))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)
        with open(beside, "x", encoding="utf-8", opener=_unfollowed) as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def keep_writing(config: MetricsSection, page: Callable[[], str], stop: threading.Event, log: Any) -> None:
    """Write the metrics to their file until the daemon stops, and then take it away: an old page looks like news."""
    path, problem = Path(config.textfile), ""
    wait_s = _FIRST_S
    while not stop.wait(wait_s):
        wait_s = config.every_s
        try:
            replace_file(path, page())
            problem = ""
        except OSError as error:
            if str(error) != problem:
                problem = str(error)
                log.error("the metrics were not written", path=str(path), error=problem)
    path.unlink(missing_ok=True)
