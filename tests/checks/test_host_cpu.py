"""host.cpu: what is present runs, unless it is off by choice. Inputs are constructed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from healthd.checks.host_cpu import HostCpuSettings, host_cpu
from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.core.model import Result, Severity, Status
from healthd.testing import Entry, FakeNode
from healthd.testing import codes as codes_of

CPU = "devices/system/cpu"
PSI = "some avg10=0.00 avg60=0.00 avg300=25.00 total=1"


def run(
    online: str = "0-191",
    *,
    present: str = "0-191",
    smt: str = "on",
    proc: Mapping[str, Entry] | None = None,
    **more: Any,
) -> Result:
    sys = {f"{CPU}/present": present, f"{CPU}/online": online, f"{CPU}/smt/control": smt}
    return host_cpu(FakeNode(sys=sys, proc={"pressure/cpu": PSI} if proc is None else proc), HostCpuSettings(**more))


codes = partial(codes_of, family="host.cpu.")


def test_all_run() -> None:
    """All that is present runs; how many, and how long programs waited for one, are readings."""
    result = run()
    assert result.status is Status.OK
    assert {reading.name: reading.value for reading in result.readings} == {
        "cpus_online_count": 192,
        "cpu_pressure_some_ratio": 0.25,
    }


def test_offline() -> None:
    """One that is off is named, as a warning; one that is off on purpose is not."""
    (finding,) = run("0-6,8-191").findings
    assert (finding.code, finding.severity) == ("host.cpu.offline", Severity.WARNING)
    assert finding.evidence["offline"] == [7]
    assert run("0-6,8-191", offline=(7,)).status is Status.OK


@pytest.mark.parametrize("smt", ["off", "forceoff"])
def test_without_multithreading_the_siblings_are_off(smt: str) -> None:
    """Half of all may be off then, and no more."""
    assert run("0-95", smt=smt).status is Status.OK
    assert codes(run("0-94", smt=smt)) == ["offline"]
    assert codes(run("0-95", smt="on")) == ["offline"]


def test_a_kernel_without_smt_control_or_pressure() -> None:
    """Neither file is needed."""
    sys: dict[str, Entry] = {f"{CPU}/present": "0-1", f"{CPU}/online": "0-1"}
    assert host_cpu(FakeNode(sys=sys), HostCpuSettings()).status is Status.OK


def test_the_count_is_a_setting() -> None:
    """A count that was configured must be met exactly."""
    assert codes(run(count=96)) == ["count"]
    assert codes(run(count=192)) == []


def test_what_cannot_be_read_is_unknown() -> None:
    """No list, an odd one, an empty one, or one that cannot be read is unknown."""
    with pytest.raises(SourceMissing):
        host_cpu(FakeNode(), HostCpuSettings())
    for online in ("", "zero"):
        with pytest.raises(SourceUnreadable):
            run(online)
    with pytest.raises(SourceUnreadable):
        run(proc={"pressure/cpu": SourceUnreadable("EIO")})


def frame(packages: int = 2, governors: tuple[str, ...] = ("performance",) * 4, **settings: Any) -> Result:
    """Four processors, in so many packages, each under its governor."""
    sys: dict[str, Entry] = {f"{CPU}/present": "0-3", f"{CPU}/online": "0-3"}
    sys |= {f"{CPU}/cpu{cpu}/topology/physical_package_id": str(cpu % packages) for cpu in range(4)}
    sys |= {f"{CPU}/cpufreq/policy{cpu}/scaling_governor": governor for cpu, governor in enumerate(governors)}
    return host_cpu(FakeNode(sys=sys, proc={"pressure/cpu": PSI}), HostCpuSettings(**settings))


def test_sockets_are_counted_where_that_is_configured() -> None:
    """Another number of sockets is a finding; without a configured number any is well."""
    assert codes(frame(2, sockets=2)) == []
    assert codes(frame(1, sockets=2)) == ["sockets"]
    assert codes(frame(1)) == []


def test_a_governor_is_compared_where_one_is_configured() -> None:
    """One processor under another governor is enough, and the other governor is named."""
    mixed = ("performance", "performance", "powersave", "performance")
    (finding,) = frame(governors=mixed, governor="performance").findings
    assert (finding.code, finding.evidence["policies"]) == ("host.cpu.governor", ["policy2"])
    assert "powersave" in finding.message
    assert codes(frame(governor="performance")) == codes(frame(governors=mixed)) == []


def test_a_machine_without_governors_is_unknown() -> None:
    """A virtual machine that shows no frequency policy cannot be said to have the right one."""
    with pytest.raises(SourceMissing):
        frame(governors=(), governor="performance")
