"""Which lines of a module ran, and which way its branches went, told by probes in its own code.

Python 3.11 has no ``sys.monitoring``. The trace function that coverage.py sets instead makes each line of the process
five times as slow, also where it measures nothing. SlipCover notes a line once in a process, so that a test that does
not count hides it from those that do. A probe stores one byte. coverage.py still says which lines and branches a source
has and which of them do not count: a kind of branch that has no probe here is one that was not taken, and ends the run
red. ``tests/unit/house/test_branch_probes.py`` compares the two.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from coverage.parser import PythonParser
from msgspec import Struct, field

Arc = tuple[int, int]
"""From line to line. A line that ran is an arc from ``ENTRY``."""

ENTRY = -1
RAN = "__ran__"
"""The name of the probes' bytes in a module."""


class Probe(Struct, frozen=True, kw_only=True):
    """What is known once it ran. ``arcs``: these were taken; ``passed``: of the lines of these, another arc."""

    arcs: tuple[Arc, ...] = ()
    passed: tuple[Arc, ...] = ()


class Probed(Struct):
    """A module's tree with probes in it, which store at ``offset`` and after."""

    offset: int = 0
    probes: list[Probe] = field(default_factory=list)

    def block(self, body: list[ast.stmt], *, arcs: Sequence[Arc] = (), passed: Sequence[Arc] = ()) -> list[ast.stmt]:
        """A probe beside each statement but the docstring. The first one tells as well how one comes here."""
        docstring = body[:1] if body and is_text(body[0]) and not (arcs or passed) else []
        probed = list(docstring)
        for statement in body[len(docstring) :]:
            lines = range(first_line(statement), statement.lineno + 1)
            told = Probe(arcs=(*arcs, *((ENTRY, line) for line in lines)), passed=tuple(passed))
            ran, arcs, passed = self._probe(statement, told), (), ()
            self._inside(statement)
            opens = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            probed += [statement, ran] if opens else [ran, statement]
        return probed

    def _probe(self, at: ast.stmt, probe: Probe) -> ast.stmt:
        number = ast.Constant(self.offset + len(self.probes))
        byte = ast.Subscript(value=ast.Name(id=RAN, ctx=ast.Load()), slice=number, ctx=ast.Store())
        self.probes.append(probe)
        return ast.fix_missing_locations(ast.copy_location(ast.Assign(targets=[byte], value=ast.Constant(1)), at))

    def _inside(self, statement: ast.stmt) -> None:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.With() | ast.AsyncWith():
                statement.body = self.block(statement.body)
            case ast.If() | ast.For() | ast.AsyncFor() | ast.While():
                arc = (statement.lineno, first_line(statement.body[0]))
                statement.body = self.block(statement.body, arcs=[arc])
                statement.orelse = self._passed(statement, statement.orelse, [arc])
            case ast.Try() | ast.TryStar():
                statement.body = self.block(statement.body)
                self._one_of([(each.lineno, each) for each in statement.handlers])
                statement.orelse = self.block(statement.orelse)
                statement.finalbody = self.block(statement.finalbody)
            case ast.Match():
                arcs = self._one_of([(each.pattern.lineno, each) for each in statement.cases])
                if not irrefutable(statement.cases[-1]):
                    body = self._passed(statement, [], arcs)
                    pattern = ast.copy_location(ast.MatchAs(), statement)
                    statement.cases.append(ast.match_case(pattern=pattern, body=body))
            case _:
                pass

    def _one_of(self, clauses: Sequence[tuple[int, ast.ExceptHandler | ast.match_case]]) -> list[Arc]:
        """One that is entered shows that those before it were not."""
        passed: list[Arc] = []
        for line, clause in clauses:
            arc = (line, first_line(clause.body[0]))
            clause.body = self.block(clause.body, arcs=[arc], passed=passed)
            passed.append(arc)
        return passed

    def _passed(self, at: ast.stmt, orelse: list[ast.stmt], arcs: list[Arc]) -> list[ast.stmt]:
        return self.block(orelse, passed=arcs) if orelse else [self._probe(at, Probe(passed=tuple(arcs)))]


def first_line(statement: ast.stmt) -> int:
    """Of its decorators, if it has some."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
    return statement.lineno


def is_text(statement: ast.stmt) -> bool:
    """Whether it is a docstring, or what is like one."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def irrefutable(case: ast.match_case) -> bool:
    """Whether no other case may follow it."""
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


def probed(source: str, offset: int = 0) -> tuple[ast.Module, list[Probe]]:
    """The source's tree with probes, and what each of them tells."""
    tree, into = ast.parse(source), Probed(offset=offset)
    tree.body = into.block(tree.body)
    return tree, into.probes


def arcs_of(source: str, ran: Collection[int]) -> set[Arc]:
    """The arcs that were taken where the probes of these numbers ran, as coverage.py names them."""
    parser = PythonParser(text=source)
    parser.parse_source()
    known, (_, probes) = parser.arcs(), probed(source)
    told = [probes[number] for number in ran]
    passed = {arc for probe in told for arc in probe.passed}
    others = {(start, end) for start, end in known for line, entered in passed if start == line != entered != end}
    return others | {arc for probe in told for arc in probe.arcs} | {(ENTRY, line) for line, _ in passed}


class Probes(MetaPathFinder):
    """Loads these modules with probes, and keeps what they tell while they count."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules = frozenset(modules)
        self._ran, self._kept = bytearray(), 0
        self._places: dict[str, range] = {}

    def install(self) -> None:
        """Before any of them is imported."""
        early = sorted(self._modules & sys.modules.keys())
        if early:
            msg = f"imported before its probes were there: {', '.join(early)}"
            raise RuntimeError(msg)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The ordinary one, with another loader."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._modules else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self)
        return spec

    def place(self, module: str, source: str) -> ast.Module:
        """Its tree with probes, and room for what they store."""
        tree, probes = probed(source, offset=len(self._ran))
        self._places[module] = range(len(self._ran), len(self._ran) + len(probes))
        self._ran.extend(bytes(len(probes)))
        return tree

    @property
    def ran(self) -> bytearray:
        """Where the probes store."""
        return self._ran

    def keep(self) -> None:
        """What ran until now counts."""
        self._kept |= int.from_bytes(self._ran, "little")

    def forget(self) -> None:
        """What ran since it was kept does not count."""
        self._ran[:] = bytes(len(self._ran))

    def kept(self) -> dict[str, list[int]]:
        """By module, the numbers of its probes that ran and count."""
        flags = self._kept.to_bytes(len(self._ran), "little")
        return {
            module: [number for number, at in enumerate(place) if flags[at]] for module, place in self._places.items()
        }


class _Loader(SourceFileLoader):
    """Compiles with probes. Its bytecode is of no use to another loader, and is not cached."""

    def __init__(self, fullname: str, path: str, probes: Probes) -> None:
        super().__init__(fullname, path)
        self._probes = probes

    def get_code(self, fullname: str) -> CodeType:
        tree = self._probes.place(fullname, Path(self.path).read_text(encoding="utf-8"))
        return compile(tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[RAN] = self._probes.ran
        super().exec_module(module)
