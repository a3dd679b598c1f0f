"""host.memory: errors of memory, and shortage, which is a job's. Inputs are constructed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from healthd.checklib.tables import InstanceProfile, instance_types
from healthd.checks.host_memory import PRESSURE, HostMemorySettings, host_memory
from healthd.core.check import discover
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Outcome, Result, Severity, Status
from healthd.judge.history import History, observe
from healthd.testing import Entry, FakeNode
from healthd.testing import codes as codes_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PSI = "some avg10=0.00 avg60=0.00 avg300=9.00 total=1\nfull avg10=0.00 avg60=0.00 avg300={share} total=1"
MC = "devices/system/edac/mc"


def run(
    *,
    corrected: str = "0",
    uncorrected: str | SourceError = "0",
    poisoned: int = 0,
    share: float = 0.0,
    kills: int = 0,
    sys: Mapping[str, Entry] | None = None,
    proc: Mapping[str, Entry] | None = None,
    **settings: Any,
) -> Result:
    edac: dict[str, Entry] = {f"{MC}/mc0/ce_count": corrected, f"{MC}/mc0/ue_count": uncorrected, f"{MC}/power/x": ""}
    tree: dict[str, Entry] = {
        "meminfo": f"MemTotal:       2000 kB\nMemAvailable:   1000 kB\nHardwareCorrupted:     {poisoned} kB",
        "vmstat": f"nr_free_pages 7\noom_kill {kills}",
        "pressure/memory": PSI.format(share=f"{share:.2f}"),
        **(proc or {}),
    }
    return host_memory(FakeNode(sys=edac if sys is None else sys, proc=tree), HostMemorySettings(**settings))


codes = partial(codes_of, family="host.memory.")


def over_time(*results: Result) -> list[list[str]]:
    """The open codes after each result, five minutes apart."""
    history, seen = History(), []
    for number, result in enumerate(results):
        now = NOW + timedelta(minutes=5 * number)
        outcome = Outcome(check="host.memory", result=result, at=now, duration_s=0.0)
        history, _ = observe(history, outcome, discover()["host.memory"].limits, now)
        seen.append([code.removeprefix("host.memory.") for _, code in history.faults])
    return seen


def test_healthy() -> None:
    """No errors and room: ok, with its numbers as readings."""
    result = run()
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "memory_corrected_errors_total": 0,
        "oom_kills_total": 0,
        "memory_available_bytes": 1_024_000,
        "memory_pressure_full_ratio": 0.0,
    }


def test_uncorrected() -> None:
    """Uncorrected errors of a controller, and memory given up, are each a warning of their own component."""
    result = run(uncorrected="1", poisoned=4)
    assert [(finding.code, str(finding.component), finding.severity) for finding in result.findings] == [
        ("host.memory.uncorrected", "memory:mc0", Severity.WARNING),
        ("host.memory.uncorrected", "node", Severity.WARNING),
    ]


def test_corrected_errors_are_judged_by_growth() -> None:
    """What was counted before is a baseline; a hundred more are none, and another is many."""
    assert over_time(run(corrected="900"), run(corrected="1000"), run(corrected="1001")) == [[], [], ["corrected"]]


def test_running_out_of_memory_is_news_about_a_job() -> None:
    """A process that the kernel ended is an info for a while, and no fault of the machine."""
    seen = over_time(run(kills=3), run(kills=4), *[run(kills=4)] * 4)
    assert (seen[0], seen[1], seen[-1]) == ([], ["out_of_memory"], [])


@pytest.mark.parametrize(("share", "found"), [(20.0, []), (20.01, ["pressure"])])
def test_pressure(share: float, found: list[str]) -> None:
    """Waiting for memory a fifth of the time is too much, once it lasts."""
    assert codes(run(share=share)) == found
    assert codes(run(share=share, max_pressure_ratio=0.5)) == []
    assert PRESSURE.lasting_s > 0


def test_little_memory() -> None:
    """Less than was configured is a finding; nothing is judged by default on a type that is not known."""
    assert codes(run(min_total_bytes=2_048_001)) == ["small"]
    assert codes(run(min_total_bytes=2_048_000)) == []


TYPES = [profile for profile in instance_types().values() if profile.memory_mib]


def of_type(name: str, total_mib: float, **settings: Any) -> list[str]:
    """What is found on an instance of this type whose kernel shows so much memory."""
    proc = {"meminfo": f"MemTotal: {int(total_mib * 1024)} kB", "vmstat": "oom_kill 0"}
    return codes(host_memory(FakeNode(instance_type=name, proc=proc), HostMemorySettings(**settings)))


@pytest.mark.parametrize("profile", TYPES, ids=lambda profile: profile.type)
def test_a_lost_module_shows_against_the_instance_type(profile: InstanceProfile) -> None:
    """The kernel's tables, and a crash kernel of 1 GiB, are no loss; one module of eight is, on every type."""
    kernel = 63 / 64
    assert of_type(profile.type, profile.memory_mib) == []
    assert of_type(profile.type, profile.memory_mib * kernel - 1024) == []
    assert of_type(profile.type, profile.memory_mib * kernel * 7 / 8) == ["missing"]
    assert of_type(profile.type, profile.memory_mib / 2, min_total_bytes=1) == []


def test_one_module_of_sixteen_shows_on_large_instances() -> None:
    """128 GiB of a p5's 2 TiB, with room for what firmware keeps; nothing is expected of a type without a figure."""
    assert of_type("p5.48xlarge", 2097152 * 15 / 16 * 63 / 64) == ["missing"]
    assert of_type("p6e-gb200.36xlarge", 1) == of_type("p99.metal", 1) == []


def test_a_virtual_machine_has_no_edac() -> None:
    """Without EDAC, without a controller in it, or without pressure information, the rest is judged."""
    trees: tuple[dict[str, Entry], ...] = (
        {},
        {"devices/system/edac/mc/": ""},
        {"devices/system/edac/mc/mc0/size_mb": "1"},
    )
    for sys in trees:
        assert run(sys=sys).status is Status.OK
    assert codes(run(sys={}, poisoned=4)) == ["uncorrected"]
    assert (
        host_memory(FakeNode(proc={"meminfo": "MemTotal: 1 kB", "vmstat": "x 1"}), HostMemorySettings()).status
        is Status.OK
    )


def test_what_cannot_be_read_is_unknown() -> None:
    """A count, or a meminfo, that cannot be read or has another form is unknown."""
    answers: tuple[str | SourceError, ...] = (SourceUnreadable("EIO"), "many")
    for bad in answers:
        with pytest.raises(SourceUnreadable):
            run(uncorrected=bad)
    with pytest.raises(SourceMissing):
        host_memory(FakeNode(), HostMemorySettings())
    with pytest.raises(SourceUnreadable, match="MemTotal"):
        run(proc={"meminfo": ""})
    with pytest.raises(SourceUnreadable):
        run(proc={"pressure/memory": "busy"})


@pytest.mark.parametrize(("swap_kib", "wanted", "found"), [(8, False, ["swap"]), (0, True, ["swap"]), (0, False, [])])
def test_swap_is_judged_only_where_it_is_configured(swap_kib: int, wanted: bool, found: list[str]) -> None:
    """Swap that is on or off against the configuration is a finding; without one either is well."""
    meminfo = {"meminfo": f"MemTotal:  2000 kB\nHardwareCorrupted: 0 kB\nSwapTotal:  {swap_kib} kB"}
    assert codes(run(proc=meminfo, swap=wanted)) == found
    assert codes(run(proc=meminfo)) == []
