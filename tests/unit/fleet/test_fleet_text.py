"""What an operator reads of a fleet: one line a cause, in the order of the states, and the same as JSON."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.core.json_documents import json_document
from healthd.core.model import Mode, Remedy
from healthd.fleet.causes import by_cause
from healthd.fleet.nodes import FleetNode, FleetPicture, FleetState, fleet_nodes, in_states
from healthd.fleet.text import fleet_data, fleet_text, head, node_data, node_text, why_text
from healthd.remediation.ports import Hold, ListedNode, Slot
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult, RequestAnswer
from healthd.remediation.records.summary import NodeState, NodeSummary

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
STAMP = int(NOW.timestamp())
DRAIN = frozenset({"IDLE", "DRAIN"})


def summary(
    state: NodeState,
    code: str = "",
    on: str = "",
    *,
    ago_s: float = 60,
    for_s: float = 0,
    step: str = "",
    note: str = "",
    mode: Mode = Mode.REPAIR,
    more: int = 0,
) -> str:
    since = NOW - timedelta(seconds=for_s) if for_s else None
    at = NOW - timedelta(seconds=ago_s)
    return NodeSummary(
        state=state,
        at=at,
        code=code,
        component=on,
        since=since,
        step=step,
        note=note,
        mode=mode,
        more=more,
        instance_type="p5.48xlarge",
    ).text


def a(
    name: str, text: str = "", hold: Hold | None = None, *, asleep: bool = False, dead: bool = False, record: str = ""
) -> ListedNode:
    flags = frozenset({"DOWN", "NOT_RESPONDING"}) if dead else DRAIN if hold is not None else frozenset({"IDLE"})
    return ListedNode(
        name=name,
        state="+".join(sorted(flags)),
        flags=flags,
        out=hold is not None,
        dead=dead,
        asleep=asleep,
        hold=hold,
        summary=text,
        record=record,
        partitions=("gpu",),
    )


OURS = Hold(text="healthd: gpu.xid.79 gpu:0000:05:00 [b7da]", user="root", stamp=STAMP - 240)
RECORD = HandoffRecord(
    remediation_id="b7da",
    remedy=Remedy.REBOOT_NODE,
    asks=True,
    attempt=2,
    answer=RequestAnswer.WAITS,
    answered=NOW,
    message="the platform is busy",
    history=(
        PastRepair(act=PastAct.RESET, at=NOW - timedelta(days=1), code="gpu.xid.79", outcome=RepairResult.FAILED),
        PastRepair(act=PastAct.RETURN, at=NOW - timedelta(hours=1)),
    ),
).text
REPAIRING = summary(NodeState.REPAIRING, "gpu.xid.79", "GPU 3", for_s=240, step="reboot", more=2)
WAITING = summary(NodeState.DRAINING, "gpu.remap.pending", "GPU 0", for_s=7300, step="wait_idle", note="8812 of alice")
BLIND = summary(NodeState.UNKNOWN, "gpu.count", note="NVML does not answer")


def lossy(number: int) -> str:
    return summary(NodeState.WARNING, "efa.counters.retrans", f"efa:rdmap{number}", for_s=1000 * number)


LISTED = [
    *(a(f"gpu-{number:03d}", summary(NodeState.OK)) for number in (1, 2, 3, 7)),
    *(a(f"gpu-{number:03d}", lossy(number)) for number in (10, 11, 12)),
    a("gpu-213", REPAIRING, OURS, record=RECORD),
    a("gpu-344", WAITING, OURS),
    a("gpu-400", summary(NodeState.CRITICAL, "lustre.missing", "mount:/fsx", for_s=90, mode=Mode.OBSERVE)),
    a("gpu-410", BLIND),
    a("gpu-411", BLIND),
    a("gpu-500", summary(NodeState.OK, ago_s=4000)),
    a("gpu-501", summary(NodeState.OK, ago_s=9000), dead=True),
    a("gpu-502"),
    a("gpu-600", summary(NodeState.OK), Hold(text="fan swap", user="alice", stamp=STAMP - 200_000)),
    a("gpu-601", summary(NodeState.OK), Hold(text="Kill task failed", user="root", stamp=0, automatic=True)),
    a("gpu-700", asleep=True),
]
SLOTS = [Slot(scope="cluster", index=0, node="gpu-213"), Slot(scope="cluster", index=4, node="gpu-344")]
TIMES = {("cluster", 0): STAMP - 300}


@pytest.fixture
def fleet() -> FleetPicture:
    nodes = fleet_nodes(LISTED, SLOTS, TIMES, NOW, silent_after_s=1500)
    return FleetPicture(cluster="train-a", at=NOW, nodes=nodes, limit=25, taken=2)


def test_one_line_for_each_cause(fleet: FleetPicture) -> None:
    """The head with the budget, the states in their order, host lists, the device where all have the same, what is done
    or waited for, and for how long: the golden surface of the command."""
    assert fleet_text(fleet, fleet.nodes) == GOLDEN
    page = (Path(__file__).resolve().parents[3] / "docs/how-to/fleet.md").read_text(encoding="utf-8")
    assert f"```text fleet\n$ healthd fleet\n{GOLDEN}```\n" in page, "the page shows the same"


GOLDEN = """\
cluster train-a  ·  17 nodes and 1 asleep  ·  read at 12:00:00 UTC  ·  budget 4 of 25 out, 2 slots taken
OK         4                                gpu-[001-003,007]
WARNING    3  efa.counters.retrans          gpu-[010-012]      for 3 h
DRAINING   1  gpu.remap.pending GPU 0       gpu-344            8812 of alice, for 2 h
REPAIRING  1  gpu.xid.79 GPU 3              gpu-213            rebooting, for 4 min
CRITICAL   1  lustre.missing mount:/fsx     gpu-400            observe mode: nothing is done, for 90 s
UNKNOWN    2  gpu.count                     gpu-[410-411]      NVML does not answer
SILENT     1  no heartbeat                  gpu-500            for 66 min
SILENT     1  no heartbeat                  gpu-501            cluster: DOWN+NOT_RESPONDING, for 2 h
SILENT     1  no report yet                 gpu-502
DRAINED    1  by Slurm: "Kill task failed"  gpu-601            not healthd's
DRAINED    1  by alice: "fan swap"          gpu-600            not healthd's, for 2 d
ASLEEP     1                                gpu-700
"""


def test_each_state_has_its_colour_and_the_text_is_the_same(fleet: FleetPicture) -> None:
    """Red needs an operator, yellow is a warning or at work, magenta is not known; a node that sleeps has none. A group
    of many states has that of the worst."""
    shown = fleet_text(fleet, fleet.nodes, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == GOLDEN
    assert re.findall(r"^(?:\x1b\[([0-9;]*)m)?([A-Z]+)", shown, re.MULTILINE) == [
        ("32", "OK"), ("33", "WARNING"), ("33", "DRAINING"), ("33", "REPAIRING"), ("1;31", "CRITICAL"),
        ("35", "UNKNOWN"), ("35", "SILENT"), ("35", "SILENT"), ("35", "SILENT"), ("36", "DRAINED"), ("36", "DRAINED"),
        ("", "ASLEEP"),
    ]  # fmt: skip
    by_type = fleet_text(fleet, fleet.nodes, "type", colour=True)
    assert "\x1b[1;31mp5.48xlarge" in by_type
    assert "\x1b[1;31mgpu-400" in why_text(fleet, fleet.nodes, colour=True)
    (sick,) = (each for each in fleet.nodes if each.name == "gpu-400")
    assert node_text(fleet, sick, colour=True).startswith("\x1b[1;31mgpu-400  CRITICAL")


def test_every_node_that_is_out_is_one_line(fleet: FleetPicture) -> None:
    """By whom, why, since when, at which step, waiting for what, with which slot; what is odd comes after."""
    text = why_text(fleet, fleet.nodes)
    assert text == WHY


WHY = """\
cluster train-a  ·  17 nodes and 1 asleep  ·  read at 12:00:00 UTC  ·  budget 4 of 25 out, 2 slots taken
NODE     STATE      BY            WHY                        SINCE  STEP       WAITS FOR             SLOT
gpu-213  REPAIRING  healthd       gpu.xid.79 GPU 3           4 min  reboot                           cluster 0 for 5 min
gpu-344  DRAINING   healthd       gpu.remap.pending GPU 0    2 h    wait_idle  8812 of alice         cluster 4
gpu-400  CRITICAL                 lustre.missing mount:/fsx  90 s
gpu-410  UNKNOWN                  gpu.count                                    NVML does not answer
gpu-411  UNKNOWN                  gpu.count                                    NVML does not answer
gpu-500  SILENT
gpu-501  SILENT
gpu-502  SILENT
gpu-600  DRAINED    alice         fan swap                   2 d
gpu-601  DRAINED    Slurm itself  Kill task failed
"""


def test_in_a_quiet_fleet_nothing_is_out(fleet: FleetPicture) -> None:
    """And the head is there all the same."""
    quiet = tuple(in_states(fleet.nodes, ["ok"]))
    assert why_text(fleet, quiet) == f"{head(fleet)}\nevery node is in service\n"
    assert fleet_text(fleet, ()) == f"{head(fleet)}\nno such node\n"
    assert tuple(in_states(fleet.nodes, [])) == fleet.nodes


def test_a_node_in_a_maintenance_reservation_is_not_in_service(fleet: FleetPicture) -> None:
    """No flag of its state says that it is out, and its own report is good: it gets no new jobs all the same."""
    listed = replace(a("gpu-800", summary(NodeState.OK)), flags=frozenset({"IDLE", "MAINTENANCE", "RESERVED"}))
    lines = why_text(fleet, [_one(listed)]).splitlines()
    assert [line.split(maxsplit=2) for line in lines[2:]] == [["gpu-800", "DRAINED", "a maintenance reservation"]]
    assert node_data(_one(listed))["why"] == "a maintenance reservation"


def test_a_head_without_name_and_limit() -> None:
    """What could not be read is left out, not invented."""
    assert head(FleetPicture(cluster="", at=NOW, nodes=(), limit=None, taken=0)) == (
        "cluster  ·  0 nodes  ·  read at 12:00:00 UTC  ·  budget 0 out, 0 slots taken"
    )


@pytest.mark.parametrize(
    ("by", "lines"),
    [
        ("partition", ["gpu  "]),
        ("code", ["(none)  ", "efa.counters.retrans  ", "gpu.count  "]),
        ("type", ["(none)  ", "p5.48xlarge  "]),
        ("rack", ["(none)  "]),
    ],
)
def test_by_key_each_group_counts_its_states(fleet: FleetPicture, by: str, lines: list[str]) -> None:
    """A line for each value, with the nodes that are not usable."""
    text = fleet_text(fleet, fleet.nodes, by)  # type: ignore[arg-type]
    for line in lines:
        assert f"\n{line}" in text
    if by == "partition":
        assert text.splitlines()[1].endswith("gpu-[213,344,400,410-411,500-502,600-601,700]")


def test_one_node_with_all_that_is_known(fleet: FleetPicture) -> None:
    """Its report, its hold, its slot, its request with the answer, and its history."""
    of = {each.name: each for each in fleet.nodes}
    assert node_text(fleet, of["gpu-213"]) == ONE
    assert "no healthd has reported here" in node_text(fleet, of["gpu-502"])
    slurms = node_text(fleet, of["gpu-601"])
    assert 'hold      by Slurm itself, for an unknown time: "Kill task failed"' in slurms
    assert "slot      cluster 4, for an unknown time" in node_text(fleet, of["gpu-344"])


ONE = """\
gpu-213  REPAIRING  gpu.xid.79
report    repairing gpu.xid.79 GPU 3 and 2 more for 4 min, 60 s ago, mode repair
step      reboot
type      p5.48xlarge
cluster   DRAIN+IDLE, partitions gpu
hold      by healthd, for 4 min: "healthd: gpu.xid.79 gpu:0000:05:00 [b7da]"
slot      cluster 0, for 5 min
remedy    asks for reboot_node, attempt 2; the controller: waits the platform is busy
  2026-11-23 12:00 reset for gpu.xid.79: failed
  2026-11-24 11:00 return for no code: no outcome known
