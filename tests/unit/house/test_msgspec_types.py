"""What several threads read with msgspec, one thread has made before: at the import of its module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.limits import limit_s

ROOT = Path(__file__).resolve().parents[3]
# A daemon and a controller have an engine, a reporter, keepers and the threads of clients, which read at once.
SHARED = sorted(path for folder in ("checks", "healthd", "remediation") for path in (ROOT / folder).rglob("*.py"))
LIGHTKUBE = """
import sys
import threading
import healthd.remediation.orchestrators.kubernetes.api
from lightkube.core.internal_models import meta_v1

ERROR = {"kind": "Status", "code": 404, "metadata": {}, "details": {"causes": [{"field": "x"}]}}
THING = {"name": "n1", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "1"}]}
sys.setswitchinterval(1e-6)
together = threading.Barrier(8)

def read():
    together.wait()
    meta_v1.Status.from_dict(ERROR)
    meta_v1.ObjectMeta.from_dict(THING)

threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


@pytest.mark.parametrize("path", SHARED, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_type_is_met_for_the_first_time_in_a_call(path: Path) -> None:
    """Two threads that meet a type of msgspec (0.22.0) for the first time at once crash the process. So no call of
    ``json.decode`` names a type, and each type that ``convert`` names has a decoder that the module makes, by itself
    or in another type."""
    assert met_in_calls(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("msgspec.json.decode(b, type=Page)", [1]),
        ("msgspec.json.decode(b)", []),
        ("msgspec.convert(x, Thing | None)", [1]),
        ("READS = msgspec.json.Decoder(Thing)\nmsgspec.convert(x, Thing | None)", []),
        (
            "class Page:\n    items: tuple[Thing, ...]\nREADS = msgspec.json.Decoder(Page)\nmsgspec.convert(x, Thing)",
            [],
        ),
        ("def late():\n    return msgspec.json.Decoder(Thing)\nmsgspec.convert(x, Thing)", [3]),
    ],
)
def test_the_rule_finds_what_it_forbids(text: str, lines: list[int]) -> None:
    """A decoder that a function makes is no decoder of the module."""
    assert met_in_calls(ast.parse(text)) == lines


@pytest.mark.process
def test_nor_is_one_of_lightkube() -> None:
    """The first two errors of the API server that two threads get at once: without the module's decoders 9 of 20
    processes crashed."""
    argv = [sys.executable, "-c", LIGHTKUBE]
    processes = [subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(6)]
    ended = [(each.communicate(timeout=limit_s(60))[1], each.returncode) for each in processes]
    assert ended == [(b"", 0)] * len(processes)


def met_in_calls(tree: ast.Module) -> list[int]:
    """The lines whose call may be the first to meet a type."""
    decoded = [
        each.lineno for each in calls(tree, "msgspec.json.decode") if any(k.arg == "type" for k in each.keywords)
    ]
    made = made_by(tree)
    converted = [each.lineno for each in calls(tree, "msgspec.convert") if not types_in(each.args[1]) <= made]
    return sorted(decoded + converted)


def made_by(tree: ast.Module) -> set[str]:
    """The types that the module's own statements make decoders of, and those in their fields."""
    fields = {each.name: types_in(each) for each in tree.body if isinstance(each, ast.ClassDef)}
    statements = [each for each in tree.body if not isinstance(each, ast.FunctionDef | ast.ClassDef)]
    made: set[str] = set()
    found = {name for each in statements if any(calls(each, "msgspec.json.Decoder")) for name in types_in(each)}
    while found - made:
        made |= found
        found = {name for each in made for name in fields.get(each, set())}
    return made


def types_in(tree: ast.AST) -> set[str]:
    """The names in it that are written as those of types are."""
    names = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)}
    return {name for name in names if name.lstrip("_")[:1].isupper()}


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Every call of the function that is written so."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and ast.unparse(each.func) == name:
            yield each
