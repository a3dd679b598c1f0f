"""Sends long work to the daemon and reads its progress.

Short requests take the hot path of ``healthd.__main__``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from healthd.api.wire import Reply, Request, read_answer, write_request
from healthd.core.errors import NoDaemon, NotPermitted
from healthd.core.reach import connected

_SILENCE_S = 60.0
"""The daemon reports its progress at least every few seconds."""


def ask(path: str, request: Request, progress: Callable[[str], None]) -> Reply | None:
    """The daemon's answer, or None where no daemon listens at ``path``. Raises NoDaemon for a daemon that
    does not answer to the end, and NotPermitted."""
    try:
        reached = connected(path, _SILENCE_S)
        if reached is None:
            return None
        with socket.socket(fileno=reached.detach()) as connection:
            connection.settimeout(_SILENCE_S)
            connection.sendall(write_request(request))
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as stream:
                return read_answer(stream, progress)
    except PermissionError as error:
        who = "be root, or in [daemon] readers or group"
        raise NotPermitted(f"healthd: uid {os.geteuid()} may not ask the daemon at {path}; {who}") from error
    except OSError as error:
        raise NoDaemon(f"the daemon at {path} does not answer: {error}; see `journalctl -u healthd`") from error
