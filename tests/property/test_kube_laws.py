"""Laws of the Kubernetes back end's pure part, over whatever others do to the same objects."""

from __future__ import annotations

import copy
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from healthd.core.errors import BackendRefused, SlotTaken
from healthd.remediation.orchestrators.kubernetes.objects import budget as leases
from healthd.remediation.orchestrators.kubernetes.objects.conditions import (
    DEBOUNCE_S,
    FLIP_S,
    TYPES,
    Conditions,
    ConditionState,
    WrittenCondition,
    reason_of,
)
from healthd.remediation.orchestrators.kubernetes.objects.count import CountedNodes, budget_before, count
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    KEEPS,
    OwnershipAnnotation,
    fence_patch,
    hold_of,
    label_value,
    node_of,
    quarantine_patch,
    release_patch,
    taint_value,
    without_taint_patch,
)
from tests.support.merge_patch import patched
from tests.support.sampling import examples

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
_KEYS = st.sampled_from(["a", "b", "example.com/c", "nvidia.com/gpu", "node.kubernetes.io/not-ready"])
_TAINTS = st.lists(
    st.fixed_dictionaries({"key": _KEYS, "effect": st.sampled_from(["NoSchedule", "NoExecute"])}),
    unique_by=lambda taint: (taint["key"], taint["effect"]),
    max_size=5,
)


@given(st.text(max_size=200), st.booleans())
def test_every_text_has_a_taint_value_and_every_code_a_reason(text: str, is_ours: bool) -> None:
    """As the API demands them, whatever stands in a reason."""
    value = taint_value(f"healthd: {text}" if is_ours else text)
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]{0,127}", reason_of(text))
    assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", label_value(text))


@given(
    _TAINTS,
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from(["add", "remove", "cordon"]), max_size=4),
    st.dictionaries(st.sampled_from((*KEEPS, "example.com/note")), st.sampled_from(["true", "false"])),
)
def test_release_takes_what_quarantine_brought_and_nothing_else(
    taints: list[dict[str, str]], was_cordoned: bool, cordon: bool, meanwhile: list[str], notes: dict[str, str]
) -> None:
    """Others add and remove taints and cordon meanwhile: what they did stays, what we did goes."""
    metadata = {"name": "n1", "resourceVersion": "1", "annotations": notes}
    node: dict[str, Any] = {"metadata": metadata, "spec": {"taints": taints}}
    if was_cordoned:
        node["spec"]["unschedulable"] = True
    held = OwnershipAnnotation(text="healthd: gpu.xid.79 gpu:0 [x]", by="healthd-agent", stamp=1)
    out = patched(node, fence_patch(node_of(node)))
    out = patched(out, quarantine_patch(node_of(out), held, effect="NoSchedule", cordon=cordon))
    assert hold_of(node_of(out)) is not None
    expected = copy.deepcopy(node)
    for act in meanwhile:
        for each in (out, expected):
            theirs = [taint for taint in each["spec"]["taints"] if taint["key"] != "late"]
            match act:
                case "add":
                    each["spec"]["taints"] = [*theirs, {"key": "late", "effect": "NoSchedule"}]
                case "remove":
                    each["spec"]["taints"] = theirs
                case _:
                    out["spec"]["unschedulable"] = True
    back = patched(out, release_patch(node_of(out)))
    back = patched(back, without_taint_patch(node_of(back), "healthd.io/claimed"))
    assert back["spec"]["taints"] == expected["spec"]["taints"], "in order, too: the admission policy compares lists"
    kept = "cordon" in meanwhile and not cordon
    assert bool(back["spec"].get("unschedulable")) is (was_cordoned or kept)
    assert back["metadata"]["annotations"] == notes


class Server:
    """One Lease, as the API server keeps it: a patch of an old version is refused."""

    def __init__(self, limit: int, total: int) -> None:
        self.version = 1
        self.notes: dict[str, str] = leases.counts(limit=limit, total=total, out=(), at=None)

    def read(self) -> leases.Budget:
        return leases.budget_of(
            "cluster", {"metadata": {"resourceVersion": str(self.version), "annotations": dict(self.notes)}}
        )

    def patch(self, version: str, notes: dict[str, str | None]) -> bool:
        if version != str(self.version):
            return False
        self.version += 1
        self.notes = {key: value for key, value in {**self.notes, **notes}.items() if value is not None}
        return True


_ACTS = st.tuples(
    st.integers(0, 7), st.sampled_from(["read", "claim", "give back", "count", "drain"]), st.integers(0, 5)
)


