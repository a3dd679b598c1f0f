"""ena.allowances: what EC2 holds back, by growth within an hour. Inputs are constructed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from healthd.checks.ena_allowances import EnaAllowancesSettings, ena_allowances
from healthd.core.check import discover
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout
from healthd.core.model import Outcome, Result, Status
from healthd.core.node import CommandResult
from healthd.judge.history import History, observe
from healthd.testing import FakeLink, FakeNode

NOW = datetime(2026, 1, 1, tzinfo=UTC)
# In the form of the EC2 user guide's example.
STATISTICS = """NIC statistics:
     tx_timeout: 0
     bw_in_allowance_exceeded: {bw_in}
     bw_out_allowance_exceeded: 0
     pps_allowance_exceeded: 0
     conntrack_allowance_exceeded: {conntrack}
     linklocal_allowance_exceeded: 0
     queue_0_tx_cnt: 1"""
NET = {
    "class/net/lo/operstate": "unknown",
    "class/net/eth0/device/driver": FakeLink("../../bus/pci/drivers/ena"),
    "class/net/eth1/device/driver": FakeLink("../../bus/pci/drivers/ena"),
}


def answer(bw_in: int = 0, conntrack: int = 0, code: int = 0, text: str | None = None) -> CommandResult:
    out = STATISTICS.format(bw_in=bw_in, conntrack=conntrack) if text is None else text
    return CommandResult(argv=("ethtool", "-S", "eth0"), code=code, stdout=out, stderr="no stats", duration_s=0.01)


def run(eth0: CommandResult | SourceError, **settings: Any) -> Result:
    commands: dict[tuple[str, ...], CommandResult | SourceError] = {("ethtool", "-S", "eth0"): eth0}
    commands["ethtool", "-S", "eth1"] = answer()
    return ena_allowances(FakeNode(sys=NET, commands=commands), EnaAllowancesSettings(**settings))


def over_time(*answers: CommandResult) -> list[list[str]]:
    history, seen = History(), []
    for each in answers:
        outcome = Outcome(check="ena.allowances", result=run(each), at=NOW, duration_s=0.0)
        history, _ = observe(history, outcome, discover()["ena.allowances"].limits, NOW)
        seen.append([where for where, _ in history.faults])
    return seen


def test_within() -> None:
    """Every allowance of every ENA interface is a reading, and nothing is exceeded."""
    result = run(answer())
    assert (result.status, len(result.readings)) == (Status.OK, 10)


def test_exceeded() -> None:
    """A connection that could not be made is exceeded at once; a shaped burst is not; more than bursts is."""
    assert over_time(answer(conntrack=9), answer(conntrack=9), answer(conntrack=10))[-2:] == [[], ["interface:eth0"]]
    assert over_time(answer(), answer(bw_in=10_000), answer(bw_in=10_001)) == [[], [], ["interface:eth0"]]


def test_an_older_driver_has_fewer() -> None:
    """A counter that is not there is not zero: it has no reading."""
    names = [reading.name for reading in run(answer(text="NIC statistics:\n  pps_allowance_exceeded: 3")).readings]
    assert names[0] == "ena_pps_allowance_exceeded_total"
    assert len(names) == 1 + 5


def test_without_ethtool_it_does_not_apply() -> None:
    """A tool that is not installed is no trouble of the network, and not unknown for ever."""
    result = run(SourceMissing("ethtool: no such command"))
    assert result.status is Status.NOT_APPLICABLE
    assert result.reason.endswith("ethtool: no such command; install ethtool")


@pytest.mark.parametrize("bad", [SourceTimeout("no end within 3 s"), answer(code=94)])
def test_no_answer_is_a_gap(bad: CommandResult | SourceError) -> None:
    """One interface that does not answer is unknown and hides no other; it can be left out."""
    result = run(bad)
    assert (result.status, len(result.undecided), len(result.readings)) == (Status.UNKNOWN, 1, 5)
    assert run(bad, ignore=("eth0",)).status is Status.OK


def test_no_ena() -> None:
    """Without an ENA interface this does not apply; without a folder of interfaces it is unknown."""
    node = FakeNode(sys={"class/net/lo/operstate": "unknown"})
    assert ena_allowances(node, EnaAllowancesSettings()).status is Status.NOT_APPLICABLE
    with pytest.raises(SourceMissing):
        ena_allowances(FakeNode(), EnaAllowancesSettings())
