"""``healthd new-check``: write a new check and its test into a checkout of healthd. It overwrites nothing."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from string import Template

from healthd.api.wire import Reply
from healthd.core.check import discover
from healthd.core.errors import HealthdError, UsageError
from healthd.core.json_documents import json_document
from healthd.core.shipped_text import shipped_text

SCHEMA = "healthd.new_check/v1"
KINDS = ("proc", "kernel", "nvml")
"""The kinds of sources of a check, which are the names of its templates in ``check_templates``."""

_NAME = re.compile(r"[a-z][a-z0-9]{0,15}\.[a-z][a-z0-9_]{0,15}")


def answer(options: Namespace) -> Reply:
    """Exit 0: written, or with --dry-run only named. Raises UsageError for a name that is invalid or taken;
    HealthdError outside of a checkout, and where a file exists or cannot be written."""
    made = {Path(path): text for path, text in new_files(options.name, options.kind).items()}
    if options.name in discover():
        raise HealthdError(f"the check {options.name} exists already (`healthd checks`); choose another name")
    for path in made:
        if not path.parent.is_dir():
            raise HealthdError(f"no folder {path.parent}/ here; run this at the root of a checkout of healthd")
        if path.exists():
            raise HealthdError(f"{path} exists and is never overwritten; choose another name")
    names = "".join(f"  {path}\n" for path in made)
    if not options.dry_run:
        for path, text in made.items():
            _write(path, text)
    if options.json:
        data = {"schema": SCHEMA, "dry_run": options.dry_run, "files": [str(path) for path in made]}
        return Reply(code=0, out=json_document(data))
    if options.dry_run:
        return Reply(code=0, out=f"would write\n{names}")
    check, test = made
    return Reply(
        code=0,
        out=f"written\n{names}"
        f"next: put the fact that you check into {check} and {test}, then\n"
        f"  make test-check CHECK={options.name}\n",
    )


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise HealthdError(f"cannot write {path}: {error.strerror}") from error


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
    return Template(shipped_text("healthd.cli", f"check_templates/{template}")).substitute(words)
