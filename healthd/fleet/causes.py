"""Groups the nodes of a fleet by cause: one line for what is one thing among many. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from healthd.core.hostlist import folded
from healthd.core.model import Mode, Step
from healthd.fleet.nodes import RESERVED, FleetNode, FleetState
from healthd.remediation.records.summary import parse_summary

_HAVE_NOTES = frozenset(
    {FleetState.DRAINING, FleetState.REPAIRING, FleetState.HELD, FleetState.NEEDS_OPERATOR, FleetState.UNKNOWN}
)
By = Literal["cause", "code", "rack", "partition", "type"]
_DOING: Mapping[str, str] = {
    Step.SLOT: "waiting for a budget slot",
    Step.DRAIN: "draining",
    Step.WAIT_IDLE: "waiting for its jobs",
    Step.COLLECT: "saving the evidence",
    Step.RESET: "resetting its GPUs",
    Step.REBOOT: "rebooting",
    Step.REPLACE: "being replaced",
    Step.STAY: "out until an operator releases it",
    Step.VERIFY: "being verified",
    Step.RELEASE: "going back into service",
}


class CauseGroup(Struct, frozen=True, kw_only=True):
    """Nodes in one state for one cause. ``cause``: the code, and its device where all have the same. ``about``: what
    is done about it, or what it waits for."""

    state: FleetState
    cause: str
    about: str
    nodes: tuple[FleetNode, ...]

    @property
    def hosts(self) -> str:
        """Their names as a host list."""
        return folded(each.name for each in self.nodes)


def by_cause(nodes: Iterable[FleetNode]) -> tuple[CauseGroup, ...]:
    """The groups in the order of their states, the largest first."""
    groups: dict[tuple[FleetState, str, str], list[FleetNode]] = {}
    for node in nodes:
        groups.setdefault((node.state, _cause(node), _about(node)), []).append(node)
    order = list(FleetState)
    found = [_group(state, about, members) for (state, _, about), members in groups.items()]
    return tuple(sorted(found, key=lambda each: (order.index(each.state), -len(each.nodes), each.cause, each.hosts)))


def by_key(nodes: Iterable[FleetNode], by: By) -> dict[str, tuple[FleetNode, ...]]:
    """The nodes by code, rack, partition or instance type; a node of several partitions stands in each."""
    found: dict[str, list[FleetNode]] = {}
    for node in nodes:
        for key in _KEYS[by](node) or ("(none)",):
            found.setdefault(key, []).append(node)
    return {key: tuple(found[key]) for key in sorted(found)}


_KEYS: Mapping[str, Callable[[FleetNode], tuple[str, ...]]] = {
    "code": lambda node: (node.code,) if node.code else (),
    "rack": lambda node: (node.listed.group,) if node.listed.group else (),
    "partition": lambda node: node.listed.partitions,
    "type": lambda node: (node.instance_type,) if node.instance_type else (),
}


def _group(state: FleetState, about: str, members: list[FleetNode]) -> CauseGroup:
    cause = _cause(members[0])
    devices = {each.summary.component for each in members if each.summary is not None}
    device = devices.pop() if len(devices) == 1 else ""
    if device and cause == members[0].code:
        cause = f"{cause} {device}"
    says = _note(members) if state in _HAVE_NOTES else ""
    return CauseGroup(state=state, cause=cause, about=says or about, nodes=tuple(members))


def _why_silent(node: FleetNode) -> str:
    if not node.is_silent:
        return "its machine does not answer"
    if node.silent_s is not None:
        return "no heartbeat"
    return "its clock is ahead" if parse_summary(node.listed.summary) is not None else "no report yet"


def _cause(node: FleetNode) -> str:
    match node.state:
        case FleetState.OK | FleetState.ASLEEP | FleetState.NO_AGENT:
            return ""
        case FleetState.DRAINED | FleetState.DOWN:
            hold = node.listed.hold
            if hold is None:
                return "no reason given" if node.listed.out else RESERVED
            owner = node.listed.orchestrator if hold.automatic else hold.user
            return f'by {owner}: "{hold.shown}"' if owner else f'"{hold.shown}"'
        case FleetState.STOPPED:
            return "stopped on purpose"
        case FleetState.SILENT:
            return _why_silent(node)
        case _:
            return node.code or "no finding named"


def _about(node: FleetNode) -> str:
    """The text beside the cause, where it is the same for all of a group."""
    match node.state:
        case FleetState.HELD if node.fence:
            return f"fenced as one: {node.fence}"
        case FleetState.DRAINING | FleetState.REPAIRING | FleetState.HELD:
            step = node.summary.step if node.summary is not None else ""
            return _DOING.get(step, "out by healthd")
        case FleetState.CRITICAL | FleetState.WARNING:
            is_observing = node.summary is not None and node.summary.mode is Mode.OBSERVE
            return "observe mode: nothing is done" if is_observing and node.state is FleetState.CRITICAL else ""
        case FleetState.SILENT | FleetState.STOPPED:
            return f"cluster: {node.listed.state}" if node.listed.dead or node.listed.out else ""
        case FleetState.DRAINED:
            return "not healthd's"
        case _:
            return ""


def _note(members: list[FleetNode]) -> str:
    """The nodes' own note, what they wait for or why, where all have the same."""
    notes = {each.summary.note if each.summary is not None else "" for each in members}
    return notes.pop() if len(notes) == 1 else ""
