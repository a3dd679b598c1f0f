"""JSON for programs: the fields of a record under their own names, and the text of a document. Pure.

A new field of a record is in no document until it is named there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from healthd.core.model import Component


def json_fields(record: object, *names: str) -> dict[str, Any]:
    """These fields: a time as ISO 8601, a component by its name, a tuple as a list, a mapping as a dict."""
    return {name: _plain(getattr(record, name)) for name in names}


def json_document(data: Mapping[str, Any] | Sequence[Any]) -> str:
    """One JSON object or array, two-space indented, ending in a newline."""
    return json.dumps(data, indent=2, default=str) + "\n"


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case Component():
            return str(value)
        case tuple():
            return [_plain(each) for each in value]
        case Mapping():
            return dict(value)
    return value
