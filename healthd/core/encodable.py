"""Text that can be written, and JSON that cannot be read.

UTF-8 has no bytes for half a surrogate pair, but JSON can carry one.

A file name with odd bytes has such halves, and so has ``"\\udcff"`` in a plug-in's output. Every text of a check passes
here once, where it comes in: the code that writes, sends or shows it need not care.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict, replace

_T = TypeVar("_T")

NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of msgspec for a text of any origin: no JSON, or of another form; no UTF-8; nested too deep. A user's text
that raises another one than is caught would end the daemon that reads it."""


def writable(value: _T) -> _T:
    """``value`` itself where UTF-8 has bytes for all of its text, which is nearly always; else :func:`encodable` of it.

    Raises RecursionError for a value that contains itself, which cannot be written.
    """
    try:
        msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        changed: _T = encodable(value)
        return changed
    return value


def json_text(value: Any) -> str:
    """JSON. A value without a form in JSON becomes text: one odd value in an evidence must not block all writing."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(msgspec.to_builtins(value, enc_hook=str))).decode()


def encodable(value: Any) -> Any:
    """The same value, also inside structs, with a question mark for each character that UTF-8 has no bytes for."""
    match value:
        case Enum():
            return value
        case str():
            return value.encode("utf-8", "replace").decode()
        case Mapping():
            return {encodable(key): encodable(each) for key, each in value.items()}
        case list():
            return [encodable(each) for each in value]
        case tuple():
            return tuple(encodable(each) for each in value)
        case set() | frozenset():
            return frozenset(encodable(each) for each in value)
    if isinstance(value, msgspec.Struct):
        return replace(value, **{name: encodable(each) for name, each in asdict(value).items()})
    return value
