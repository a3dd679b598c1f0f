"""The state of a node in the fleet: what its agent says, what the cluster says, and which of the two counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from msgspec.structs import replace

from healthd.api.grammar import FLEET_KEYS, FLEET_STATES
from healthd.core.model import Mode
from healthd.fleet.causes import By
from healthd.fleet.nodes import AHEAD, FleetNode, FleetPicture, FleetState, fleet_nodes, in_states
from healthd.remediation.ports import Hold, ListedNode, Slot
from healthd.remediation.records.summary import NodeState, NodeSummary

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
SILENT_AFTER_S = 1500.0
OURS = Hold(text="healthd: gpu.xid.79 gpu:0000:05:00 [b7da]", user="root", stamp=int(NOW.timestamp()) - 240)
ALICE = Hold(text="fan swap", user="alice", stamp=int(NOW.timestamp()) - 7200)
SLOT = Slot(scope="cluster", index=3, node="n1")
DRAIN = frozenset({"IDLE", "DRAIN"})


def answered(state: NodeState, *, ago_s: float = 60.0, code: str = "", step: str = "", stopped: bool = False) -> str:
    at = NOW - timedelta(seconds=ago_s)
    return NodeSummary(state=state, at=at, stopped=stopped, code=code, mode=Mode.REPAIR, step=step, since=at).text


def listed(
    name: str = "n1",
    *,
    summary: str = "",
    flags: frozenset[str] = frozenset({"IDLE"}),
    hold: Hold | None = None,
    dead: bool = False,
    asleep: bool = False,
    record: str = "",
) -> ListedNode:
    out = bool(flags & {"DRAIN", "DOWN"})
    state = "+".join(sorted(flags))
    return ListedNode(
        name=name,
        state=state,
        flags=flags,
        out=out,
        asleep=asleep,
        dead=dead,
        hold=hold,
        record=record,
        summary=summary,
    )


def node(of: ListedNode, *slots: Slot) -> FleetNode:
    (found,) = fleet_nodes([of], slots, {(SLOT.scope, SLOT.index): OURS.stamp}, NOW, silent_after_s=SILENT_AFTER_S)
    return found


@pytest.mark.parametrize("state", [NodeState.OK, NodeState.WARNING, NodeState.CRITICAL, NodeState.UNKNOWN])
def test_a_node_in_service_is_what_it_says(state: NodeState) -> None:
    """For as long as it says it."""
    assert node(listed(summary=answered(state))).state == state.value
    assert node(listed(summary=answered(state, ago_s=SILENT_AFTER_S - 1))).state == state.value
    assert node(listed(summary=answered(state, ago_s=SILENT_AFTER_S + 1))).state is FleetState.SILENT


def test_a_stop_on_purpose_is_not_silence() -> None:
    """A restart within the heartbeats changes nothing; after them the node is stopped, whatever it said last. A
    machine that does not answer is silent, and an operator's drain is a drain."""
    late_s = SILENT_AFTER_S + 1
    assert node(listed(summary=answered(NodeState.OK, stopped=True))).state is FleetState.OK
    for state in (NodeState.OK, NodeState.CRITICAL, NodeState.HELD, NodeState.NEEDS_OPERATOR):
        stopped = node(listed(summary=answered(state, ago_s=late_s, stopped=True)))
        assert (stopped.state, stopped.is_trouble) == (FleetState.STOPPED, True)
    last = answered(NodeState.OK, ago_s=late_s, stopped=True)
    down = frozenset({"DOWN", "NOT_RESPONDING"})
    assert node(listed(summary=last, flags=down, dead=True)).state is FleetState.SILENT
    assert node(listed(summary=last, flags=DRAIN, hold=ALICE)).state is FleetState.DRAINED


def test_silence_is_a_state_and_never_healthy() -> None:
    """No summary, one from a clock that is far ahead, one of a later version, a machine that does not answer."""
    assert node(listed()).state is FleetState.SILENT
    assert node(listed()).silent_s is None
    ahead_s = AHEAD.total_seconds() + 10
    assert node(listed(summary=answered(NodeState.OK, ago_s=-ahead_s))).state is FleetState.SILENT
    assert node(listed(summary=answered(NodeState.OK, ago_s=-10))).state is FleetState.OK
    assert node(listed(summary="healthd state=splendid at=1")).state is FleetState.SILENT
    down = frozenset({"DOWN", "NOT_RESPONDING"})
    assert node(listed(summary=answered(NodeState.OK), flags=down, dead=True)).state is FleetState.SILENT


