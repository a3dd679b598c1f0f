"""host.clock: who keeps the time is asked first, the kernel second. Inputs are constructed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from healthd.checks.host_clock import OFFSET, UNSYNCHRONISED, HostClockSettings, host_clock
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Result, Severity, Status
from healthd.core.node import CommandResult, KernelClock
from healthd.testing import FakeNode
from healthd.testing import codes as codes_of

SOURCE = "devices/system/clocksource/clocksource0/current_clocksource"
COMMAND = ("chronyc", "-c", "tracking")
KERNEL = KernelClock(synchronised=True, offset_s=0.001)
LINE = "A9FEA97B,169.254.169.123,4,1764000000.1,{offset},0.0,0.0,-12.3,0.0,0.02,0.0003,0.0002,16.2,{leap}"


def chrony(offset: float = 0.0, leap: str = "Normal", code: int = 0) -> CommandResult:
    text = LINE.format(offset=f"{offset:.9f}", leap=leap) if code == 0 else "506 Cannot talk to daemon"
    return CommandResult(argv=COMMAND, code=code, stdout=text, stderr="", duration_s=0.01)


def run(
    answer: CommandResult | SourceError | None = None,
    kernel: KernelClock | SourceError | None = KERNEL,
    source: str = "tsc",
    **settings: Any,
) -> Result:
    commands: dict[tuple[str, ...], CommandResult | SourceError] = {COMMAND: answer or SourceMissing("not found")}
    return host_clock(
        FakeNode(sys={SOURCE: source}, commands=commands, kernel_clock=kernel), HostClockSettings(**settings)
    )


codes = partial(codes_of, family="host.clock.")


def test_kept_by_chronyd() -> None:
    """chronyd's word counts, and the kernel, which may know nothing of chronyd's work, is not asked."""
    result = run(chrony(0.002), kernel=SourceUnreadable("not to be asked"))
    assert (result.status, result.readings[0].value) == (Status.OK, 0.002)


@pytest.mark.parametrize("answer", [None, chrony(code=1)])
def test_kept_by_another(answer: CommandResult | None) -> None:
    """Without chronyd, installed or running, the kernel tells whether anyone keeps its clock."""
    assert run(answer).status is Status.OK
    nobody = KernelClock(synchronised=False, offset_s=0.0)
    assert codes(run(answer, kernel=nobody)) == ["unsynchronised"]


def test_not_synchronised() -> None:
    """chronyd without a source it trusts: a warning, once it has lasted longer than a boot takes."""
    result = run(chrony(leap="Not synchronised"))
    assert codes(result) == ["unsynchronised"]
    assert result.findings[0].severity is Severity.WARNING
    assert UNSYNCHRONISED.lasting_s >= 300


@pytest.mark.parametrize(("offset", "found"), [(0.5, []), (-0.5, []), (0.51, ["offset"]), (-61.0, ["offset"])])
def test_off(offset: float, found: list[str]) -> None:
    """Half a second either way is allowed, and the limit is a setting."""
    assert codes(run(chrony(offset))) == found
    assert codes(run(kernel=KernelClock(synchronised=True, offset_s=offset))) == found
    assert codes(run(chrony(offset), max_offset_s=100.0)) == []
    assert OFFSET.lasting_s > 0


@pytest.mark.parametrize(("source", "found"), [("kvm-clock", []), ("arch_sys_counter", []), ("hpet", ["source"])])
def test_clock_source(source: str, found: list[str]) -> None:
    """A source that programs cannot read by themselves is a finding."""
    assert codes(run(chrony(), source=source)) == found


@pytest.mark.parametrize("error", [SourceTimeout("no end within 3 s"), SourceUnreadable("fork")])
def test_a_chronyd_that_does_not_answer_is_unknown(error: SourceError) -> None:
    """A chronyc that hangs says nothing, and the kernel's word does not replace chronyd's."""
    with pytest.raises(type(error)):
        run(error)


def test_what_cannot_be_read_is_unknown() -> None:
    """No word of anyone, an odd word, or no clock source: unknown."""
    with pytest.raises(SourceUnreadable):
        run(kernel=SourceUnreadable("adjtimex: EPERM"))
    with pytest.raises(SourceUnreadable, match="expected 14 fields"):
        run(CommandResult(argv=COMMAND, code=0, stdout="a,b", stderr="", duration_s=0.0))
    with pytest.raises(SourceMissing):
        host_clock(FakeNode(commands={COMMAND: chrony()}), HostClockSettings())