"""


def test_the_json_has_every_node_and_the_same_groups(fleet: FleetPicture) -> None:
    """Stable keys; what is not known is null."""
    data = json.loads(json_document(fleet_data(fleet, fleet.nodes)))
    assert (data["schema"], data["budget"], data["states"]["ok"]) == (
        "healthd.fleet/v1",
        {"out": 4, "taken": 2, "limit": 25},
        4,
    )
    assert len(data["nodes"]) == len(fleet.nodes)
    assert data["groups"][0] == {
        "state": "ok",
        "cause": "",
        "code": "",
        "about": "",
        "count": 4,
        "hosts": "gpu-[001-003,007]",
    }
    of = {each["name"]: each for each in data["nodes"]}
    assert of["gpu-213"]["controller"] == {"answer": "waits", "message": "the platform is busy"}
    assert of["gpu-213"]["asks"] == "reboot_node"
    assert of["gpu-344"]["slot"] == {"scope": "cluster", "index": 4, "since": None}
    assert of["gpu-502"]["reported_at"] is None
    assert node_data(fleet.nodes[0])["usable"] is True


def test_a_daemon_that_was_stopped_says_so() -> None:
    """At once in the node's own lines; as a state after the heartbeats, with the time since the stop."""
    last = NodeSummary(state=NodeState.OK, at=NOW - timedelta(seconds=4000), stopped=True, mode=Mode.REPAIR)
    fleet = FleetPicture(cluster="", at=NOW, nodes=(_one(a("n1", last.text)),), limit=None, taken=0)
    assert fleet_text(fleet, fleet.nodes).splitlines()[1] == "STOPPED  1  stopped on purpose  n1  for 66 min"
    assert (node_data(fleet.nodes[0])["state"], node_data(fleet.nodes[0])["stopped"]) == ("stopped", True)
    recent = _one(a("n1", replace(last, at=NOW - timedelta(seconds=60)).text))
    line = "report    ok, 60 s ago, as its daemon was stopped on purpose, mode repair"
    assert line in node_text(fleet, recent).splitlines()


