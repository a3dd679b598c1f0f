"""The mount table, read from the text of ``/proc/self/mountinfo``.

Parsing text never touches a file system, so it never blocks: this is why the table is read and not the mounts.
The format: Linux, Documentation/filesystems/proc.rst, section 3.5.
"""

from __future__ import annotations

import re

from healthd.core.errors import SourceUnreadable
from healthd.core.node import Mount

_ESCAPE = re.compile(rb"\\([0-7]{3})")


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Every mount in the order of the table: of two on one point the later one covers the earlier.

    Raises SourceUnreadable naming the first line that does not have the format.
    """
    return tuple(_mount(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def _mount(number: int, line: str) -> Mount:
    """``36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue``; fields before ``-`` vary."""
    before, dash, after = line.partition(" - ")
    head, tail = before.split(" "), after.split(" ")
    if not dash or len(head) < 6 or len(tail) < 2 or not tail[0]:
        raise SourceUnreadable(
            f"mountinfo line {number}: {line[:200]!r}: expected 'ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [...] - "
            "FSTYPE SOURCE SUPER_OPTIONS'"
        )
    super_options = tail[2] if len(tail) > 2 else ""
    return Mount(
        point=_unescape(head[4]),
        fstype=_unescape(tail[0]),
        source=_unescape(tail[1]),
        options=frozenset(option for option in f"{head[5]},{super_options}".split(",") if option),
        device=head[2],
    )


def _unescape(text: str) -> str:
    """Spaces, tabs, newlines and backslashes come as three octal digits, and so may any byte of a UTF-8 character."""
    if "\\" not in text:
        return text
    data = _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 0xFF]), text.encode("utf-8"))
    return data.decode("utf-8", errors="replace")
