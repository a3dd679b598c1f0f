"""Text that can be written: UTF-8 has no bytes for half a surrogate pair, and JSON can carry one all the same.

A file name with odd bytes has such halves, and so has what a plug-in prints as ``"\\udcff"``. Whatever a check says
goes through here once, where it comes in: behind that nobody who writes, sends or shows it has to think of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


def writable(value: _T) -> _T:
    """``value`` itself where UTF-8 has bytes for all of its text, which is nearly always; else :func:`encodable` of it.

    Raises RecursionError for what holds itself, which nobody could write down.
    """
    try:
        msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        mended: _T = encodable(value)
        return mended
    return value


def json_text(value: Any) -> str:
    """JSON. What JSON has no form for becomes text: one odd value in an evidence must not keep everything unwritten."""
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(msgspec.to_builtins(value, enc_hook=str))).decode()


def encodable(value: Any) -> Any:
    """The same, dataclasses and what they hold too, with a question mark for what UTF-8 has no bytes for."""
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
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: encodable(getattr(value, each.name)) for each in fields(value)})
    return value
