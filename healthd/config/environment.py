"""The HEALTHD_ lines of /etc/healthd/environment, which systemd gives to the daemon and Slurm does not to hooks. Pure.

The format is that of ``EnvironmentFile=`` in systemd.exec(5): one NAME=VALUE a line; # or ; begins a comment; a value
may be quoted; a backslash escapes the next character, or joins two lines. This module knows no setting.
"""

from __future__ import annotations

import re

from healthd.config.keys import PREFIX

NAME = "environment"
"""The name of the file, beside config.toml."""

_QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*\""""
_ENTRY = rf"""(?smx)^[ \t]*(?:
        [#;](?:\\.|[^\\\n])*
        | (?P<name>[^#;=\s][^=\n]*)=(?P<quoted>(?:[ \t]*(?:{_QUOTED}))*)(?P<plain>(?:\\.|[^\\\n])*)$
    )"""


def service_variables(text: str) -> dict[str, str]:
    """The HEALTHD_ variables of such a file; a later line wins. Lines that are no assignment are ignored, as systemd
    does."""
    found = (entry for entry in re.finditer(_ENTRY, text) if (entry["name"] or "").startswith(PREFIX))
    return {entry["name"].rstrip(): _value(entry["quoted"], entry["plain"]) for entry in found}


def _value(quoted: str, plain: str) -> str:
    inside = "".join(_unquoted(piece) for piece in re.findall(_QUOTED, quoted, re.DOTALL))
    return inside + re.sub(r"\\(.)", _kept, plain.strip(), flags=re.DOTALL)


def _unquoted(piece: str) -> str:
    """The text without its quotes. In double quotes a backslash escapes only a quote, a backslash, a backtick, a dollar
    and the end of a line."""
    return piece[1:-1] if piece.startswith("'") else re.sub(r"\\([\"\\`$\n])", _kept, piece[1:-1])


def _kept(escaped: re.Match[str]) -> str:
    return escaped[1].strip("\n")