@settings(max_examples=examples(300))
@given(st.integers(0, 4), st.lists(_ACTS, max_size=80))
def test_claims_from_old_readings_never_pass_the_limit(limit: int, acts: list[tuple[int, str, int]]) -> None:
    """Eight nodes read and write in any order, the controller counts in between: a claim that is granted fits with all
    that the Lease says at that moment, and no place is held twice."""
    server = Server(limit, 8)
    seen = {number: server.read() for number in range(8)}
    for number, act, index in acts:
        name, there = f"n{number}", seen[number]
        notes: dict[str, str | None] = {}
        match act:
            case "read":
                seen[number] = server.read()
                continue
            case "count":
                notes = {**leases.counts(limit=limit, total=8, out=[f"o{at}" for at in range(index % 3)], at=NOW)}
                assert server.patch(str(server.version), notes)
                continue
            case "drain":
                notes = leases.drained(there, name, "healthd: x y [z]", 1)
            case "claim":
                try:
                    notes = leases.claimed(there, name, index, NOW)
                except SlotTaken:
                    continue
            case _:
                try:
                    notes = leases.given_back(there, name, index)
                except BackendRefused:
                    continue
        if server.patch(there.version, notes) and act == "claim":
            assert server.read().room() >= 0
        slots = server.read().slots
        assert len(slots) <= limit
        assert len({slot.index for slot in slots}) == len(slots)
        assert len({slot.node for slot in slots}) == len(slots)


_FLEET = st.dictionaries(
    st.sampled_from([f"n{number}" for number in range(12)]),
    st.tuples(st.booleans(), st.sampled_from(["", "healthd.io/unhealthy", "example.com/x", "nvidia.com/gpu"])),
)


@settings(max_examples=examples(300))
@given(_FLEET, st.sets(st.sampled_from([f"n{number}" for number in range(12)])), st.sampled_from(["5%", "50%", 3]))
def test_whoever_is_out_is_counted_once(
    fleet: dict[str, tuple[bool, str]], holders: set[str], max_out: str | int
) -> None:
    """As a holder or by name, never as both; as agents read what is written, there is room for the rest of the limit
    and for no more."""
    nodes = {
        name: node_of(
            {
                "metadata": {"name": name},
                "spec": {"unschedulable": cordoned, "taints": [{"key": key, "effect": "NoSchedule"}] if key else []},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }
        )
        for name, (cordoned, key) in fleet.items()
    }
    notes = {leases.key_of(name): f'{{"node":"{name}","index":{at}}}' for at, name in enumerate(sorted(holders))}
    before = budget_before("cluster", {"metadata": {"resourceVersion": "1", "annotations": notes}})
    found = count(CountedNodes(nodes=nodes), before, max_out)
    away = {
        name for name, (cordoned, key) in fleet.items() if cordoned or key in ("healthd.io/unhealthy", "example.com/x")
    }
    assert found.out == away - holders
    assert found.total == len(fleet)
    assert found.limit >= 1
    written = leases.counts(limit=found.limit, total=found.total, out=found.out, at=NOW)
    read = leases.budget_of("cluster", {"metadata": {"resourceVersion": "2", "annotations": {**notes, **written}}})
    room = found.limit - len(away | holders)
    assert read.room() == room if room >= 0 else read.room() < 0


_WELL = ConditionState(status="True", reason="Healthy", message="m")
_STATES = st.sampled_from(
    [
        _WELL,
        ConditionState(status="True", reason="HealthyWithWarnings", message="w"),
        ConditionState(status="False", reason="GpuXid79", message="x"),
        ConditionState(status="Unknown", reason="CouldNotTell", message="c"),
    ]
)


@given(st.lists(st.tuples(_STATES, st.integers(1, 40)), max_size=25))
def test_what_is_shown_follows_what_is_so(history: list[tuple[ConditionState, int]]) -> None:
    """Whatever it flaps: writes keep their distance, a transition time moves with its status only and is never in the
    future, and what stays is shown within the debounce and the time between flips."""
    conditions = Conditions(
        uid="u", now_s=0.0, shown={kind: WrittenCondition(state=_WELL, moved=NOW) for kind in TYPES}
    )
    now_s, shown, flipped_s = 0.0, WrittenCondition(state=_WELL, moved=NOW), -FLIP_S
    for state, seconds in [*history, (_WELL, int(DEBOUNCE_S + FLIP_S) + 2)]:
        for _ in range(seconds):
            now_s += 1.0
            now = NOW + timedelta(seconds=now_s)
            due = conditions.wanted({**dict.fromkeys(TYPES, _WELL), "HealthdGPU": state}, now_s, now)
            if not conditions.is_due(due, now_s):
                continue
            conditions.written(due, now_s)
            after = due["HealthdGPU"]
            if after.state.status != shown.state.status:
                assert now_s - flipped_s >= FLIP_S
                assert shown.moved <= after.moved <= now
                flipped_s = now_s
            else:
                assert after.moved == shown.moved
            shown = after
    assert shown.state == _WELL
