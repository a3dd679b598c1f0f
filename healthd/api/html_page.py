"""A page as it is sent: one file, and the headers that isolate it.

A page holds its style and its script, with what all pages share from ``page.css`` and ``page.js``. The security policy
names both by their hash, so a browser runs and loads nothing else, even if the name of a mount or process, or a log
line, holds HTML.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Mapping

from msgspec import Struct

from healthd.core.shipped_text import shipped_text

HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of a page and of its data: no cache, no guessed type, no other site."""

_INCLUDE = re.compile(r"/\* include ([a-z.]+) \*/")


class HtmlPage(Struct, frozen=True, kw_only=True):
    """A page, and the headers that only a page has."""

    html: str
    headers: Mapping[str, str]


@functools.cache
def html_page(package: str, name: str) -> HtmlPage:
    """The page in this file of a package, read once: it does not change while the process runs."""
    html = _INCLUDE.sub(lambda found: shipped_text("healthd.api", found[1]).rstrip(), shipped_text(package, name))
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
    return HtmlPage(html=html, headers={**HEADERS, "Content-Security-Policy": policy})


def _hash(html: str, tag: str) -> str:
    """The text of the one element of this name, as a CSP source (W3C CSP 3, hash-source)."""
    from hashlib import sha256  # it loads OpenSSL, and most nodes are never asked for a page

    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
