"""The rules of one direction inside remediation: a call goes down, and a value comes back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pure_modules import pure_modules, source_of

ROOT = Path(__file__).parents[3]
FOLDERS = ("decide", "engine", "controller")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / "remediation" / folder).glob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def handed_over(tree: ast.Module) -> Iterator[str]:
    """Each place where an object hands itself, a method of itself, or a closure over itself to somebody else. A frozen
    struct is a value, and may be handed on by its own methods."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not _is_value(node)):
        methods = {
            node.name
            for node in owner.body
            if isinstance(node, ast.FunctionDef) and not any(_is_property(each) for each in node.decorator_list)
        }
        for method in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            inner = {node.name for node in ast.walk(method) if isinstance(node, ast.FunctionDef) and node is not method}
            for call in (node for node in ast.walk(method) if isinstance(node, ast.Call)):
                if _is_self(call.func, methods):
                    continue
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                yield from (
                    f"{owner.name}.{method.name}: {ast.unparse(call.func)}({ast.unparse(each)})"
                    for each in given
                    if _hands_over(each, methods, inner)
                )


def _is_value(owner: ast.ClassDef) -> bool:
    return any(each.arg == "frozen" for each in owner.keywords)


def _is_property(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "property"


def _is_self(node: ast.expr, methods: set[str]) -> bool:
    """Whether this is ``self`` or a method of it."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in methods
    return isinstance(node, ast.Name) and node.id == "self"


def _hands_over(given: ast.expr, methods: set[str], inner: set[str]) -> bool:
    if isinstance(given, ast.Lambda):
        return any(isinstance(node, ast.Name) and node.id == "self" for node in ast.walk(given))
    if isinstance(given, ast.Name) and given.id in inner:
        return True
    if isinstance(given, ast.Tuple | ast.List | ast.Set):
        return any(_hands_over(each, methods, inner) for each in given.elts)
    if isinstance(given, ast.Dict):
        return any(_hands_over(each, methods, inner) for each in given.values)
    return _is_self(given, methods)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_hands_itself_to_its_collaborators(path: Path) -> None:
    """Neither itself, nor a method, nor a closure over itself: what is called calls nothing back."""
    assert list(handed_over(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    ("given", "is_found"),
    [
        ("Steps(self)", True),
        ("Steps(forbidden=self._forbidden)", True),
        ("Steps(forbidden=lambda: self.level)", True),
        ("Steps([self._forbidden])", True),
        ("Steps({1: self._forbidden})", True),
        ("Steps(forbidden=self._forbidden())", False),
        ("Steps(clock=self._clock)", False),
        ("Steps(self.level)", False),
        ("self._forbidden(self._forbidden)", False),
    ],
)
def test_a_hand_over_is_found(given: str, is_found: bool) -> None:
    """What the rule means: a value, or what was handed in from outside, may be handed on."""
    text = f"""
class Engine:
    def __init__(self, clock):
        self._clock = clock
        self.steps = {given}
    def _forbidden(self): ...
    @property
    def level(self): ...
"""
    assert bool(list(handed_over(ast.parse(text)))) is is_found


def test_a_closure_with_a_name_is_found() -> None:
    """A function inside of a method, handed on by its name, is a closure as well."""
    text = "class Engine:\n    def turn(self):\n        def ask(): ...\n        self._steps.take(ask)\n"
    assert list(handed_over(ast.parse(text))) == ["Engine.turn: self._steps.take(ask)"]


@pytest.mark.parametrize("module", [each for each in pure_modules() if each.startswith("healthd.remediation.")])
def test_a_pure_function_takes_values(module: str) -> None:
    """No parameter of it can be called, so that it reads nothing that it was not given."""
    tree = ast.parse((ROOT / source_of(module).with_suffix(".py")).read_text(encoding="utf-8"))
    called = [
        f"{function.name}({each.arg})"
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if each.annotation is not None and "Callable[" in ast.unparse(each.annotation)
    ]
    assert called == []
