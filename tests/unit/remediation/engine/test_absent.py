"""What is released of names without a machine, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.errors import BackendRefused
from healthd.core.model import Mode, Remedy
from healthd.notify.news import PAGED, of_absent
from healthd.remediation.decide.paging import OUT_BY_COMMAND_S
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.remediation import QUARANTINE_CODE, parse_reason
from healthd.remediation.decide.unwatched import SILENT_S
from healthd.remediation.engine.absent import DEAD_S, SETTLE_S, AbsentNode, AbsentNodes
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, parse
from healthd.sim.cluster import FakeOrchestrator
from healthd.testing import FakeClock
from tests.support.troubled_cluster import TroubledCluster

TEXT = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"
ORDER = f"healthd: {QUARANTINE_CODE} node [k3v9]"
TIMEOUTS = Timeouts(reboot_timeout_s=600.0, replace_timeout_s=900.0)


class Commented(FakeOrchestrator):
    """A node whose comment is somebody else's."""

    def __init__(self, cluster: TroubledCluster, node: str, comment: str) -> None:
        super().__init__(cluster, node)
        self._comment = comment

    def write_record(self, text: str) -> None:
        raise BackendRefused(f"the comment is {self._comment}")

    def read_record(self) -> str:
        return ""


class Rig:
    """A cluster of three nodes and one daemon that looks at it from n3."""

    def __init__(self, mode: Mode = Mode.REPAIR) -> None:
        self.clock = FakeClock()
        self.cluster = TroubledCluster("n1", "n2", "n3", clock=lambda: self.clock.now().timestamp())
        self.rules, self.comment = Rules(mode=mode), ""
        self.absent = self.daemon()

    def daemon(self) -> AbsentNodes:
        return AbsentNodes(node=self.node, rules=lambda: self.rules, timeouts=TIMEOUTS, monotonic_s=self.clock)

    def node(self, name: str) -> FakeOrchestrator:
        return Commented(self.cluster, name, self.comment) if self.comment else FakeOrchestrator(self.cluster, name)

    def look(self) -> tuple[AbsentNode, ...]:
        me = self.node("n3")
        return self.absent.release(me.snapshot(), me.slots(), self.clock.now())

    def after(self, seconds: float) -> tuple[AbsentNode, ...]:
        """What it finds at the end of it. It looks twice an hour meanwhile."""
        while seconds > 1800.0:
            self.clock.advance(1800.0)
            self.look()
            seconds -= 1800.0
        self.clock.advance(seconds)
        return self.look()

    def sleeps(self) -> tuple[AbsentNode, ...]:
        """What it finds once n1, which healthd holds, has slept for the settle time."""
        self.held()
        self.cluster.asleep.add("n1")
        self.look()
        return self.after(SETTLE_S)

    def wakes(self) -> None:
        self.cluster.asleep.clear()
        self.after(600)

    def held(self, text: str = TEXT, *, name: str = "n1") -> None:
        """A node that a daemon holds, with slot 0."""
        self.cluster.claim("cluster", 0, name)
        self.cluster.update(name, "drain", text, user="healthd")


def test_a_node_that_was_powered_down_under_its_daemon_is_released() -> None:
    """Drain and slot go once it has slept for the settle time; its record says that it slept."""
    rig = Rig()
    rig.held()
    rig.cluster.asleep.add("n1")
    assert rig.look() == rig.after(SETTLE_S - 1) == ()
    (found,) = rig.after(1)
    assert found.message == f'Slurm powered it down while healthd held it; released its drain "{TEXT}", slot cluster 0'
    assert (rig.cluster.slots, rig.cluster.nodes["n1"].hold) == ({}, None)
    record = parse(rig.cluster.nodes["n1"].record)
    assert record is not None
    assert record.slept == rig.clock.now().replace(microsecond=0)
    assert rig.after(300) == ()


