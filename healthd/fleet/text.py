"""The fleet for a terminal and as JSON (``healthd.fleet/v1``). Pure: a fleet in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from healthd.core.ages import age, lasting
from healthd.core.hostlist import folded
from healthd.core.name_lists import number_of
from healthd.fleet.causes import By, CauseGroup, by_cause, by_key
from healthd.fleet.nodes import RESERVED, USABLE, FleetNode, FleetPicture, FleetState
from healthd.observe.text_lines import Level, TextLine, aligned, joined
from healthd.remediation.records.handoff import HandoffRecord

SCHEMA = "healthd.fleet/v1"
_WIDEST = 60  # a column is padded to no more characters
_LEVEL: Mapping[FleetState, Level] = {
    FleetState.OK: "ok",
    FleetState.WARNING: "warning",
    FleetState.DRAINING: "warning",
    FleetState.REPAIRING: "warning",
    FleetState.HELD: "warning",
    FleetState.NEEDS_OPERATOR: "critical",
    FleetState.CRITICAL: "critical",
    FleetState.UNKNOWN: "unknown",
    FleetState.STOPPED: "info",
    FleetState.SILENT: "unknown",
    FleetState.DOWN: "critical",
    FleetState.DRAINED: "info",
    FleetState.ASLEEP: "",
    FleetState.NO_AGENT: "",
}


def fleet_text(fleet: FleetPicture, nodes: Sequence[FleetNode], by: By = "cause", *, colour: bool = False) -> str:
    """The head, then a line for each cause, or for each key of ``by``. ``nodes``: those of the fleet to show."""
    if by == "cause":
        causes = by_cause(nodes)
        rows, levels = _cause_rows(causes), [_LEVEL[each.state] for each in causes]
    else:
        keys = by_key(nodes, by)
        rows, levels = _key_rows(keys), [_worst(members) for members in keys.values()]
    lines = _levelled(aligned(rows, widest=_WIDEST), levels) or [TextLine("no such node")]
    return joined([*_first_lines(fleet), *lines], colour=colour)


def head(fleet: FleetPicture) -> str:
    """``cluster train-a · 500 nodes · read at 12:00:00 UTC · budget 3 of 25 out, 2 slots taken``."""
    limit = "" if fleet.limit is None else f" of {fleet.limit}"
    asleep = len(fleet.nodes) - len(fleet.machines)
    parts = [
        f"cluster {fleet.cluster}" if fleet.cluster else "cluster",
        f"{len(fleet.machines)} nodes" + (f" and {asleep} asleep" if asleep else ""),
        f"read at {fleet.at:%H:%M:%S} UTC",
        f"budget {fleet.out}{limit} out, {number_of(fleet.taken, 'slot')} taken",
        *([fleet.freeze] if fleet.freeze else []),
    ]
    return "  ·  ".join(parts)


def _first_lines(fleet: FleetPicture) -> list[TextLine]:
    return [TextLine(head(fleet)), *(TextLine(f"! {each}", "warning") for each in fleet.remarks)]


def _levelled(lines: Sequence[str], levels: Sequence[Level]) -> list[TextLine]:
    return [TextLine(text, level) for text, level in zip(lines, levels, strict=True)]


def _worst(nodes: Iterable[FleetNode]) -> Level:
    """The level of the worst of some nodes: red before magenta before yellow."""
    levels = {_LEVEL[each.state] for each in nodes}
    order: tuple[Level, ...] = ("critical", "unknown", "warning", "info", "ok")
    return next((level for level in order if level in levels), "")


def why_text(fleet: FleetPicture, nodes: Iterable[FleetNode], *, colour: bool = False) -> str:
    """A line for each node that gets no new jobs, or that healthd does something about: who, why, since, step, what it
    waits for, the slot and its age; then what of healthd's is there without the rest of it."""
    shown = [each for each in nodes if each.listed.out or each.is_kept_off or each.slot is not None or each.is_trouble]
    rows: list[tuple[str, ...]] = [("NODE", "STATE", "BY", "WHY", "SINCE", "STEP", "WAITS FOR", "SLOT")]
    rows += [_why_row(each) for each in shown]
    table = _levelled(aligned(rows, widest=_WIDEST), ["", *(_LEVEL[each.state] for each in shown)])
    odd = [
        TextLine(f"! {each.name}: {each.oddity}; see `healthd fleet {each.name}`", "warning")
        for each in shown
        if each.oddity
    ]
    lines = table if shown else [TextLine("every node is in service", "ok")]
    return joined([*_first_lines(fleet), *lines, *odd], colour=colour)


