"""The status page as it is sent: one file, and the headers that keep it to itself.

The page holds its style and its script; the policy names both by their hash, so nothing else is ever run or loaded,
whatever a mount, a process or a log line is called.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of the page and of its data: neither is kept, guessed at, or given to another site."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusPage:
    """The page and the headers that only it has."""

    html: str
    headers: Mapping[str, str]


@functools.cache
def page() -> StatusPage:
    """Read once; it does not change while the daemon runs."""
    html = files("healthd.api").joinpath("status.html").read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(html, 'script')}",
            f"style-src {_hash(html, 'style')}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return StatusPage(html=html, headers={"Content-Security-Policy": policy})


def _hash(html: str, tag: str) -> str:
    """What stands in the one element of this name, as CSP names it (W3C CSP 3, hash-source)."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