def test_a_slot_without_a_drain_is_released_and_the_record_keeps_its_history() -> None:
    """As on ParallelCluster and PCS, where the slot alone fences."""
    rig = Rig()
    rig.cluster.claim("cluster", 4, "n1")
    record = HandoffRecord(remediation_id="k3v9", machine="i-1", replaced=rig.clock.now() - timedelta(days=1))
    rig.node("n1").write_record(record.text)
    rig.cluster.asleep.add("n1")
    rig.look()
    assert [found.node for found in rig.after(SETTLE_S)] == ["n1"]
    assert rig.cluster.slots == {}
    assert parse(rig.cluster.nodes["n1"].record) == replace(parse(record.text), slept=rig.clock.now())  # type: ignore[type-var]


@pytest.mark.parametrize(
    "wakes",
    [
        lambda rig: rig.cluster.asleep.clear(),
        lambda rig: rig.node("n1").write_record(HandoffRecord(remedy=Remedy.REPLACE_NODE, asked=rig.clock.now()).text),
        lambda rig: setattr(rig, "rules", replace(rig.rules, mode=Mode.OBSERVE)),
        lambda rig: setattr(rig, "rules", replace(rig.rules, opted_out="hands off")),
    ],
)
def test_what_has_a_machine_or_gets_one_is_left_alone(wakes: Callable[[Rig], None]) -> None:
    """Awake again, being replaced, or in a mode in which nothing is touched."""
    rig = Rig()
    rig.held()
    rig.cluster.asleep.add("n1")
    rig.look()
    wakes(rig)
    assert rig.after(SETTLE_S) == ()
    assert rig.cluster.slots == {("cluster", 0): "n1"}
    assert rig.node("n1").view().hold is not None


def test_an_act_that_never_came_to_an_end_is_no_reason_to_wait_for_ever() -> None:
    """A replacement that was asked for longer ago than it may take."""
    rig = Rig()
    rig.held()
    rig.node("n1").write_record(HandoffRecord(remedy=Remedy.REPLACE_NODE, asked=rig.clock.now()).text)
    rig.cluster.asleep.add("n1")
    assert rig.after(TIMEOUTS.replace_timeout_s - 1) == rig.after(1) == ()
    assert [found.node for found in rig.after(SETTLE_S)] == ["n1"]


@pytest.mark.parametrize("text", ["psu is being changed", ORDER])
def test_a_drain_that_an_operator_made_or_ordered_stays(text: str) -> None:
    """Its slot counts a machine that is not there, and goes."""
    assert parse_reason(ORDER) is not None
    rig = Rig()
    rig.held(text)
    rig.cluster.asleep.add("n1")
    rig.look()
    (found,) = rig.after(SETTLE_S)
    assert found.message.endswith("released slot cluster 0")
    hold = rig.node("n1").view().hold
    assert hold is not None
    assert hold.text == text


@pytest.mark.parametrize("record", [HandoffRecord(remediation_id="k3v9"), HandoffRecord(code="gpu.xid.79")])
def test_a_drain_that_the_record_knows_is_released_without_a_slot(record: HandoffRecord) -> None:
    """A daemon that was killed between the two, or a controller that lost the reservation."""
    rig = Rig()
    rig.cluster.update("n1", "drain", TEXT, user="healthd")
    rig.cluster.nodes["n1"].flags.add("DOWN")
    rig.node("n1").write_record(record.text)
    rig.cluster.asleep.add("n1")
    rig.look()
    assert [(found.node, found.page) for found in rig.after(SETTLE_S)] == [("n1", False)]
    assert rig.cluster.nodes["n1"].flags == set()


@pytest.mark.parametrize("ahead", [timedelta(minutes=7), timedelta(days=9000)])
def test_an_act_of_a_time_that_has_not_come_is_no_reason_to_wait(ahead: timedelta) -> None:
    """A clock that was set, or a forged record, keeps no slot for ever."""
    rig = Rig()
    rig.held()
    rig.node("n1").write_record(HandoffRecord(remedy=Remedy.REPLACE_NODE, asked=rig.clock.now() + ahead).text)
    rig.cluster.asleep.add("n1")
    rig.look()
    assert [found.node for found in rig.after(SETTLE_S)] == ["n1"]


