"""The text of one configuration file, as TOML: bounded, and with a problem for each way in which it is invalid.

This module knows no setting, and prints nothing.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from msgspec import Struct

from healthd.core.strict_modes import others_may_write

MAX_BYTES = 64 * 1024
# tomllib's time and memory grow with the square of a dotted key's parts (131,000 parts in one line: over 20 GB).
MAX_LINE_CHARACTERS = 1_024
_POSITION = r" \(at (?:line (\d+), column \d+|end of document)\)$"


class Problem(Struct, frozen=True, kw_only=True):
    """One mistake. ``line`` counts from 1; 0 where there is none. ``wrong`` names the expected value."""

    source: str
    wrong: str
    advice: str
    line: int = 0
    key: str = ""
    value: str = ""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        subject = f"{self.key} = {self.value}" if self.value else self.key
        return ": ".join(part for part in (place, subject, self.wrong) if part) + f"; {self.advice}"


def read_text(path: Path) -> str | Problem:
    """The text of a file, never more than MAX_BYTES of it, or its problem. Raises OSError.

    Root reads no file that other users may write or replace.
    """
    source = str(path)
    if not stat.S_ISREG(path.stat().st_mode):
        return Problem(source=source, wrong="not a regular file", advice="expected a TOML file here")
    if os.geteuid() == 0 and (why := others_may_write(path)):
        advice = "other users could change what root does: chown it to root, and chmod go-w"
        return Problem(source=source, wrong=why, advice=advice)
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        wrong = f"larger than {MAX_BYTES} bytes, so it is no configuration of healthd"
        return Problem(source=source, wrong=wrong, advice="name the right file with --config")
    try:
        # Editors on Windows begin a file with a byte order mark, which TOML does not know.
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        return Problem(source=source, line=line, wrong=wrong, advice="expected TOML in UTF-8; convert it with iconv")


def parsed(text: str, source: str) -> dict[str, Any] | Problem:
    """The text as TOML, or its problem."""
    for number, content in enumerate(text.split("\n"), 1):
        if len(content) > MAX_LINE_CHARACTERS:
            wrong = f"a line of {len(content)} characters, expected at most {MAX_LINE_CHARACTERS}"
            return Problem(source=source, line=number, wrong=wrong, advice="break the list over several lines")
    try:
        return tomllib.loads(text)
    except RecursionError:
        return Problem(source=source, wrong="not TOML: nested too deeply", advice="expected sections such as [daemon]")
    except ValueError as error:
        return _syntax(str(error), source, last_line=text.rstrip("\n").count("\n") + 1)


def _syntax(message: str, source: str, *, last_line: int) -> Problem:
    """The error of tomllib, without the position in its sentence."""
    position = re.search(_POSITION, message)
    line = int(position[1] or last_line) if position else 0
    twice = message.startswith(("Cannot overwrite", "Cannot declare", "Cannot redefine", "Duplicate"))
    advice = "it is set twice: keep one" if twice else "correct the line; text values need quotes"
    wrong = "not TOML: " + re.sub(_POSITION, "", message)
    return Problem(source=source, line=line, wrong=wrong, advice=advice)
