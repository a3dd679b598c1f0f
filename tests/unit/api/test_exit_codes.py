"""Exit codes: one table, which every command and the reference keep to."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

import healthd
from healthd.api.exit_codes import MEANINGS, ExitCode, exit_code_of
from healthd.core import errors
from healthd.core.errors import (
    BackendBusy,
    BackendDenied,
    BackendRefused,
    BackendUnknown,
    ConfigError,
    HealthdError,
    NoDaemon,
    NotPermitted,
    SlotTaken,
    SourceTimeout,
    StartError,
    StoreError,
    UsageError,
)

PACKAGE = Path(healthd.__file__).parent


def test_the_numbers_are_those_of_sysexits() -> None:
    """Python knows them from the system's header."""
    of_the_system = (os.EX_USAGE, os.EX_UNAVAILABLE, os.EX_SOFTWARE, os.EX_TEMPFAIL, os.EX_NOPERM, os.EX_CONFIG)
    assert of_the_system == (
        ExitCode.USAGE,
        ExitCode.UNAVAILABLE,
        ExitCode.FAILED,
        ExitCode.TRY_AGAIN,
        ExitCode.NOT_PERMITTED,
        ExitCode.CONFIG,
    )
    assert set(MEANINGS) == set(ExitCode)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 64),
        (NoDaemon("x"), 69),
        (HealthdError("x"), 70),
        (StartError("x"), 70),
        (StoreError("x"), 70),
        (SourceTimeout("x"), 70),
        (BackendRefused("x"), 70),
        (SlotTaken("x"), 70),
        (BackendBusy("x"), 75),
        (BackendUnknown("x"), 75),
        (BackendDenied("x"), 77),
        (NotPermitted("x"), 77),
        (ConfigError(("x",)), 78),
    ],
)
def test_each_error_has_its_code(error: HealthdError, code: int) -> None:
    """A script can tell a wrong command line from a missing right, a missing daemon, and what may work later."""
    assert exit_code_of(error) == code


def test_the_tree_of_errors_says_the_same() -> None:
    """Its docstring names the codes."""
    named = dict(re.findall(r"[├└]── (\w+) .*exit (\d+)", errors.__doc__ or ""))
    assert len(named) >= 5
    for name, code in named.items():
        error = getattr(errors, name)
        assert exit_code_of(error(("x",)) if error is ConfigError else error("x")) == int(code), name


def test_no_command_ends_with_another_code() -> None:
    """Each number that stands in a reply of healthd is one of the table."""
    found = {
        (path.name, keyword.value.value)
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Reply"
        for keyword in call.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    }
    assert found, "there are such replies"
    assert {code for _, code in found} <= {int(code) for code in ExitCode}