@pytest.mark.parametrize("record", ["", HandoffRecord(remediation_id="other", code="gpu.xid.48").text])
def test_a_text_alone_undoes_no_drain_and_pages(record: str) -> None:
    """Anybody can write it: without a slot and without a record of its remediation an operator has to decide."""
    rig = Rig()
    rig.cluster.update("n1", "drain", TEXT, user="bob")
    rig.node("n1").write_record(record)
    rig.cluster.asleep.add("n1")
    rig.look()
    (found,) = rig.after(SETTLE_S)
    assert found.page
    assert "neither a slot nor the node's record shows that healthd made it" in found.message
    assert rig.cluster.nodes["n1"].flags == {"DRAIN"}
    rig.cluster.update("n1", "resume")
    assert rig.look() == ()


def test_a_node_that_was_given_up_stays_out_and_pages_while_it_sleeps() -> None:
    """Only its slot is released, and its daemon is not there to call an operator."""
    rig = Rig()
    rig.held()
    rig.node("n1").write_record(HandoffRecord(remediation_id="k3v9", code="gpu.xid.79", given_up="k3v9").text)
    rig.cluster.asleep.add("n1")
    assert rig.look() == ()
    (found,) = rig.after(SETTLE_S)
    assert found.message.endswith("released slot cluster 0")
    for seconds in (0.0, 600.0):
        (page,) = rig.after(seconds)
        assert page.page
        assert "stays, because healthd gave the node up [k3v9]" in page.message
    assert rig.cluster.slots == {}
    assert rig.cluster.nodes["n1"].flags == {"DRAIN"}


def test_a_node_that_goes_out_again_each_time_it_wakes_stays_out_past_the_bound() -> None:
    """Each time that a job wakes it, the job is lost: a release while it sleeps is a return like any other."""
    rig = Rig()
    rig.node("n1").write_record(HandoffRecord(code="gpu.xid.79").text)
    for _ in range(rig.rules.bounds.returns_per_day):
        (found,) = rig.sleeps()
        assert "its drain" in found.message
        rig.wakes()
    rig.held()
    slept = rig.cluster.nodes["n1"].record
    rig.cluster.asleep.add("n1")
    rig.look()
    (found,) = rig.after(SETTLE_S)
    assert found.message.endswith("released slot cluster 0")
    assert rig.cluster.nodes["n1"].record == slept, "whoever undoes the drain gives an order"
    (page,) = rig.after(60)
    assert page.page
    assert "went out for gpu.xid.79 again after each of 4 returns within a day" in page.message
    rig.look()
    (found,) = [found for found in (*rig.after(86_400), *rig.after(SETTLE_S)) if not found.page]
    assert "released its drain" in found.message


def test_what_the_record_says_the_node_is_out_for_is_what_returns() -> None:
    """A remediation that goes on for another finding keeps the text of its first one: the bound holds for what is
    wrong."""
    rig = Rig()
    rig.node("n1").write_record(HandoffRecord(code="mount.missing").text)
    for _ in range(rig.rules.bounds.returns_per_day):
        rig.sleeps()
        rig.wakes()
    rig.sleeps()
    (page,) = rig.after(60)
    assert "went out for mount.missing again after each of 4 returns within a day" in page.message


def test_a_down_that_is_left_of_a_drain_is_released_as_well() -> None:
    """The node rebooted behind its drain, which slurmctld then lost in a restart: no job wakes it. One that is DOWN
    for somebody else's reason is left."""
    rig = Rig()
    rig.held()
    rig.cluster.rebooted("n1")
    rig.cluster.restart(losing=["n1"])
    rig.cluster.rebooted("n2")
    rig.cluster.asleep.update(("n1", "n2"))
    rig.look()
    (found,) = rig.after(SETTLE_S)
    assert found.message.endswith(f'released its drain "{TEXT}", slot cluster 0')
    assert [rig.cluster.nodes[name].flags for name in ("n1", "n2")] == [set(), {"DOWN"}]


