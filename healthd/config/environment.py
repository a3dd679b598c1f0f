"""The HEALTHD_ lines of /etc/healthd/environment, which systemd hands to the daemon, and nobody to a hook. Pure.

The format is that of ``EnvironmentFile=`` in systemd.exec(5): one NAME=VALUE a line; # or ; begins a comment; a value
may stand in quotes; a backslash keeps the character after it, or joins two lines. It knows no setting.
"""

from __future__ import annotations

import re

from healthd.config.leaves import PREFIX

NAME = "environment"
"""What the file is called, beside config.toml."""

_QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*\""""
_ENTRY = re.compile(
    rf"""^[ \t]*(?:
        [#;](?:\\.|[^\\\n])*
        | (?P<name>[^#;=\s][^=\n]*)=(?P<quoted>(?:[ \t]*(?:{_QUOTED}))*)(?P<plain>(?:\\.|[^\\\n])*)$
    )""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def service_variables(text: str) -> dict[str, str]:
    """The HEALTHD_ variables of such a file, a later line winning. What is no assignment is passed over, as systemd
    does."""
    found = (entry for entry in _ENTRY.finditer(text) if (entry["name"] or "").startswith(PREFIX))
    return {entry["name"].rstrip(): _value(entry["quoted"], entry["plain"]) for entry in found}


def _value(quoted: str, plain: str) -> str:
    inside = "".join(_unquoted(piece) for piece in re.findall(_QUOTED, quoted, re.DOTALL))
    return inside + re.sub(r"\\(.)", _kept, plain.strip(), flags=re.DOTALL)


def _unquoted(piece: str) -> str:
    """In double quotes a backslash stands for itself, but before a quote, a backslash, a backtick, a dollar and the
    end of a line."""
    return piece[1:-1] if piece.startswith("'") else re.sub(r"\\([\"\\`$\n])", _kept, piece[1:-1])


def _kept(escaped: re.Match[str]) -> str:
    return escaped[1].strip("\n")
