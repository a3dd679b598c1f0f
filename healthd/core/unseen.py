"""Hooks that passed unseen: their daemon was there and did not answer, or their own check run failed.

The hook itself records each, a byte beside the socket, because no other process knows of it. The daemon counts them.
The folder is the daemon's own: a hook that may not write there runs without the rights of one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

KINDS = ("prolog", "epilog", "health-check-program")
_SUFFIX = ".unseen"


def note(socket_path: str, arguments: Iterable[str]) -> None:
    """Record that the hook of this command line let its job pass. A failed write is ignored: the hook logs it as
    well."""
    kind = next((each for each in arguments if each in KINDS), "")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(socket_path + _SUFFIX, flags, 0o600)
    except (OSError, ValueError):
        return
    try:
        os.write(file, kind[:1].encode())
    except OSError:
        return
    finally:
        os.close(file)


def counted(socket_path: str) -> Counter[str]:
    """How many hooks of each kind passed unseen since the machine came up; 0 where none was recorded."""
    try:
        with open(socket_path + _SUFFIX, "rb") as file:
            recorded = file.read()
    except OSError:
        recorded = b""
    return Counter({kind: recorded.count(kind[:1].encode()) for kind in KINDS})


class Unseen:
    """The hooks that were recorded beside this socket, and the news of them."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._reported: Counter[str] = Counter()

    def counted(self) -> Counter[str]:
        """How many hooks of each kind passed unseen since the machine came up."""
        return counted(self._path)

    def news(self) -> str:
        """A sentence where there are more than at the last call, or ""."""
        now = self.counted()
        if now == self._reported:
            return ""
        self._reported = now
        listed = ", ".join(f"{count} {kind}" for kind, count in now.items() if count)
        return f"hooks without an answer since this machine came up: {listed}; their jobs passed"
