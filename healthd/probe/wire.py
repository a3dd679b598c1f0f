"""The messages between a probe and its worker: one JSON object per line, in both directions.

Question: ``{"id": 7, "op": "ask", "args": {…}}``. Answer: ``{"id": 7, "value": …}`` or
``{"id": 7, "error": "SourceMissing", "text": "…"}``, either with ``"end": true`` when the worker ends after it.
A worker that is ready for its first question sends ``{"ready": true}``. Imported on both sides, so it stays small: it
uses the C functions below ``json``, which itself loads ``re`` and ``enum``, more than all else that a worker loads.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

from healthd.core.errors import SourceBusy, SourceError, SourceMissing, SourceTimeout, SourceUnreadable

TYPE_CHECKING = False  # the name that type checkers know; a worker does without the module typing, which takes 2 MB
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

MAX_LINE_BYTES = 8 * 1024 * 1024
"""A longer line is garbage: the largest real answer, 8 GPUs with every field, is under 64 KiB."""

_ERRORS: Mapping[str, type[SourceError]] = {
    error.__name__: error for error in (SourceMissing, SourceTimeout, SourceBusy, SourceUnreadable)
}


class _Options:
    """The defaults of ``json.loads``; ``float`` reads NaN and Infinity as well."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"a message holds a {type(value).__name__}: {value!r}")


_scan = make_scanner(_Options)  # type: ignore[arg-type]  # the stub wants itself; C reads these six attributes
_chunks = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)


def encode(message: Mapping[str, Any]) -> bytes:
    """One line, newline included."""
    return "".join(_chunks(message, 0)).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """The message of a line, or None when the line is not one."""
    try:
        text = line.decode().strip()
        message, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    return message if isinstance(message, dict) and end == len(text) else None


def failed(number: int, error: SourceError) -> dict[str, Any]:
    """The answer with an error."""
    return {"id": number, "error": type(error).__name__, "text": str(error)}


def error_of(message: Mapping[str, Any]) -> SourceError | None:
    """The error of an answer, in its original class, or None for a value."""
    if "error" not in message:
        return None
    return _ERRORS.get(str(message["error"]), SourceUnreadable)(str(message.get("text", "")))
