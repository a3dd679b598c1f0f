"""A merge patch (RFC 7386) as the API server applies it to an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def patched(data: Mapping[str, Any], patch: Mapping[str, Any] | None) -> dict[str, Any]:
    """The object with the patch, None for none; ``data`` itself stays."""
    made = dict(data)
    for key, value in (patch or {}).items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = patched(made.get(key) or {}, value) if isinstance(value, Mapping) else value
    return made
