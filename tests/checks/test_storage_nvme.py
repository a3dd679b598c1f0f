"""storage.nvme: missing, dead and warning disks are three things. Inputs are constructed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from healthd.checks.storage_nvme import NOT_LIVE, StorageNvmeSettings, storage_nvme
from healthd.core.check import discover
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Outcome, Result, Severity, Status
from healthd.core.node import CommandResult
from healthd.judge.history import History, observe
from healthd.testing import Entry, FakeNode
from healthd.testing import codes as codes_of
from tests.support.over_time import open_codes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GOOD: dict[str, Any] = {"critical_warning": 0, "media_errors": 0, "percent_used": 1}


def answer(name: str, log: dict[str, Any] | str, code: int = 0) -> CommandResult:
    text = log if isinstance(log, str) else json.dumps(log)
    argv = ("nvme", "smart-log", "-o", "json", f"/dev/{name}")
    return CommandResult(argv=argv, code=code, stdout=text, stderr="NVMe status: x", duration_s=0.01)


def run(
    local: int = 8,
    *,
    instance_type: str | None = "p5.48xlarge",
    state: str = "live",
    log: CommandResult | SourceError | None = None,
    sys: dict[str, Entry] | None = None,
    **settings: Any,
) -> Result:
    tree: dict[str, Entry] = {"class/net/lo/mtu": "1"}
    commands: dict[tuple[str, ...], CommandResult | SourceError] = {}
    models = ["Amazon Elastic Block Store", *["Amazon EC2 NVMe Instance Storage"] * local]
    for number, model in enumerate(models):
        name = f"nvme{number}"
        tree |= {f"class/nvme/{name}/model": f"{model}   \n", f"class/nvme/{name}/state": "live"}
        tree[f"class/nvme/{name}/serial"] = f"AWS{number}"
        commands[answer(name, GOOD).argv] = answer(name, GOOD)
    tree["class/nvme/nvme1/state"] = state if local else "live"
    if log is not None:
        commands[answer("nvme1", GOOD).argv] = log
    node = FakeNode(sys=tree if sys is None else sys, commands=commands, instance_type=instance_type)
    return storage_nvme(node, StorageNvmeSettings(**settings))


codes = partial(codes_of, family="storage.nvme.")


def test_all_there() -> None:
    """Eight local disks of a p5, all live and without a warning: ok; the volume of EBS is not one of them."""
    result = run()
    assert result.status is Status.OK
    assert [reading.component.id for reading in result.readings] == [f"nvme{number}" for number in range(1, 9)]


def test_missing() -> None:
    """Fewer than the type has is a warning with both numbers."""
    (finding,) = run(7).findings
    assert (finding.code, finding.severity) == ("storage.nvme.missing", Severity.WARNING)
    assert finding.message == "7 of 8 instance-store disks are present"


@pytest.mark.parametrize(("kind", "found"), [("p99.metal", []), (None, []), ("p4d.24xlarge", ["missing"])])
def test_what_is_expected_of_a_type(kind: str | None, found: list[str]) -> None:
    """A type that the table does not know misses nothing; configuration goes before the table."""
    assert codes(run(2, instance_type=kind)) == found
    assert codes(run(2, instance_type=kind, count=2)) == []
    assert codes(run(2, instance_type=kind, count=3)) == ["missing"]


def test_no_disk_at_all() -> None:
    """Nothing there and nothing expected does not apply; nothing there of eight is missing, until the site expects
    none; no /sys is unknown."""
    bare: dict[str, Entry] = {"class/net/lo/mtu": "1"}
    assert run(sys=bare, instance_type=None).status is Status.NOT_APPLICABLE
    assert codes(run(sys=bare)) == ["missing"]
    assert open_codes("storage.nvme", [run(sys=bare), run(sys=bare, count=0)])[-1] == set()
    with pytest.raises(SourceMissing):
        run(sys={})


@pytest.mark.parametrize("state", ["dead", "resetting", "connecting", "deleting"])
def test_a_controller_that_does_not_live(state: str) -> None:
    """Any state but live is a finding of that disk, once it lasts: a reset passes."""
    result = run(state=state)
    assert [(finding.code, str(finding.component)) for finding in result.findings] == [
        ("storage.nvme.not_live", "nvme:nvme1")
    ]
    assert NOT_LIVE.lasting_s > 0


@pytest.mark.parametrize(
    ("warning", "words"),
    [
        (1, "spare below"),
        (4, "reliability"),
        (8, "read-only"),
        (12, "reliability degraded, read-only"),
        (64, "unknown"),
    ],
)
def test_a_critical_warning(warning: int, words: str) -> None:
    """Each bit by its word, in either form of nvme-cli's output."""
    for value in (warning, {"value": warning, "available_spare": 0}, str(warning)):
        result = run(log=answer("nvme1", {**GOOD, "critical_warning": value}))
        assert codes(result) == ["smart"]
        assert words in result.findings[0].message


def test_media_errors_are_judged_by_growth() -> None:
    """A disk may come with errors of its past; a new one is a finding; a new disk in its place starts anew."""
    history, seen = History(), []
    for errors in (5, 5, 6):
        result = run(log=answer("nvme1", {**GOOD, "media_errors": errors}))
        outcome = Outcome(check="storage.nvme", result=result, at=NOW, duration_s=0.0)
        history, _ = observe(history, outcome, discover()["storage.nvme"].limits, NOW)
        seen.append([code for _, code in history.faults])
    assert seen == [[], [], ["storage.nvme.media"]]
    assert run().readings[0].epoch == "AWS1"


@pytest.mark.parametrize(
    "log",
    [
        SourceTimeout("no end within 5 s"),
        answer("nvme1", "", code=1),
        answer("nvme1", "garbage"),
        answer("nvme1", "[]"),
        answer("nvme1", {"critical_warning": 0}),
        answer("nvme1", {"critical_warning": None, "media_errors": 0}),
    ],
)
def test_a_log_that_cannot_be_read_is_a_gap(log: CommandResult | SourceError) -> None:
    """One disk's unknown log hides neither the other disks nor a missing one, and can be switched off."""
    result = run(log=log)
    assert (result.status, len(result.undecided)) == (Status.UNKNOWN, 1)
    assert codes(run(7, log=log)) == ["missing"]
    assert run(log=log, smart=False).status is Status.OK


def test_without_nvme_cli_the_rest_is_still_told() -> None:
    """A tool that is not installed is no fault and no gap: the disks are counted and their states read, and why no
    SMART log was read is said. A disk that had warned of its own failure has not taken that back."""
    without = SourceMissing("nvme: no such command")
    result = run(log=without)
    assert (result.status, result.undecided) == (Status.OK, ())
    assert result.reason == "SMART logs are not read: nvme: no such command; install nvme-cli"
    assert codes(run(7, log=without)) == ["missing"]
    assert codes(run(state="dead", log=without)) == ["not_live"]
    history, open_faults = History(), []
    for log in (answer("nvme1", {**GOOD, "critical_warning": 4}), without, answer("nvme1", GOOD)):
        outcome = Outcome(check="storage.nvme", result=run(log=log), at=NOW, duration_s=0.0)
        history, _ = observe(history, outcome, discover()["storage.nvme"].limits, NOW)
        open_faults.append([code for _, code in history.faults])
    assert open_faults == [["storage.nvme.smart"], ["storage.nvme.smart"], []]


def test_a_state_that_cannot_be_read_is_unknown() -> None:
    """A controller whose state file fails is unknown."""
    with pytest.raises(SourceUnreadable):
        run(sys={"class/nvme/nvme0/model": "x", "class/nvme/nvme0/state": SourceUnreadable("EIO")})