def test_what_an_operator_drained_over_a_node_that_was_given_up_is_theirs() -> None:
    """Its record still says so, and no daemon runs there that could take it back: their drain is no page."""
    rig = Rig()
    rig.cluster.update("n1", "drain", "RMA 123", user="bob")
    rig.node("n1").write_record(HandoffRecord(code="gpu.xid.79", given_up="k3v9").text)
    rig.cluster.asleep.add("n1")
    assert rig.look() == rig.after(86_400.0) == ()


def test_what_was_seen_before_a_gap_is_forgotten_and_what_paged_stays() -> None:
    """An agent with a remediation of its own does not look for hours. A page that stood before it is over when a look
    shows that; what was on its way to one begins again."""
    rig = Rig()
    rig.cluster.update("n1", "drain", TEXT, user="healthd")
    rig.node("n1").write_record(HandoffRecord(code="gpu.xid.79").text)
    rig.cluster.nodes["n1"].hold = None  # the cluster tells no time of the drain: only what is seen counts
    rig.cluster.claim("cluster", 0, "n1")
    assert rig.look() == rig.after(SILENT_S - 60.0) == ()
    rig.clock.advance(5 * 3600.0)
    assert rig.look() == rig.after(SILENT_S - 1) == ()
    assert [each.node for each in rig.after(1)] == ["n1"]
    rig.clock.advance(5 * 3600.0)
    assert [each.node for each in rig.look()] == ["n1"]
    rig.cluster.give_back("cluster", 0)
    assert rig.look() == ()


def test_an_ordered_drain_pages_after_a_day_of_sleep() -> None:
    """Its operator knows of it until then."""
    rig = Rig()
    rig.cluster.update("n1", "drain", ORDER, user="healthd")
    rig.cluster.asleep.add("n1")
    assert rig.look() == rig.after(OUT_BY_COMMAND_S - 1) == ()
    (found,) = rig.after(1)
    assert found.page
    assert "stays, because an operator drained it" in found.message


def test_a_record_that_cannot_be_written_keeps_the_drain_and_pages() -> None:
    """A machine that wakes with its old disk would take the release for an operator's command. The slot counts a
    machine that is not there."""
    rig = Rig()
    rig.held()
    rig.comment = "rack 7, ask bob"
    rig.cluster.asleep.add("n1")
    rig.look()
    (found,) = rig.after(SETTLE_S)
    assert found.page
    assert "slot cluster 0 was released; its drain" in found.message
    assert "its record cannot say that it slept: the comment is rack 7, ask bob" in found.message
    assert (rig.cluster.slots, rig.cluster.nodes["n1"].flags) == ({}, {"DRAIN"})
    (again,) = rig.after(600)
    assert again.page
    rig.comment = ""
    assert [found.page for found in rig.after(1)] == [True], "no slot and no record shows by now that it is ours"


def test_a_text_of_slurms_own_over_our_drain_is_released_with_its_slot() -> None:
    """`Kill task failed` overwrites a drain of healthd's: the slot and the record show whose it is."""
    rig = Rig()
    rig.held()
    rig.node("n1").write_record(HandoffRecord(code="gpu.xid.79").text)
    rig.cluster.drains_by_itself("n1")
    rig.cluster.asleep.add("n1")
    rig.look()
    (found,) = rig.after(SETTLE_S)
    assert found.message.endswith('released its drain "Kill task failed", slot cluster 0')
    assert rig.cluster.nodes["n1"].flags == set()


def test_a_text_of_slurms_own_over_a_drain_that_stays_pages_until_somebody_undoes_it() -> None:
    """The bound of returns a day counts whosever text is shown. With its slot the last sign goes that the drain is
    healthd's, so the record says it."""
    rig = Rig()
    at = rig.clock.now().replace(microsecond=0)
    history = tuple(PastRepair(act=PastAct.RETURN, at=at - timedelta(hours=n), code="gpu.xid.79") for n in range(4))
    rig.held()
    rig.node("n1").write_record(HandoffRecord(code="gpu.xid.79", history=history).text)
    rig.cluster.drains_by_itself("n1")
    rig.cluster.asleep.add("n1")
    rig.look()
    (found,) = rig.after(SETTLE_S)
    assert found.message.endswith("released slot cluster 0")
    for seconds in (0.0, 2 * 86_400.0):
        (page,) = rig.after(seconds)
        assert (page.node, page.page) == ("n1", True)
        assert "stays, because healthd gave the node up [gpu.xid.79]" in page.message
    assert rig.cluster.nodes["n1"].flags == {"DRAIN"}
    rig.cluster.update("n1", "resume")
    assert rig.look() == ()


