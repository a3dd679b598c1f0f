"""What the rate of replacements counts in the controller: what a platform has taken, never what was asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown
from healthd.core.model import Refusal, Remedy, Step
from healthd.remediation.controller.node_status import RepairState
from healthd.remediation.decide.remediation import Phase
from healthd.remediation.ports import Provisioner
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer, parse
from tests.engine.test_controller_repeats import settled
from tests.support.controller_rig import NODE, STEP_S, AskedWorld
from tests.support.engine_wire import disk_is_full, kill, no_answer
from tests.support.fake_repairs import FakeProvisioner
from tests.support.troubled_cluster import TroubledCluster

OTHER = "n2"


class TwoAsk(AskedWorld):
    """``n1`` asks a platform that answers with ``error``; ``n2`` asks after it, of one that does it. One an hour."""

    def __init__(self, folder: Path, error: Exception) -> None:
        self.other = FakeProvisioner(lambda: None, lambda: None)
        self.other.instance = "i-9"
        super().__init__(folder)
        self.rules = replace(self.rules, replacements_per_hour=1)
        self.error: Exception | None = error
        self.provisioner._replaces, self.provisioner.repeats_s = self._answers, 0.0

    def acts_on(self, node: str, instance: str) -> Provisioner:
        return self.provisioner if node == NODE else self.other

    def other_asks(self) -> None:
        node = self.cluster.nodes[OTHER]
        self.cluster.update(OTHER, "drain", "healthd: gpu.xid.79 gpu:1 [k4]", user="healthd")
        self.cluster.slots["cluster", 1] = OTHER
        now = self.clock.now()
        node.record = HandoffRecord(
            remediation_id="k4", machine="i-9", remedy=Remedy.REPLACE_NODE, asks=True, attempt=1, asked=now
        ).text

    def _answers(self) -> None:
        if self.error is not None:
            raise self.error
        self._replaces()

    def _acts(self, step: Step) -> None:
        """Of either node, an intent and a record that says so."""
        records = [parse(self.cluster.nodes[node].record) for node in (NODE, OTHER)]
        assert any(record.answer is RequestAnswer.TAKEN for record in records if record is not None)
        assert any(remediation.phase is Phase.INTENDED for remediation in self.store.remediations())


BUSY, NO = BackendBusy("InstanceIdInUse"), BackendRefused("InstanceIdNotFound")


@pytest.mark.parametrize("error", [BUSY, NO])
def test_what_no_platform_has_taken_holds_up_nobody(error: Exception, tmp_path: Path) -> None:
    """Busy for a while, or refused for good: another node's replacement is the first one of this hour."""
    world = TwoAsk(tmp_path, error)
    world.run(4)
    assert (world.record.replaced, world.record.history) == (None, ())
    world.other_asks()
    world.run(2)
    assert world.other.replacements == 1


def test_what_was_taken_occupies_the_rate_whoever_asks_next(tmp_path: Path) -> None:
    """Once the platform has time for the first, the hour belongs to the second, and the first says so."""
    world = TwoAsk(tmp_path, BUSY)
    world.run(2)
    world.other_asks()
    world.run(2)
    world.error = None
    world.run(4)
    assert world.record.answer is RequestAnswer.WAITS
    assert "1 machines were replaced within an hour" in world.record.message
    assert [each.refusal for each in world.standings if each.node == NODE] == [Refusal.RATE]
    world.clock.advance(3600.0)
    asks_again = replace(world.record, answer=None, answered=None, message="")
    world.ask(asks_again)
    world.run(12)
    assert world.record.became == "i-2"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("error", [BUSY, NO])
@pytest.mark.parametrize("happens", [kill, no_answer, disk_is_full])
def test_what_nobody_can_know_counts_for_an_hour_and_nothing_else(
    happens: Callable[[], None], error: Exception, tmp_path: Path
) -> None:
    """At every boundary of a request that no platform takes: the other node has the hour, except where it is not known
    what the platform answered; then an hour later."""
    plain = TwoAsk(tmp_path / "plain", error)
    plain.run(1)
    passed = plain.wire.passed
    unknown = range(passed.index("after save"), len(passed))
    for number, label in enumerate(passed):
        if happens is disk_is_full and "save" not in label:
            continue
        world = TwoAsk(tmp_path / f"{number}", error)
        world.wire.at[number] = happens
        settled(world, 4)
        world.other_asks()
        settled(world, 6)
        if not world.other.replacements:
            assert number in unknown, (number, label, world.message[-3:])
            world.clock.advance(3600.0)
            world.other_asks()
            settled(world, 6)
        assert world.other.replacements == 1, (number, label, world.message[-3:])
        world.close()


