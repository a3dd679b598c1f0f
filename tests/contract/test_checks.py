"""What every check keeps to, whoever wrote it: its file alone must be enough to document, configure and trust it."""

from __future__ import annotations

import ast
import importlib
import inspect
import tokenize
from collections.abc import Mapping
from inspect import Parameter
from pathlib import Path

import pytest
from msgspec.structs import fields

from healthd.checklib.xids import xid_table
from healthd.config.report import documented_fields
from healthd.config.values import is_section
from healthd.core.check import Check, FindingCode, Learned, discover
from healthd.core.model import REMEDY_RANK, Remedy, Severity

CHECKS = discover()
CODES: Mapping[str, FindingCode] = {code.code: code for check in CHECKS.values() for code in check.codes}
# What a check may import: the contract, plain values, and what several checks read in the same way.
OF_HEALTHD = ("core.check", "core.errors", "core.model", "core.node", "core.setting_types", "checklib.")
OF_PYTHON = {
    "__future__",
    "collections",
    "datetime",
    "enum",
    "functools",
    "itertools",
    "math",
    "msgspec",
    "re",
    "typing",
}
MAX_CODE_LINES = 100

every_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


@every_check
def test_a_check_is_in_the_module_of_its_name(check: Check) -> None:
    """By its name it is found without the other checks."""
    assert check.run.__module__ == f"healthd.checks.{check.name.replace('.', '_')}"


def source_of(check: Check) -> Path:
    return Path(inspect.getsourcefile(check.run) or "")


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments, or strings that stand for themselves."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose: set[int] = set()
    for item in ast.walk(tree):
        if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str):
            prose.update(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    with tokenize.open(path) as file:
        lines = {
            line
            for token in tokenize.generate_tokens(file.readline)
            if token.type not in quiet
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len(lines - prose)


def imported(path: Path) -> set[str]:
    """The modules that a file imports, ``from healthd.checklib import x`` as ``healthd.checklib.x``."""
    found: set[str] = set()
    for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(item, ast.Import):
            found.update(alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            module = item.module or ""
            is_package = module in ("healthd.core", "healthd.checklib")
            found.update([f"{module}.{alias.name}" for alias in item.names] if is_package else [module])
    return found


def test_there_are_checks() -> None:
    """Discovery finds the checks that the rest of this file is about."""
    assert {"gpu.count", "gpu.ecc", "gpu.remap", "gpu.recovery", "nvml.probe"} <= CHECKS.keys()
    assert {"efa.devices", "lustre.mount", "host.filesystems"} <= CHECKS.keys()


@every_check
def test_one_file_holds_one_check(check: Check) -> None:
    """The file is named after the check, so whoever reads a name knows where to look."""
    assert source_of(check).stem == check.name.replace(".", "_")


@every_check
def test_the_docstring_is_a_title_an_explanation_and_sources(check: Check) -> None:
    """One line for lists, text for a person, and where the facts come from: here, in a limit, or in table rows."""
    title, _, rest = check.doc.partition("\n")
    assert title.endswith(".")
    assert len(title) <= 100
    assert rest.strip()
    tables = {"healthd.checklib.tables", "healthd.checklib.xids"}
    cited = "Source" in check.doc or check.limits or tables & set(imported(source_of(check)))
    assert cited, "say where the facts come from"


@every_check
def test_settings_are_frozen_defaulted_and_documented(check: Check) -> None:
    """A check runs on defaults alone, nothing changes its settings under way, and every field says what it is for."""
    assert is_section(check.settings)
    name = next(iter([item.name for item in fields(check.settings)]), "anything")
    with pytest.raises(AttributeError):
        setattr(check.settings(), name, None)
    assert {each.kind for each in inspect.signature(check.settings).parameters.values()} <= {Parameter.KEYWORD_ONLY}
    for row in documented_fields(check.settings):
        assert len(row.doc) >= 20, f"{check.name}.{row.name}: {row.doc!r}"


@every_check
def test_the_deadline_fits_the_interval(check: Check) -> None:
    """A run ends before the next is due."""
    assert check.timeout_s > 0
    assert check.on == "kernel" or check.timeout_s < check.interval_s


@every_check
def test_limits_lead_to_declared_codes(check: Check) -> None:
    """A limit that history judges finds something that the check has declared, and says where it comes from."""
    for limit in check.limits:
        assert limit.code in check.codes
        assert isinstance(limit, Learned) or limit.reading.endswith("_total"), "a limit is on a counter"
        assert limit.source


@every_check
def test_codes_are_declared_with_meaning(check: Check) -> None:
    """Every code has words for a person, and news that is no fault calls for nothing."""
    assert check.codes
    for code in check.codes:
        assert code.meaning
        assert not code.meaning.endswith(".")
        if code.severity is Severity.INFO:
            assert code.remedy is Remedy.NONE
        if REMEDY_RANK[code.remedy] >= REMEDY_RANK[Remedy.REBOOT_NODE]:
            assert code.severity is Severity.CRITICAL, f"{code.code}: what costs a node a reboot keeps jobs off"


def test_no_code_is_claimed_twice() -> None:
    """A code names one thing, found by one check."""
    claimed = [code.code for check in CHECKS.values() for code in check.codes]
    assert sorted(claimed) == sorted(set(claimed))


def test_causes_exist() -> None:
    """Whatever a symptom names as its cause is a declared code, or an XID of the table."""
    xids = {f"gpu.xid.{xid}" for xid in xid_table()}
    for code in CODES.values():
        assert set(code.symptom_of) <= xids | CODES.keys(), code.code


def test_no_two_codes_explain_each_other() -> None:
    """Following causes from any code never comes back to it."""

    def causes(code: str, path: tuple[str, ...]) -> None:
        assert code not in path, " <- ".join((*path, code))
        for cause in CODES[code].symptom_of if code in CODES else ():
            causes(cause, (*path, code))

    for code in CODES:
        causes(code, ())


@every_check
def test_a_check_is_small(check: Check) -> None:
    """A file that outgrows this is two checks, or judgement that belongs in a module of its own."""
    if check.on == "interval":
        assert code_lines(source_of(check)) <= MAX_CODE_LINES


@every_check
def test_a_check_imports_the_contract_and_nothing_else(check: Check) -> None:
    """No source, no back end, no clock, no file, no process: a check asks its Node."""
    for module in imported(source_of(check)):
        package, _, name = module.partition(".")
        assert name.startswith(OF_HEALTHD) if package == "healthd" else package in OF_PYTHON, module


def test_every_module_of_the_package_is_a_check() -> None:
    """Nothing in the folder of checks is there for another reason."""
    folder = Path(next(iter(importlib.import_module("healthd.checks").__path__)))
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {source_of(check).stem for check in CHECKS.values()}