@pytest.mark.parametrize(
    "record", [HandoffRecord(), HandoffRecord(code=QUARANTINE_CODE), HandoffRecord(code="x", given_up="k3v9")]
)
def test_slurms_own_drain_stays_where_the_one_under_it_would(record: HandoffRecord) -> None:
    """Ordered, given up, or of no remediation."""
    rig = Rig()
    rig.held()
    rig.node("n1").write_record(record.text)
    rig.cluster.drains_by_itself("n1")
    rig.cluster.asleep.add("n1")
    rig.look()
    (found,) = rig.after(SETTLE_S)
    assert found.message.endswith("released slot cluster 0")
    assert rig.cluster.nodes["n1"].flags == {"DRAIN"}


def test_a_cluster_that_does_not_answer_is_asked_again() -> None:
    """Nothing is lost of what was noted."""
    rig = Rig()
    rig.held()
    rig.cluster.asleep.add("n1")
    rig.look()
    rig.clock.advance(SETTLE_S)
    snapshot, slots = rig.node("n3").snapshot(), rig.node("n3").slots()
    rig.cluster.hung = True
    (found,) = rig.absent.release(snapshot, slots, rig.clock.now())
    assert "not released yet" in found.message
    rig.cluster.wake()
    assert [found.node for found in rig.look()] == ["n1"]
    assert rig.cluster.slots == {}


def test_a_node_that_is_down_for_long_with_a_slot_pages() -> None:
    """Its daemon cannot give the slot back. Nothing is released: the machine may come back."""
    rig = Rig()
    rig.held()
    rig.cluster.update("n1", "down", TEXT)
    assert rig.look() == rig.after(DEAD_S - 1) == (), "it is DOWN since its reboot, and answers"
    rig.cluster.nodes["n1"].flags.add("NOT_RESPONDING")
    assert rig.look() == rig.after(DEAD_S - 1) == ()
    (found,) = rig.after(1)
    assert found.page
    assert "DOWN, its daemon has said nothing for 4 h, and it holds slot cluster 0" in found.message
    topic = of_absent(found.node, found.message)
    assert (topic.key, topic.message) == (f"{PAGED}absent n1", f"an operator is needed: n1: {found.message}")
    assert rig.cluster.slots == {("cluster", 0): "n1"}
    rig.cluster.update("n1", "resume")
    assert rig.look() == ()


def test_the_record_of_a_dead_node_tells_a_daemon_that_has_just_begun() -> None:
    """The last word of its own daemon is as old as a page must be; not while an act of healthd's is under way, nor by a
    time that is ahead."""
    rig = Rig()
    rig.held()
    rig.cluster.nodes["n1"].flags |= {"DOWN", "NOT_RESPONDING"}
    record = HandoffRecord(remediation_id="k3v9", watched=rig.clock.now())
    rig.node("n1").write_record(record.text)
    rig.clock.advance(DEAD_S - 1)
    rig.absent = rig.daemon()
    assert rig.look() == ()
    acted = replace(record, remedy=Remedy.REPLACE_NODE, asked=rig.clock.now())
    rig.node("n1").write_record(acted.text)
    assert rig.after(1) == ()
    rig.node("n1").write_record(replace(record, watched=rig.clock.now() + timedelta(hours=9)).text)
    assert rig.look() == ()
    rig.node("n1").write_record(record.text)
    assert [found.node for found in rig.look() if found.page] == ["n1"]


