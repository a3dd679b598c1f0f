"""host.services: failed, stopped, missing and restarting are four things, no systemd is none. Constructed."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from healthd.checks.host_services import HostServicesSettings, host_services
from healthd.core.check import discover
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Outcome, Result, Severity, Status
from healthd.core.node import CommandResult
from healthd.judge.history import History, observe
from healthd.testing import FakeNode
from healthd.testing import codes as codes_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COMMAND = (
    "systemctl",
    "show",
    "--property=Id,LoadState,ActiveState,SubState,Result,UnitFileState,NRestarts",
    "--",
)


def unit(name: str, active: str = "active", **more: str) -> str:
    values = {"Id": name, "LoadState": "loaded", "ActiveState": active, "UnitFileState": "enabled", "NRestarts": "0"}
    return "\n".join(f"{key}={value}" for key, value in {**values, **more}.items())


def absent(name: str) -> str:
    return f"Id={name}\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\nNRestarts=0"


def run(
    *blocks: str,
    first: str | SourceError = "systemd",
    names: tuple[str, ...] = ("slurmd.service",),
    answer: SourceError | None = None,
    code: int = 0,
    instance_type: str | None = None,
    required: tuple[str, ...] = (),
) -> Result:
    asked = (*COMMAND, *dict.fromkeys((*names, *required)))
    out = CommandResult(argv=asked, code=code, stdout="\n\n".join(blocks), stderr="no bus", duration_s=0.1)
    node = FakeNode(proc={"1/comm": first}, commands={asked: answer or out}, instance_type=instance_type)
    return host_services(node, HostServicesSettings(units=names, required=required))


codes = partial(codes_of, family="host.service.")


def test_running() -> None:
    """A unit that is active is ok, and its restarts are counted."""
    result = run(unit("slurmd.service", NRestarts="2"))
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "service_active_bool": True,
        "service_restarts_total": 2,
    }


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (unit("slurmd.service", "failed", Result="exit-code"), ["failed"]),
        (unit("slurmd.service", "inactive"), ["stopped"]),
        (unit("slurmd.service", "inactive", UnitFileState="disabled"), []),
        (unit("slurmd.service", "activating"), []),
        (absent("slurmd.service"), []),
        (unit("slurmd.service", "inactive", LoadState="masked", UnitFileState="masked"), []),
    ],
)
def test_a_unit_that_does_not_run(block: str, found: list[str]) -> None:
    """Failed, or enabled and stopped, is a finding; not installed, switched off or starting is none."""
    result = run(block)
    assert codes(result) == found
    assert all(finding.severity is Severity.WARNING for finding in result.findings)


@pytest.mark.parametrize(
    "block", [absent("slurmd.service"), unit("slurmd.service", "inactive", UnitFileState="disabled")]
)
def test_a_required_unit(block: str) -> None:
    """What the site requires must be active, whatever the image says."""
    assert codes(run(block, names=(), required=("slurmd.service",))) == ["missing"]
    assert codes(run(unit("slurmd.service"), names=(), required=("slurmd.service",))) == []


def test_two_names_of_one_unit_are_one_finding() -> None:
    """An alias answers with the unit's own name."""
    block = unit("chrony.service", "failed")
    result = run(block, block, names=("chronyd.service", "chrony.service"), required=("chronyd.service",))
    assert [str(finding.component) for finding in result.findings] == ["service:chrony.service"]


def test_many_restarts_are_found_by_history() -> None:
    """Three restarts since the baseline are none, a fourth is a finding."""
    history, limits = History(), discover()["host.services"].limits
    seen = []
    for restarts in ("5", "8", "9"):
        result = run(unit("slurmd.service", NRestarts=restarts))
        outcome = Outcome(check="host.services", result=result, at=NOW, duration_s=0.0)
        history, _ = observe(history, outcome, limits, NOW)
        seen.append([code for _, code in history.faults])
    assert seen == [[], [], ["host.service.restarting"]]


@pytest.mark.parametrize(
    ("kind", "name", "asked"),
    [
        ("g5.xlarge", "nvidia-fabricmanager.service", False),
        ("p5.48xlarge", "nvidia-fabricmanager.service", True),
        (None, "nvidia-fabricmanager.service", True),
        ("p6-b200.48xlarge", "nvidia-imex.service", False),
        ("p6e-gb200.36xlarge", "nvidia-imex.service", True),
        (None, "nvidia-imex.service", True),
    ],
)
def test_a_service_of_the_fabric_is_for_nodes_that_have_it(kind: str | None, name: str, asked: bool) -> None:
    """Without NVSwitch the Fabric Manager ends with an error by design, and IMEX has nothing to do within one node."""
    if asked:
        assert codes(run(unit(name, "failed"), names=(name,), instance_type=kind)) == ["failed"]
    else:
        assert run(names=(name,), instance_type=kind).status is Status.NOT_APPLICABLE


def test_no_systemd() -> None:
    """Another process 1 means that there is nothing to ask; a process 1 that cannot be seen is unknown."""
    assert run(first="tini").status is Status.NOT_APPLICABLE
    with pytest.raises(SourceMissing):
        run(first=SourceMissing("/proc/1/comm"))


@pytest.mark.parametrize("error", [SourceMissing("no systemctl"), SourceTimeout("no end"), SourceUnreadable("fork")])
def test_systemd_without_an_answer_is_unknown(error: SourceError) -> None:
    """systemd runs and cannot be asked: unknown, and no finding about any service."""
    with pytest.raises(type(error)):
        run(answer=error)


@pytest.mark.parametrize(("blocks", "code"), [((unit("slurmd.service"),), 1), ((), 0), (("Id=x",), 0)])
def test_an_odd_answer_is_unknown(blocks: tuple[Any, ...], code: int) -> None:
    """A failing systemctl, too few answers, or one of another form."""
    with pytest.raises(SourceUnreadable, match="expected"):
        run(*blocks, code=code)