class ManyAsk(AskedWorld):
    """Thirty nodes ask a platform of which each reading takes ``takes_s``, and gets no answer."""

    names = tuple(f"m{number:02}" for number in range(30))

    def __init__(self, folder: Path, takes_s: float) -> None:
        self.takes_s, self.asked = takes_s, list[str]()
        super().__init__(folder)
        self.cluster = TroubledCluster(*self.names, clock=self.seconds)
        for number, name in enumerate(self.names):
            self.cluster.update(name, "drain", f"healthd: gpu.xid.79 gpu:0 [{name}]", user="healthd")
            self.cluster.claim("cluster", number, name)
            record = HandoffRecord(remediation_id=name, machine=f"i-{name}", remedy=Remedy.REPLACE_NODE, asks=True)
            self.cluster.nodes[name].record = replace(record, attempt=1, asked=self.clock.now()).text
        self.poll_s = 30.0
        self.start()

    def acts_on(self, node: str, instance: str) -> Provisioner:
        silent = FakeProvisioner(lambda: None, lambda: None)
        silent.machine = lambda: self._read(node)  # type: ignore[method-assign]
        return silent

    def _read(self, node: str) -> str:
        self.asked.append(node)
        self.clock.advance(self.takes_s)
        raise BackendUnknown("no answer")


def test_a_platform_without_an_answer_holds_up_no_sync(tmp_path: Path) -> None:
    """A sync ends within a minute or little more, and the next one goes on where it ended: each request is looked at
    and waits."""
    world = ManyAsk(tmp_path, takes_s=13.0)
    for _ in range(6):
        began_s = world.clock()
        world.run(1)
        assert world.clock() - began_s < 60.0 + 13.0 + STEP_S + 1.0
        assert [each.node for each in world.standings] == list(world.names)
    assert world.asked == list(world.names)
    assert all(each.state is RepairState.WAITS and not each.page for each in world.standings)


def test_a_platform_without_an_answer_for_a_moment_calls_no_operator(tmp_path: Path) -> None:
    """One call that was throttled: neither the controller pages, nor does its answer make the node page. Ten minutes
    later both do, with the reason; and a platform that answers in between is read from then on."""
    world = AskedWorld(tmp_path)
    reads = world.provisioner.machine
    throttled: list[bool] = [True]

    def machine() -> str:
        if throttled:
            raise BackendUnknown("ThrottlingException")
        return reads()

    world.provisioner.machine = machine  # type: ignore[method-assign]
    world.rules = replace(world.rules, replacements_per_hour=0)
    for lasts_s, answer, page in (
        (0, None, False),
        (200, RequestAnswer.WAITS, False),
        (450, RequestAnswer.WAITS, True),
    ):
        world.run(1 + int(lasts_s / STEP_S))
        assert (world.record.answer, world.standings[0].page) == (answer, page)
        assert (world.standings[0].state, world.standings[0].refusal) == (RepairState.WAITS, Refusal.UNREADABLE)
    assert world.record.message == "ThrottlingException"
    throttled.clear()
    world.run(1)
    assert world.standings[0].refusal is Refusal.RATE
    throttled.append(True)
    world.run(1)
    assert (world.standings[0].page, world.standings[0].refusal) == (True, Refusal.UNREADABLE), "no gap in that page"


def test_a_platform_without_an_answer_is_not_asked_in_every_sync(tmp_path: Path) -> None:
    """Every half a minute about each request."""
    world = ManyAsk(tmp_path, takes_s=0.0)
    world.run(6)
    assert Counter(world.asked) == dict.fromkeys(world.names, 1 + int(5 * STEP_S // 30))
