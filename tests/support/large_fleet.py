"""A fleet of any size in every state, as a cluster lists it: for the page of the fleet, its pictures and benchmark.

The same count, time and seed give the same fleet. Nodes are in racks of 18; one rack loses its file system, and one
node in ten has something to show.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from healthd.core.model import CLUSTER, Mode, Remedy
from healthd.fleet.nodes import FleetPicture, fleet_nodes
from healthd.remediation.ports import Hold, ListedNode, Slot
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult
from healthd.remediation.records.summary import NodeState, NodeSummary

RACK = 18
SICK_RACK = 1
SILENT_AFTER_S = 1500.0
_TYPES = ("p5.48xlarge", "p5en.48xlarge", "p4d.24xlarge")
_NOT_OK = (
    (0.03, "warning"),
    (0.033, "critical"),
    (0.038, "unknown"),
    (0.042, "silent"),
    (0.048, "drained"),
    (0.054, "repairing"),
    (0.058, "waiting"),
    (0.061, "asleep"),
    (0.063, "human"),
)


def large_fleet(count: int, now: datetime, *, seed: int = 1, names: str = "gpu-{:05d}") -> FleetPicture:
    """So many nodes at this time."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    slots: list[Slot] = []
    times: dict[tuple[str, int], int] = {}
    listed = [_listed(names.format(number), number - 1, now, chance) for number in range(1, count + 1)]
    for each in listed:
        if each.hold is not None and each.hold.text.startswith("healthd:"):
            slot = Slot(scope=CLUSTER, index=len(slots), node=each.name)
            slots.append(slot)
            times[slot.scope, slot.index] = each.hold.stamp
    return FleetPicture(
        cluster="train-a",
        at=now,
        nodes=fleet_nodes(listed, slots, times, now, silent_after_s=SILENT_AFTER_S),
        limit=max(count // 20, 1),
        taken=len(slots),
    )


def _listed(name: str, place: int, now: datetime, chance: random.Random) -> ListedNode:
    rack, kind = place // RACK, _TYPES[place // RACK % len(_TYPES)]
    draw = chance.random()
    minutes = chance.randrange(2, 90) if chance.random() < 0.02 else chance.randrange(90, 30_000)
    what = next((state for share, state in _NOT_OK if draw < share), "ok")
    if rack == SICK_RACK:
        what, minutes = "lost", 7
    summary, hold, record = _story(what, now - timedelta(minutes=minutes), now, chance, kind)
    flags = frozenset({"IDLE", "DRAIN"} if hold else {"POWERED_DOWN"} if what == "asleep" else {"ALLOCATED"})
    return ListedNode(
        name=name,
        state="+".join(sorted(flags)),
        flags=flags,
        out=hold is not None,
        asleep=what == "asleep",
        hold=hold,
        partitions=(("train", "all"), ("infer", "all"), ("dev",))[place // RACK % 3],
        record=record,
        summary=summary.text,
        group=f"rack-{rack + 1:03d}",
    )


def _story(
    what: str, since: datetime, now: datetime, chance: random.Random, kind: str
) -> tuple[NodeSummary, Hold | None, str]:
    """The summary, hold and record of a node of which this is the state."""
    at = now - timedelta(seconds=chance.randrange(5, 600))

    def says(state: NodeState, code: str = "", on: str = "", step: str = "", note: str = "") -> NodeSummary:
        mode = Mode.OBSERVE if state is NodeState.CRITICAL else Mode.REPAIR
        return NodeSummary(
            state=state,
            at=at,
            since=since,
            mode=mode,
            instance_type=kind,
            code=code,
            component=on,
            step=step,
            note=note,
        )

    ours = Hold(text="healthd: gpu.xid.79 [b7da3274]", user="root", stamp=int(since.timestamp()))
    gpu = f"GPU {chance.randrange(8)}"
    record = HandoffRecord(
        remediation_id="b7da3274",
        code="gpu.xid.79",
        remedy=Remedy.REBOOT_NODE,
        attempt=1,
        history=(
            PastRepair(
                act=PastAct.RESET, at=since + timedelta(minutes=1), code="gpu.xid.79", outcome=RepairResult.FAILED
            ),
        ),
    ).text
    match what:
        case "warning":
            return says(NodeState.WARNING, "efa.counters.retrans", "efa:rdmap0s6"), None, ""
        case "critical":
            return says(NodeState.CRITICAL, "gpu.xid.79", gpu), None, ""
        case "lost":
            return says(NodeState.CRITICAL, "lustre.missing", "mount:/fsx"), None, ""
        case "unknown":
            return says(NodeState.UNKNOWN, "gpu.count", note="NVML does not answer"), None, ""
        case "silent":
            at = now - timedelta(seconds=SILENT_AFTER_S + chance.randrange(60, 3000))
            return says(NodeState.OK), None, ""
        case "drained":
            return says(NodeState.OK), Hold(text="fan swap", user="alice", stamp=int(since.timestamp())), ""
        case "repairing":
            return says(NodeState.REPAIRING, "gpu.xid.79", gpu, "reboot"), ours, record
        case "waiting":
            return says(NodeState.DRAINING, "gpu.remap.pending", gpu, "wait_idle", "8812 of alice"), None, ""
        case "human":
            return says(NodeState.NEEDS_OPERATOR, "gpu.ecc.uncorrected", gpu, "stay"), ours, record
        case _:
            return says(NodeState.OK), None, ""
