"""TLS is loaded once something speaks it: OpenSSL takes 4 MB, and a daemon that sends nothing uses none of it.

structlog and APScheduler import asyncio, the HTTP listener and the metadata service import http.client, and each of
these imports ssl. A Python that was built without ssl is supported by both, so that at import they only bind its name.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_LATE = ("ssl", "asyncio.sslproto")  # the second reads two classes of the first at import
_IMPORT_IT = ("asyncio", "http.client")


class _Late(ModuleType):
    """A module that is imported at the first use of something in it."""

    def __getattr__(self, name: str) -> Any:
        _step_aside(self)
        return getattr(import_module(self.__name__), name)


def import_without_tls() -> None:
    """Import asyncio and http.client; their TLS works as ever, and is loaded by its first use, or by ``import ssl``.

    Call it before other threads run and before anything else imports them: one that is loaded stays as it is.
    """
    stand_ins = [_Late(name) for name in _LATE if name not in sys.modules]
    sys.modules.update({each.__name__: each for each in stand_ins})
    try:
        for name in _IMPORT_IT:
            import_module(name)
    finally:
        for each in stand_ins:
            _step_aside(each)


def _step_aside(stand_in: _Late) -> None:
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]