def test_a_node_that_healthd_reboots_is_not_silent_while_it_is_away() -> None:
    """Its machine does not answer because of the repair; past the time for heartbeats it is silent all the same."""
    down = frozenset({"DOWN", "DRAIN", "NOT_RESPONDING"})
    away = listed(summary=answered(NodeState.REPAIRING, step="reboot"), flags=down, dead=True, hold=OURS)
    assert node(away, SLOT).state is FleetState.REPAIRING
    late = listed(summary=answered(NodeState.REPAIRING, ago_s=SILENT_AFTER_S + 1), flags=down, dead=True, hold=OURS)
    assert node(late, SLOT).state is FleetState.SILENT


def test_another_s_drain_is_shown_as_his_whatever_the_agent_says() -> None:
    """Alice's drain is Alice's, also beside a slot of ours, which is then odd."""
    of_alice = listed(summary=answered(NodeState.OK), flags=DRAIN, hold=ALICE)
    assert (node(of_alice).state, node(of_alice).oddity) == (FleetState.DRAINED, "")
    assert node(of_alice).since == NOW - timedelta(hours=2)
    assert "another's drain" in node(of_alice, SLOT).oddity
    assert node(listed(summary=answered(NodeState.OK), flags=DRAIN)).state is FleetState.DRAINED


def test_our_drain_is_shown_by_what_the_agent_does() -> None:
    """Held where it says nothing of a repair; a drain without a slot is odd."""
    held = listed(summary=answered(NodeState.OK), flags=DRAIN, hold=OURS)
    assert node(held, SLOT).state is FleetState.HELD
    assert node(held).oddity == "healthd's drain without a slot"
    for state in (NodeState.DRAINING, NodeState.REPAIRING, NodeState.HELD, NodeState.NEEDS_OPERATOR):
        acting = node(listed(summary=answered(state, code="gpu.xid.79"), flags=DRAIN, hold=OURS), SLOT)
        assert (acting.state, acting.oddity, acting.code) == (state.value, "", "gpu.xid.79")


def test_a_slot_alone_fences_the_node() -> None:
    """Where the platform owns the state, the slot is all that shows: ours, held, and odd where no agent acts."""
    fenced = node(listed(summary=answered(NodeState.OK)), SLOT)
    assert (fenced.state, fenced.is_ours) == (FleetState.HELD, True)
    assert fenced.oddity == "a slot of healthd's without a remediation"
    assert fenced.slot_since == NOW - timedelta(seconds=240)
    assert node(listed(summary=answered(NodeState.REPAIRING)), SLOT).oddity == ""


def test_down_and_asleep_are_the_clusters_words() -> None:
    """A node that answers and is down; a name without a machine, which is no node of the fleet."""
    down = node(listed(summary=answered(NodeState.OK), flags=frozenset({"DOWN"}), hold=ALICE))
    assert (down.state, down.since) == (FleetState.DOWN, NOW - timedelta(hours=2))
    asleep = node(listed(flags=frozenset({"IDLE", "POWERED_DOWN"}), asleep=True))
    assert (asleep.state, asleep.since) == (FleetState.ASLEEP, None)
    assert FleetPicture(cluster="c", at=NOW, nodes=(down, asleep), limit=None, taken=0).machines == (down,)


def test_a_silent_node_is_told_of_by_its_handoff_record() -> None:
    """The code, and since when, that it left before it fell silent."""
    since = int(NOW.timestamp()) - 600
    silent = node(listed(record=f"healthd case=b7da code=gpu.xid.95 since={since}"))
    assert (silent.code, silent.since) == ("gpu.xid.95", NOW - timedelta(minutes=10))
    assert silent.record.remediation_id == "b7da"


def test_the_slot_of_the_whole_cluster_is_the_one_that_is_shown() -> None:
    """A node may hold one of its partition as well; a slot whose time is not known has none; a name comes once."""
    of_partition = Slot(scope="gpu", index=0, node="n1")
    both = node(listed(), of_partition, SLOT)
    assert both.slot == SLOT
    assert node(listed(), of_partition).slot_since is None
    twice = fleet_nodes([listed(), listed("n0"), listed()], (), {}, NOW, silent_after_s=1.0)
    assert [each.name for each in twice] == ["n0", "n1"]


