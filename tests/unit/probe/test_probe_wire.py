"""What crosses the pipes of a probe."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.core.errors import SourceBusy, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.probe import wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), JSON))
def test_a_message_survives_the_wire(message: dict[str, Any]) -> None:
    """Whatever is sent is received, as one line: no value can break the framing."""
    line = wire.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert wire.decode(line) == message


@given(st.binary())
def test_any_bytes_are_a_message_or_none(line: bytes) -> None:
    """Garbage is None, never an exception: the parent reads from a process that may have gone mad."""
    message = wire.decode(line)
    assert message is None or isinstance(message, dict)


@given(st.dictionaries(st.text(), JSON))
def test_a_message_is_json(message: dict[str, Any]) -> None:
    """What one side writes is what ``json`` would write, and what ``json`` writes is read."""
    assert wire.encode(message) == json.dumps(message, separators=(",", ":")).encode() + b"\n"
    assert wire.decode(json.dumps(message, indent=1).encode()) == message


@pytest.mark.parametrize("line", [b"", b"{", b'{"id":1} x', b'{"id":1,}', b"[1]", b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_message(line: bytes) -> None:
    """Cut off, with more behind it, not an object, no text, nested without end: no message."""
    assert wire.decode(line) is None


def test_a_number_that_is_none_survives_the_wire() -> None:
    """A library may answer NaN or infinity."""
    message = wire.decode(wire.encode({"a": math.nan, "b": -math.inf}))
    assert message is not None
    assert math.isnan(message["a"])
    assert message["b"] == -math.inf


def test_a_message_of_something_else_is_refused() -> None:
    """A mistake of a worker's own is no answer."""
    with pytest.raises(TypeError, match="holds a bytes"):
        wire.encode({"value": b"x"})


@given(st.sampled_from([SourceMissing, SourceTimeout, SourceBusy, SourceUnreadable]), st.text())
def test_an_error_survives_the_wire(kind: type[SourceMissing], text: str) -> None:
    """An error arrives in its own class with its own text."""
    message = wire.decode(wire.encode(wire.failed(7, kind(text))))
    assert message is not None
    error = wire.error_of(message)
    assert type(error) is kind
    assert str(error) == text


def test_an_unknown_error_is_unreadable() -> None:
    """A class this side does not know is still an error."""
    assert isinstance(wire.error_of({"id": 1, "error": "SourceHaunted", "text": "boo"}), SourceUnreadable)
    assert wire.error_of({"id": 1, "value": None}) is None
