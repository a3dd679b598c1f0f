"""Files that others read while they are written anew: the metrics page for node_exporter's textfile collector, and what
the controller said last. Each is replaced whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from healthd.config.notify_schema import MetricsSection

_FIRST_S = 5.0  # the first look at the machine is worth waiting for


def replace_file(path: Path, text: str) -> None:
    """Write the file as one act: who reads it sees the old page or the new one, never a part. Everyone may read it.

    The new page is written beside it under a name that node_exporter does not read (it reads ``*.prom``). A rename is
    enough: after a crash the page is of no use anyhow, so nothing is forced to the disk.
    Raises OSError where the folder does not take it; then the old page stays.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.chmod(0o644)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


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