def test_a_page_is_not_hidden_by_the_clusters_own_drain() -> None:
    """Slurm's "Kill task failed" on a node that healthd pages for; an operator's drain is another matter."""
    automatic = Hold(text="Kill task failed", user="root", stamp=1, automatic=True)
    paged = answered(NodeState.NEEDS_OPERATOR, code="gpu.xid.79")
    assert node(listed(summary=paged, flags=DRAIN, hold=automatic)).state is FleetState.NEEDS_OPERATOR
    assert node(listed(summary=paged, flags=DRAIN, hold=ALICE)).state is FleetState.DRAINED


def test_a_provisioners_text_beside_our_slot_is_ours() -> None:
    """HyperPod wants a text of its own; without our slot it is somebody else's."""
    replacing = Hold(text="Action:Replace", user="root", stamp=1)
    shown = listed(summary=answered(NodeState.REPAIRING, step="replace"), flags=DRAIN, hold=replacing)
    assert node(shown, SLOT).state is FleetState.REPAIRING
    assert node(shown).state is FleetState.DRAINED


def test_a_node_that_we_hold_is_never_asleep() -> None:
    """A replacement by power saving that does not come back: it is silent, with its slot, and no quiet name."""
    asleep = listed(flags=frozenset({"IDLE", "POWERING_UP"}), asleep=True)
    assert (node(asleep).state, node(asleep).is_trouble) == (FleetState.ASLEEP, False)
    assert (node(asleep, SLOT).state, node(asleep, SLOT).is_trouble) == (FleetState.SILENT, True)


def test_a_maintenance_reservation_of_others_is_no_service() -> None:
    """Its node takes no jobs, whatever its agent says; so does one that somebody set to fail."""
    for flags in ({"IDLE", "MAINT"}, {"IDLE", "MAINTENANCE", "RESERVED"}):
        assert node(listed(summary=answered(NodeState.OK), flags=frozenset(flags))).state is FleetState.DRAINED
    failing = replace(listed(summary=answered(NodeState.OK), flags=frozenset({"FAIL"}), hold=ALICE), out=True)
    assert node(failing).state is FleetState.DRAINED


def test_an_agent_that_is_contradicted_by_its_cluster_is_odd() -> None:
    """It says that it is out, and gets jobs; a slot that was taken this moment is not odd yet."""
    assert "gives it jobs" in node(listed(summary=answered(NodeState.HELD))).oddity
    now = {(SLOT.scope, SLOT.index): int(NOW.timestamp())}
    (fresh,) = fleet_nodes([listed(summary=answered(NodeState.OK))], [SLOT], now, NOW, silent_after_s=SILENT_AFTER_S)
    assert fresh.oddity == ""


def test_a_name_that_is_listed_twice_is_out_if_either_says_so() -> None:
    """In whatever order."""
    drained, idle = (
        listed(summary=answered(NodeState.OK), flags=DRAIN, hold=ALICE),
        listed(summary=answered(NodeState.OK)),
    )
    for both in ((drained, idle), (idle, drained)):
        (found,) = fleet_nodes(both, (), {}, NOW, silent_after_s=SILENT_AFTER_S)
        assert found.state is FleetState.DRAINED


def test_the_budget_counts_every_cause() -> None:
    """Drained by an operator, fenced by a slot alone; not what sleeps."""
    nodes = fleet_nodes(
        [
            listed("n1", summary=answered(NodeState.OK)),
            listed("n2", flags=DRAIN, hold=ALICE),
            listed("n3"),
            listed("n4", flags=frozenset({"DOWN", "POWERED_DOWN"}), asleep=True),
        ],
        [SLOT],
        {},
        NOW,
        silent_after_s=SILENT_AFTER_S,
    )
    assert FleetPicture(cluster="c", at=NOW, nodes=nodes, limit=2, taken=1).out == 2
    assert [each.name for each in in_states(nodes, ["drained"])] == ["n2"]
    assert len(list(in_states(nodes, []))) == 4


def test_the_grammar_knows_each_state_and_each_key() -> None:
    """The command line lists them without loading the fleet."""
    assert tuple(FleetState) == FLEET_STATES
    assert get_args(By) == FLEET_KEYS
