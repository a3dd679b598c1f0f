"""The pages that people read, and what is fenced in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "packaging").rglob("*.md"),
        *(ROOT / "bench").glob("*.md"),
    ]
)
FENCE = re.compile(r"^```(\S*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(Struct, frozen=True, kw_only=True):
    """One fenced block: the words of its first line, and where it stands."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    """Every fenced block of every page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            name = page.relative_to(ROOT).as_posix()
            yield Block(page=name, line=line, language=found[1], title=found[2].strip(), text=found[3])
