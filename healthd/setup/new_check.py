"""The two files of a new check: the check and its test, both complete; they pass as they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from string import Template

from healthd.core.errors import UsageError

KINDS = ("proc", "kernel", "nvml")
"""The kinds of sources of a check, which are the names of its templates in ``check_templates``."""

_NAME = re.compile(r"[a-z][a-z0-9]{0,15}\.[a-z][a-z0-9_]{0,15}")


def new_files(name: str, kind: str) -> dict[str, str]:
    """Path below a checkout to text. Raises UsageError for a name that is not allowed for a check."""
    if not _NAME.fullmatch(name):
        expected = "a family and a word in lower case, with a dot between them, such as host.numa"
        raise UsageError(f"healthd new-check: {name!r} cannot be a check's name: expected {expected}")
    function = name.replace(".", "_")
    settings = "".join(word.capitalize() for word in function.split("_")) + "Settings"
    words = {"name": name, "function": function, "settings": settings}
    return {
        f"checks/{function}.py": _filled(f"{kind}.check", words),
        f"tests/checks/test_{function}.py": _filled(f"{kind}.test", words),
    }


def _filled(template: str, words: Mapping[str, str]) -> str:
    text = files("healthd.setup").joinpath("check_templates", template).read_text(encoding="utf-8")
    return Template(text).substitute(words)