def test_a_node_whose_daemon_says_nothing_pages_and_nothing_of_it_is_released() -> None:
    """By the times in the cluster at once after a restart of this daemon; each word of its own daemon ends the page."""
    rig = Rig()
    rig.held()
    assert rig.look() == rig.after(SILENT_S - 1) == ()
    for looks in (rig.absent, rig.daemon()):
        rig.absent = looks
        (found,) = rig.after(1)
        assert found.page
        assert "its own healthd has said nothing of it" in found.message
    rig.node("n1").write_record(HandoffRecord(watched=rig.clock.now()).text)
    assert rig.look() == rig.after(SILENT_S - 1) == ()
    assert [each.node for each in rig.after(1)] == ["n1"]
    assert (rig.cluster.slots, rig.cluster.nodes["n1"].flags) == ({("cluster", 0): "n1"}, {"DRAIN"})


@pytest.mark.parametrize("is_drained", [False, True])
def test_silence_is_seen_also_where_no_time_tells_of_it(is_drained: bool) -> None:
    """A slot alone has no time; a word of a time ahead tells nothing. What this daemon has seen for so long pages."""
    rig = Rig()
    if is_drained:
        rig.held()
        rig.node("n1").write_record(HandoffRecord(watched=rig.clock.now() + timedelta(days=9)).text)
    else:
        rig.cluster.claim("cluster", 0, "n1")
    assert rig.look() == rig.after(SILENT_S - 1) == ()
    assert [(each.node, each.page) for each in rig.after(1)] == [("n1", True)]


def test_a_node_that_is_being_repaired_says_nothing_for_as_long_as_that_takes() -> None:
    """Its machine is on the way; after the time of the act it pages like any other."""
    rig = Rig()
    rig.held()
    asked = rig.clock.now() + timedelta(seconds=SILENT_S)
    rig.look()
    rig.clock.advance(SILENT_S)
    rig.node("n1").write_record(HandoffRecord(remedy=Remedy.REPLACE_NODE, asked=asked).text)
    assert rig.look() == rig.after(TIMEOUTS.replace_timeout_s - 1) == ()
    assert [each.node for each in rig.after(1)] == ["n1"]


_HAPPENS = st.sampled_from(["claim", "drain", "foreign", "order", "sleep", "wake", "look", "restart", "release"])


@given(st.lists(st.tuples(_HAPPENS, st.sampled_from(["n1", "n2"]), st.integers(0, 3)), max_size=40))
def test_nothing_of_a_machine_and_nothing_of_an_operator_is_ever_released(story: list[tuple[str, str, int]]) -> None:
    """Whatever happens in whatever order: a machine keeps its slots and drains, a foreign or an ordered drain stays.
    In the end no name without a machine holds a slot or a drain that is known to be healthd's; another one pages."""
    rig = Rig()
    for what, name, minutes in story:
        rig.clock.advance(60.0 * minutes)
        _happens(rig, what, name)
    for _ in range(3):
        _look_lawfully(rig)
        rig.clock.advance(SETTLE_S)
    paged = {found.node for found in rig.look() if found.page}
    for name in rig.cluster.asleep:
        hold = rig.cluster.nodes[name].hold
        assert name not in rig.cluster.slots.values()
        assert hold is None or hold.text != TEXT or name in paged


def _happens(rig: Rig, what: str, name: str) -> None:
    texts = {"drain": TEXT, "foreign": "psu", "order": ORDER}
    match what:
        case "claim":
            rig.cluster.slots[(name, len(rig.cluster.slots))] = name
        case "drain" | "foreign" | "order":
            rig.cluster.update(name, "drain", texts[what])
        case "sleep":
            rig.cluster.asleep.add(name)
        case "wake":
            rig.cluster.asleep.discard(name)
        case "release":
            rig.cluster.update(name, "undrain")
        case "restart":
            rig.absent = rig.daemon()
        case _:
            _look_lawfully(rig)


def _look_lawfully(rig: Rig) -> None:
    before = {
        name: (node.hold, [slot for slot in rig.node("n3").slots() if slot.node == name])
        for name, node in rig.cluster.nodes.items()
    }
    rig.look()
    for name, (hold, slots) in before.items():
        now = rig.cluster.nodes[name].hold
        if name not in rig.cluster.asleep:
            assert (now, [slot for slot in rig.node("n3").slots() if slot.node == name]) == (hold, slots)
        if hold is not None and hold.text != TEXT:
            assert now == hold