def fleet_data(fleet: FleetPicture, nodes: Sequence[FleetNode]) -> dict[str, Any]:
    """The fleet as data: its head, the number of nodes in each state, the groups, and every node."""
    counted = Counter(each.state for each in fleet.nodes)
    return {
        "schema": SCHEMA,
        "cluster": fleet.cluster,
        "read_at": fleet.at.isoformat(),
        "budget": {"out": fleet.out, "taken": fleet.taken, "limit": fleet.limit},
        "remarks": list(fleet.remarks),
        "freeze": fleet.freeze,
        "states": {state.value: counted[state] for state in FleetState if counted[state]},
        "groups": [_group_data(each) for each in by_cause(nodes)],
        "nodes": [node_data(each) for each in nodes],
    }


def node_data(node: FleetNode) -> dict[str, Any]:
    """One node as data. Times are ISO 8601; what is not known is null or ""."""
    hold, summary, record = node.listed.hold, node.summary, node.record
    return {
        "name": node.name,
        "state": node.state.value,
        "usable": node.state in USABLE,
        "cluster_state": node.listed.state,
        "by": _owner(node),
        "why": _why(node),
        "code": node.code,
        "component": summary.component if summary else "",
        "since": node.since.isoformat() if node.since else None,
        "mode": summary.mode if summary else None,
        "step": summary.step if summary else "",
        "waits_for": summary.note if summary else "",
        "instance_type": node.instance_type,
        "stopped": bool(summary and summary.stopped),
        "reported_at": summary.at.isoformat() if summary and summary.at else None,
        "hold": None if hold is None else {"by": hold.user, "reason": hold.shown, "automatic": hold.automatic},
        "slot": None if node.slot is None else {"scope": node.slot.scope, "index": node.slot.index,
                 "since": node.slot_since.isoformat() if node.slot_since else None},
        "partitions": list(node.listed.partitions),
        "rack": node.listed.group,
        "remediation": record.remediation_id,
        "asks": record.remedy.value if record.remedy is not None and record.asks else None,
        "controller": {"answer": record.answer, "message": record.message} if record.answer else None,
        "history": [
            {"act": each.act, "at": each.at.isoformat(), "code": each.code, "outcome": each.outcome}
            for each in record.history
        ],
        "oddity": node.oddity,
    }  # fmt: skip


def node_text(fleet: FleetPicture, node: FleetNode, *, colour: bool = False) -> str:
    """All that the cluster knows of one node."""
    about = f"{node.name}  {_called(node.state)}" + (f"  {node.code}" if node.code else "")
    details = (*_report_lines(node, fleet.at), *_hold_lines(node, fleet.at), *_remedy_lines(node.record))
    odd = [TextLine(f"! {node.oddity}", "warning")] if node.oddity else []
    return joined([TextLine(about, _LEVEL[node.state]), *map(TextLine, details), *odd], colour=colour)


def _report_lines(node: FleetNode, now: datetime) -> Iterator[str]:
    """The lines of its agent's report."""
    summary = node.summary
    if summary is None:
        yield "report    none: no healthd has reported here, or its clock is ahead"
        return
    more = f"and {summary.more} more" if summary.more else ""
    since = f"for {age(summary.since, now)}" if summary.since is not None else ""
    about = " ".join(filter(None, (summary.state.value, summary.code, summary.component, more, since)))
    stopped = ", as its daemon was stopped on purpose" if summary.stopped else ""
    yield f"report    {about}, {lasting(node.silent_s or 0.0)} ago{stopped}, mode {summary.mode or 'not reported'}"
    for name, text in (("step", summary.step), ("note", summary.note), ("type", node.instance_type)):
        if text:
            yield f"{name:<10}{text}"


