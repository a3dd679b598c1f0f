"""A command that a text of healthd's names can be typed as it stands: a next step that is refused is none."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from healthd.api.grammar import TextRequested, parse
from healthd.core.errors import UsageError

ROOT = Path(__file__).parents[3]
FOLDERS = ("healthd", "remediation", "checks")
QUOTED = re.compile(r"`healthd ([^`]+)`")
FILLED = {"NODE": "gpu-1", "JOBID": "4711", "TEXT": "x", "VERB": "check", "OPTIONS": "--json"}
"""What an operator fills in, as a text names it."""
VALUES = {"step": "reset", "job": "4711"}
"""What stands for a value of that name; ``x1`` for any other."""
SPOKEN_OF = frozenset({"approve"})
"""Verbs that a text names without their arguments, where it tells of them and gives no step."""
TELLING = ("healthd/api/metrics.py", "healthd/cli/runbook.py")


def texts(path: Path) -> Iterator[str]:
    """Each string of a module that is no docstring, with something in the place of each value."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    parts = {id(each) for node in nodes if isinstance(node, ast.JoinedStr) for each in node.values}
    parts |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else _value(each) for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def _value(part: ast.expr) -> str:
    named = ast.unparse(part)
    return next((value for name, value in VALUES.items() if name in named), "x1")


def refused(command: str) -> str:
    """Why the command line is no command, or ""."""
    try:
        parse([FILLED.get(word, word) for word in shlex.split(command)])
    except TextRequested:
        return ""
    except UsageError as error:
        return str(error)
    return ""


def test_every_command_in_a_text_is_understood() -> None:
    """In messages, reports, reasons and hints; a metric's text may speak of a verb."""
    modules = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    found, wrong = 0, []
    for path in sorted(modules):
        name = path.relative_to(ROOT).as_posix()
        for command in (each for text in texts(path) for each in QUOTED.findall(text)):
            found += 1
            is_spoken_of = name in TELLING and command in SPOKEN_OF
            if not is_spoken_of and (why := refused(command)):
                wrong.append(f"{name}: `healthd {command}`: {why}")
    assert wrong == []
    assert found > 100, "the pattern still finds them"


def test_no_verb_is_spoken_of_that_needs_no_arguments() -> None:
    """The list has no dead entry."""
    assert all(refused(verb) for verb in SPOKEN_OF)
