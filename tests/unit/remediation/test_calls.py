"""Requests are counted by what they came to, in words that cannot grow without bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from healthd.core.errors import BackendBusy, BackendDenied, BackendError, BackendRefused, BackendUnknown, SourceTimeout
from healthd.core.node import CommandResult
from healthd.remediation.orchestrators.kubernetes.api import Conflict, Disrupting, Missing
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.request_stats import RESULTS, RequestStats


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (BackendBusy("x"), "busy"),
        (BackendDenied("x"), "denied"),
        (BackendRefused("x"), "refused"),
        (BackendUnknown("x"), "unknown"),
        (Missing("x"), "missing"),
        (Conflict("x"), "conflict"),
        (Disrupting("x"), "disrupting"),
    ],
)
def test_an_error_is_counted_by_its_class_and_goes_on(error: BackendError, word: str) -> None:
    """The word is the same for every sentence; every other result of that request is there at 0."""
    calls = RequestStats()
    with pytest.raises(type(error)), calls.counting("kubernetes", "get node"):
        raise error
    found = {result: count for (_, _, result), count in calls.counted.items()}
    assert {result for result, count in found.items() if count} == {word}
    assert set(found) == {*RESULTS, word}


def test_what_raises_nothing_went_well() -> None:
    """Each request by itself."""
    calls = RequestStats()
    for _ in range(2):
        with calls.counting("aws", "ec2:RebootInstances"):
            pass
    assert calls.counted["aws", "ec2:RebootInstances", "ok"] == 2


def test_a_command_is_counted_by_its_program() -> None:
    """Never by its arguments, which name nodes; an exit status is a refusal, a time-out is unknown."""
    results = [
        CommandResult(argv=(), duration_s=0.1, code=0, stdout="", stderr=""),
        CommandResult(argv=(), duration_s=0.1, code=1, stdout="", stderr="no"),
    ]

    def run(argv: Sequence[str], **more: Any) -> CommandResult:
        if not results:
            raise SourceTimeout("late")
        return results.pop(0)

    calls = RequestStats()
    counted = calls.of_commands("slurm", run)
    assert [counted(["/opt/slurm/bin/scontrol", "show"]).code, counted(["scontrol"]).code] == [0, 1]
    with pytest.raises(SourceTimeout):
        counted(["scontrol"])
    assert {key: count for key, count in calls.counted.items() if count} == {
        ("slurm", "scontrol", "ok"): 1,
        ("slurm", "scontrol", "refused"): 1,
        ("slurm", "scontrol", "unknown"): 1,
    }


def test_aws_is_counted_by_its_operation() -> None:
    """What the child says decides; a child that breaks may have sent its call."""
    told = ['{"answer": {}}', '{"trouble": "denied", "code": "AccessDenied", "message": "no"}', "broken"]

    def child(*_: Any, **__: Any) -> CommandResult:
        return CommandResult(argv=(), duration_s=0.1, code=0, stdout=told.pop(0), stderr="")

    calls = RequestStats()
    aws = Aws(region="us-east-1", run=child, calls=calls)
    aws.call("ec2", "RebootInstances", InstanceIds=["i-1"])
    for error in (BackendDenied, BackendUnknown):
        with pytest.raises(error):
            aws.call("ec2", "RebootInstances", InstanceIds=["i-1"])
    made = {result: count for (to, request, result), count in calls.counted.items() if count}
    assert made == {"ok": 1, "denied": 1, "unknown": 1}