def _hold_lines(node: FleetNode, now: datetime) -> Iterator[str]:
    """The lines of the cluster's own view."""
    yield f"cluster   {node.listed.state}, partitions {', '.join(node.listed.partitions) or 'none'}"
    hold, unknown = node.listed.hold, "an unknown time"
    if hold is not None:
        lasts = age(node.held_since, now) or unknown
        yield f'hold      by {_owner(node)}, for {lasts}: "{hold.shown}"'
    if node.slot is not None:
        yield f"slot      {node.slot.scope} {node.slot.index}, for {age(node.slot_since, now) or unknown}"


def _remedy_lines(record: HandoffRecord) -> Iterator[str]:
    """The request to the controller, and the history of repairs."""
    if record.remedy is not None:
        answer = f"; the controller: {record.answer} {record.message}".rstrip() if record.answer else ""
        asks = "asks for" if record.asks else "does"
        yield f"remedy    {asks} {record.remedy}, attempt {record.attempt or 1}{answer}"
    if record.evidence:
        yield f"evidence  {record.evidence}"
    for past in record.history:
        outcome = past.outcome or "no outcome known"
        yield f"  {past.at:%Y-%m-%d %H:%M} {past.act} for {past.code or 'no code'}: {outcome}"


# ---------------------------------------------------------------------------------------------------------------------


def _group_data(group: CauseGroup) -> dict[str, Any]:
    return {
        "state": group.state.value,
        "cause": group.cause,
        "code": group.nodes[0].code if group.cause.startswith(group.nodes[0].code) else "",
        "about": group.about,
        "count": len(group.nodes),
        "hosts": group.hosts,
    }


def _cause_rows(groups: Iterable[CauseGroup]) -> list[tuple[str, ...]]:
    return [(_called(each.state), str(len(each.nodes)), each.cause, each.hosts, _beside(each)) for each in groups]


def _beside(group: CauseGroup) -> str:
    """The act or the wait, and for how long it has been so: the longest of a group."""
    now = group.nodes[0].now
    if group.state is FleetState.OK:
        return ""
    if group.state in (FleetState.SILENT, FleetState.STOPPED):
        known = [each.silent_s for each in group.nodes if each.silent_s is not None]
        lasts = f"for {lasting(max(known))}" if known else ""
    else:
        since = min((each.since for each in group.nodes if each.since is not None), default=None)
        lasts = f"for {age(since, now)}" if since is not None else ""
    return ", ".join(filter(None, (group.about, lasts)))


def _key_rows(groups: dict[str, tuple[FleetNode, ...]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for key, members in groups.items():
        counted = Counter(each.state for each in members)
        states = ", ".join(f"{counted[state]} {state.value}" for state in FleetState if counted[state])
        troubled = folded(each.name for each in members if each.state not in USABLE)
        rows.append((key, str(len(members)), states, troubled))
    return rows


def _why_row(node: FleetNode) -> tuple[str, ...]:
    summary = node.summary
    slot = f"{node.slot.scope} {node.slot.index}" if node.slot is not None else ""
    slot += f" for {age(node.slot_since, node.now)}" if node.slot_since is not None else ""
    step, waits = (summary.step, summary.note) if summary else ("", "")
    return (node.name, _called(node.state), _owner(node), _why(node), age(node.since, node.now), step, waits, slot)


def _why(node: FleetNode) -> str:
    """The reason of another's hold, else the fence of its domain, else another's reservation, else the finding and its
    device."""
    hold = node.listed.hold
    if hold is not None and not node.is_ours:
        return hold.shown
    if node.fence:
        return f"fenced as one: {node.fence}"
    if node.is_kept_off and not (node.listed.out or node.is_ours):
        return RESERVED
    return " ".join(filter(None, (node.code, node.summary.component if node.summary else "")))


def _owner(node: FleetNode) -> str:
    """By whom it is out; "" where it is in service."""
    hold = node.listed.hold
    if node.is_ours:
        return "healthd"
    return "" if hold is None else f"{node.listed.orchestrator} itself" if hold.automatic else hold.user


def _called(state: FleetState) -> str:
    return state.value.upper().replace("-", " ")
