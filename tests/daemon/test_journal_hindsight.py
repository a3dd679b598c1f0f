"""The journal of a node whose store was lost: what it still has is judged again, as far as it tells of one fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from healthd.agent.agent import Agent, acting_agent
from healthd.agent.hindsight import JournalHindsight
from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.errors import SourceMissing
from healthd.core.node import KernelRecord
from healthd.sim.machine import SimulatedMachine
from healthd.sources.journal import JournalBatch
from healthd.testing import FakeTree
from tests.support.running import UNCONTAINED

NOW = datetime.now(UTC)
OFF_THE_BUS = "NVRM: Xid (PCI:0000:06:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """A daemon at rest on a simulated node, with an empty store."""
    machine = SimulatedMachine(tmp_path / "machine")
    checks = {name: check.settings for name, check in discover().items()}
    made = acting_agent(
        load(machine.config, checks=checks, environ={}).config, source="daemon", environ={}, changed=lambda: None
    )
    yield made
    made.close()


def journal(*texts: str, cut: bool = False) -> Callable[[datetime], JournalBatch]:
    """A journal with these lines of an hour ago."""
    records = [
        KernelRecord(boot_id="b", sequence=number, time=NOW - timedelta(hours=1), text=text)
        for number, text in enumerate(texts)
    ]
    return lambda since: JournalBatch(records=tuple(each for each in records if each.time >= since), cut=cut)


def codes(agent: Agent) -> list[str]:
    return sorted(code for diagnosis in agent.monitor.diagnoses() for code in diagnosis.codes)


def test_the_line_of_the_fault_opens_it_again_and_no_other_does(agent: Agent) -> None:
    """Other lines may have been judged before, and are not judged twice."""
    hindsight = JournalHindsight(
        agent.checkup, agent.machine.proc, read=journal(UNCONTAINED.format(pci="0000:05:00"), OFF_THE_BUS, cut=True)
    )
    message = hindsight.reread_log("gpu.xid.95", NOW - timedelta(hours=2))
    assert codes(agent) == ["gpu.xid.95"]
    assert "2 kernel lines, of which the older ones were left out" in message


def test_a_journal_that_begins_later_opens_nothing(agent: Agent) -> None:
    """What was read is said."""
    hindsight = JournalHindsight(agent.checkup, agent.machine.proc, read=journal(OFF_THE_BUS))
    message = hindsight.reread_log("gpu.xid.79", NOW - timedelta(minutes=5))
    assert (codes(agent), "0 kernel lines" in message) == ([], True)


def test_a_journal_of_which_a_file_is_damaged_was_not_read_whole(agent: Agent) -> None:
    """Nothing in what was read proves no health."""
    damaged = JournalBatch(unread="system.journal is truncated, ignoring file.")
    hindsight = JournalHindsight(agent.checkup, agent.machine.proc, read=lambda _since: damaged)
    assert hindsight.reread_log("gpu.xid.79", NOW).endswith(
        "0 kernel lines; journalctl did not read all of it: system.journal is truncated, ignoring file."
    )


def test_a_journal_that_cannot_be_read_is_said(agent: Agent) -> None:
    """And so is a boot time that cannot be told: neither proves anything."""

    def missing(since: datetime) -> JournalBatch:
        raise SourceMissing("journalctl is not installed")

    hindsight = JournalHindsight(agent.checkup, FakeTree({}), read=missing)
    assert hindsight.reread_log("gpu.xid.79", NOW) == "the journal could not be read: journalctl is not installed"
    assert hindsight.booted_at() is None
    assert JournalHindsight(agent.checkup, agent.machine.proc).booted_at() is not None