def test_groups_are_of_one_state_and_cause(fleet: FleetPicture) -> None:
    """Each node in one group."""
    groups = by_cause(fleet.nodes)
    names = [each.name for group in groups for each in group.nodes]
    assert sorted(names) == [each.name for each in fleet.nodes]
    assert [group.state for group in groups] == sorted((group.state for group in groups), key=list(FleetState).index)


def test_one_note_of_ten_nodes_is_the_note_of_none() -> None:
    """A group shows a note that all of its nodes have."""
    blind = [a("n1", BLIND), a("n2", summary(NodeState.UNKNOWN, "gpu.count"))]
    (group,) = by_cause(fleet_nodes(blind, (), {}, NOW, silent_after_s=1500))
    assert group.about == ""


def test_text_from_outside_cannot_move_the_cursor(fleet: FleetPicture) -> None:
    """A node's root writes its summary: what is printed of it are printable characters."""
    evil = f"healthd state=critical at={STAMP - 60} code=\x1b]0;x\x07 on=\x1b[2J"
    node = fleet_nodes([a("n1", evil)], SLOTS, TIMES, NOW, silent_after_s=1500)
    for text in (fleet_text(fleet, node), why_text(fleet, node), node_text(fleet, node[0])):
        assert not set(text) & {"\x1b", "\x07"}


