"""ebs.allowances: how long volumes were asked for too much, by growth within an hour. Inputs are constructed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from healthd.checks.ebs_allowances import ebs_allowances
from healthd.core.check import NoSettings, discover
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout
from healthd.core.model import Outcome, Result, Status
from healthd.core.node import CommandResult
from healthd.judge.history import History, observe
from healthd.testing import FakeNode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NVME = {
    "class/nvme/nvme0/model": "Amazon Elastic Block Store",
    "class/nvme/nvme0/serial": "vol0123456789abcdef0",
    "class/nvme/nvme1/model": "Amazon EC2 NVMe Instance Storage",
    "class/nvme/nvme1/serial": "AWS1",
}
COMMAND = ("nvme", "amzn", "stats", "/dev/nvme0n1", "-o", "json")
NAMES = tuple(
    f"{what}_performance_exceeded_{kind}" for what in ("ebs_volume", "ec2_instance_ebs") for kind in ("iops", "tp")
)


def answer(instance_iops_us: int = 0, *, code: int = 0, text: str | None = None, stderr: str = "") -> CommandResult:
    log = {**dict.fromkeys(NAMES, 0), "ec2_instance_ebs_performance_exceeded_iops": instance_iops_us}
    text = json.dumps(log) if text is None else text
    return CommandResult(argv=COMMAND, code=code, stdout=text, stderr=stderr, duration_s=0.01)


def run(given: CommandResult | SourceError, sys: dict[str, str] = NVME) -> Result:
    return ebs_allowances(FakeNode(sys=sys, commands={COMMAND: given}), NoSettings())


def over_an_hour(*microseconds: int) -> list[str]:
    """The open codes after looks that are spread over one hour."""
    history = History()
    for number, value in enumerate(microseconds):
        at = NOW + timedelta(seconds=3600 * number / (len(microseconds) - 1))
        outcome = Outcome(check="ebs.allowances", result=run(answer(value)), at=at, duration_s=0.0)
        history, _ = observe(history, outcome, discover()["ebs.allowances"].limits, at)
    return [f"{code} {where}" for where, code in history.faults]


def test_a_volume_that_gets_what_it_is_asked_for() -> None:
    """Only EBS volumes are asked; their four counters are readings, in seconds."""
    result = run(answer(2_500_000))
    assert result.status is Status.OK
    assert [reading.value for reading in result.readings] == [0, 0, 2.5, 0]
    assert {str(reading.component) for reading in result.readings} == {"nvme:nvme0"}


def test_minutes_of_an_hour_are_a_finding_and_moments_are_none() -> None:
    """Ten minutes within an hour may be asked too much; the first value is a baseline, however large."""
    minute = 60_000_000
    assert over_an_hour(90 * minute, 100 * minute) == []
    assert over_an_hour(90 * minute, 95 * minute, 101 * minute) == ["ebs.allowance_exceeded nvme:nvme0"]


@pytest.mark.parametrize(
    "given",
    [
        SourceMissing("nvme: not found"),
        answer(code=1, stderr="ERROR: Invalid sub-command 'stats' for plugin amzn"),
    ],
)
def test_without_a_tool_nothing_can_be_told(given: CommandResult | SourceError) -> None:
    """Without nvme-cli, or its plug-in, the check does not apply and says why."""
    result = run(given)
    assert result.status is Status.NOT_APPLICABLE
    assert "no tool" in result.reason


@pytest.mark.parametrize(
    "given",
    [SourceTimeout("no end within 5 s"), answer(code=1, stderr="EIO"), answer(text="{}"), answer(text="Total Ops:")],
)
def test_an_answer_that_is_none_is_unknown(given: CommandResult | SourceError) -> None:
    """A tool that hangs, fails or says something else is no zero."""
    assert run(given).status is Status.UNKNOWN


def test_a_machine_without_volumes() -> None:
    """No EBS volume: not applicable. A /sys that is hidden: unknown."""
    local = {key: text for key, text in NVME.items() if "nvme1" in key}
    assert run(answer(), local).status is Status.NOT_APPLICABLE
    assert run(answer(), {"class/net/lo/flags": "0x9"}).status is Status.NOT_APPLICABLE
    with pytest.raises(SourceMissing):
        run(answer(), {})
