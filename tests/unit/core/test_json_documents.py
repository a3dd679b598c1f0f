"""Fields of a record as JSON: the named ones only, in their order, in plain types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

from healthd.core.json_documents import json_fields
from healthd.core.model import NODE, Component, Remedy


class Record(Struct, frozen=True, kw_only=True):
    at: datetime | None = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
    parts: tuple[Component, ...] = (NODE,)
    cannot: Mapping[Remedy, str] = {}
    other: str = "left out"


def test_only_named_fields_are_there_and_json_takes_them() -> None:
    """A time is ISO 8601, a component its name, and a field that is not named is absent."""
    data = json_fields(Record(cannot={Remedy.RESET_GPU: "no"}), "cannot", "at", "parts")
    assert json.dumps(data) == '{"cannot": {"reset_gpu": "no"}, "at": "2026-11-28T12:00:00+00:00", "parts": ["node"]}'
    assert json_fields(Record(at=None), "at") == {"at": None}