def _one(listed: ListedNode) -> FleetNode:
    return fleet_nodes([listed], (), {}, NOW, silent_after_s=1500)[0]


PAGED = summary(NodeState.NEEDS_OPERATOR, "gpu.xid.79", note="every remedy was tried")


@pytest.mark.parametrize(
    ("listed", "cause", "about"),
    [
        (a("n", summary(NodeState.HELD)), "no finding named", "out by healthd"),
        (ListedNode(name="n", state="DRAIN", flags=DRAIN, out=True), "no reason given", "not healthd's"),
        (a("n", PAGED), "gpu.xid.79", "every remedy was tried"),
        (a("n", summary(NodeState.OK, ago_s=-900)), "its clock is ahead", ""),
        (a("n", summary(NodeState.OK, note="8812"), dead=True), "its machine does not answer", "cluster: DOWN"),
        (a("n", summary(NodeState.OK), Hold(text="bad", user="", stamp=0)), '"bad"', "not healthd's"),
        (ListedNode(name="n", state="MAINT", flags=frozenset({"MAINT"})), "a maintenance reservation", "not healthd's"),
    ],
)
def test_what_is_not_known_is_said_so(listed: ListedNode, cause: str, about: str) -> None:
    """A hold without a reason, a state without a finding, and the page's own words."""
    (group,) = by_cause([_one(listed)])
    assert (group.cause, group.about.partition("+")[0]) == (cause, about)


def test_remarks_stand_under_the_head() -> None:
    """What stops healthd in the cluster goes before the nodes, in both tables and in the data."""
    message = "there is no Lease healthd-budget"
    fleet = FleetPicture(cluster="", at=NOW, nodes=(_one(a("n1")),), limit=None, taken=0, remarks=(message,))
    for text in (fleet_text(fleet, fleet.nodes), why_text(fleet, fleet.nodes)):
        assert text.splitlines()[1] == f"! {message}"
    assert fleet_data(fleet, fleet.nodes)["remarks"] == [message]


def test_a_budget_of_slots_alone_counts_slots() -> None:
    """Where no controller counts, only claims are held to the limit."""
    out = _one(a("n1", summary(NodeState.OK), Hold(text="cordoned", user="", stamp=0)))
    fleet = FleetPicture(cluster="", at=NOW, nodes=(out,), limit=2, taken=0, only_slots=True)
    assert "budget 0 of 2 out, 0 slots taken" in head(fleet)


def test_a_freeze_stands_on_top(fleet: FleetPicture) -> None:
    """In the head of both texts, and in the JSON; without one nothing is said."""
    words = "freeze until 2026-01-01 04:00 UTC: driver rollout (alice)"
    frozen = replace(fleet, freeze=words)
    for text in (fleet_text(frozen, frozen.nodes, "cause"), why_text(frozen, frozen.nodes)):
        assert text.splitlines()[0].endswith(f"  ·  {words}")
    assert fleet_data(frozen, frozen.nodes)["freeze"] == words
    assert "freeze" not in fleet_text(fleet, fleet.nodes, "cause")
