"""A verdict as Node conditions, and when they are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from healthd.core.model import NODE, Component, Diagnosis, Outcome, Remedy, Result, Severity, Status
from healthd.remediation.orchestrators.kubernetes.objects.conditions import (
    DEBOUNCE_S,
    FLIP_S,
    NOT_LOOKED,
    TYPES,
    Conditions,
    ConditionState,
    WrittenCondition,
    first_heartbeat_s,
    heartbeat_s,
    patch_of,
    reason_of,
    shown_on,
    states_of,
    type_of,
)
from healthd.remediation.orchestrators.kubernetes.objects.node import node_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
WELL = ConditionState(status="True", reason="Healthy", message="no fault is open")
SICK = ConditionState(status="False", reason="GpuXid79", message="gpu.xid.79 on gpu:0: reboot_node")


def diagnosis(code: str, kind: str = "gpu", severity: Severity = Severity.CRITICAL, part: str = "0") -> Diagnosis:
    component = Component(kind=kind, id=part)
    return Diagnosis(
        code=code, component=component, severity=severity, remedy=Remedy.REBOOT_NODE, since=NOW, reasons=("r",)
    )


def outcome(status: Status, *, optional: bool = False, undecided: tuple[str, ...] = ()) -> Outcome:
    return Outcome(
        check="c", result=Result(status=status, undecided=undecided), at=NOW, duration_s=0.1, optional=optional
    )


# -- what they say ----------------------------------------------------------------------------------------------------


def test_a_critical_fault_is_false_where_it_is_and_nowhere_else() -> None:
    """With the code as the reason; of several always the same one."""
    found = [diagnosis("gpu.xid.79", part="1"), diagnosis("gpu.xid.48"), diagnosis("efa.missing", "efa")]
    states = states_of(found, {}, ())
    assert {kind: state.status for kind, state in states.items()} == {
        "HealthdGPU": "False",
        "HealthdNetwork": "False",
        "HealthdStorage": "True",
        "HealthdNode": "True",
    }
    assert states["HealthdGPU"].reason == "GpuXid48"
    assert states["HealthdGPU"].message == "gpu.xid.48 on gpu:0: reboot_node; gpu.xid.79 on gpu:1: reboot_node"
    assert states_of(reversed(found), {}, ()) == states


def test_a_warning_is_told_and_is_no_fault() -> None:
    """The node is fit for a job."""
    states = states_of([diagnosis("gpu.temperature", severity=Severity.WARNING)], {}, ())
    assert (states["HealthdGPU"].status, states["HealthdGPU"].reason) == ("True", "HealthyWithWarnings")


def test_what_could_not_tell_is_unknown_unless_it_is_known_to_be_bad() -> None:
    """Unknown is not healthy, and hides nothing; an optional check does not count."""
    outcomes = {"gpu.count": outcome(Status.UNKNOWN), "efa.devices": outcome(Status.UNKNOWN, optional=True)}
    states = states_of([], outcomes, outcomes)
    assert states["HealthdGPU"] == ConditionState(
        status="Unknown", reason="CouldNotTell", message="checks that could not decide: gpu.count"
    )
    assert states["HealthdNetwork"].status == "True"
    assert states_of([diagnosis("gpu.xid.79")], outcomes, outcomes)["HealthdGPU"].status == "False"


@pytest.mark.parametrize(
    ("optional", "severity", "status"),
    [
        (False, Severity.WARNING, "Unknown"),
        (False, Severity.CRITICAL, "False"),
        (True, Severity.WARNING, "True"),
    ],
)
def test_one_part_that_does_not_answer_is_not_hidden_by_a_finding_on_another(
    optional: bool, severity: Severity, status: str
) -> None:
    """GPU 0 warns and GPU 3 does not answer: the node's verdict is unknown, and so is its condition."""
    outcomes = {"gpu.temperature": outcome(Status.FINDINGS, optional=optional, undecided=("gpu:3: no answer",))}
    found = [diagnosis("gpu.temperature", severity=severity)]
    assert states_of(found, outcomes, outcomes)["HealthdGPU"].status == status


def test_what_has_not_looked_yet_is_unknown() -> None:
    """In its own words, and only for its own condition."""
    states = states_of([], {"efa.devices": outcome(Status.OK)}, ("efa.devices", "gpu.count"))
    assert states["HealthdGPU"] == NOT_LOOKED
    assert states["HealthdNetwork"].status == "True"


@pytest.mark.parametrize(
    ("code", "kind", "expected"),
    [
        ("gpu.xid.79", "gpu", "HealthdGPU"),
        ("kernel.xid", "", "HealthdGPU"),
        ("kernel.efa", "", "HealthdNetwork"),
        ("kernel.rules", "", "HealthdNode"),
        ("host.network", "", "HealthdNetwork"),
        ("host.clock", "", "HealthdNode"),
        ("lustre.hung", "mount", "HealthdStorage"),
        ("nvme.media", "nvme", "HealthdStorage"),
        ("gpu.count", "node", "HealthdGPU"),
        ("cloud.events", "", "HealthdNode"),
    ],
)
def test_each_finding_has_its_condition(code: str, kind: str, expected: str) -> None:
    """By where it is; what is of the whole node by its name."""
    assert type_of(code, kind) == expected


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("gpu.xid.79", "GpuXid79"),
        ("host.clock_skew", "HostClockSkew"),
        ("79.x", "Code79X"),
        ("x" * 200, "X" + "x" * 127),
        ("9" * 200, "Code" + "9" * 124),
    ],
)
def test_a_reason_is_one_camel_case_word(code: str, reason: str) -> None:
    """Of at most 128 characters, beginning with a letter."""
    assert reason_of(code) == reason


def test_a_message_is_cut_and_has_no_newlines() -> None:
    """1,024 characters are what peers allow themselves; the API server would take 200,000."""
    many = [diagnosis("gpu.xid.79", part=f"GPU-{number}\n") for number in range(100)]
    message = states_of(many, {}, ())["HealthdGPU"].message
    assert len(message) == 1024
    assert message.endswith("…")
    assert "\n" not in message


def test_a_node_without_a_kind_of_its_own_is_a_node() -> None:
    """The component of the whole machine."""
    found = Diagnosis(
        code="host.memory.edac",
        component=NODE,
        severity=Severity.CRITICAL,
        remedy=Remedy.REPLACE_NODE,
        since=NOW,
        reasons=("r",),
    )
    assert states_of([found], {}, ())["HealthdNode"].status == "False"


# -- when they are written --------------------------------------------------------------------------------------------


class Clock:
    """Conditions of one node, and a server that takes everything unless told otherwise."""

    def __init__(self, shown: dict[str, WrittenCondition] | None = None) -> None:
        self.now_s = 0.0
        self.conditions = Conditions(uid="u1", now_s=0.0, shown=shown)
        self.writes: list[tuple[float, dict[str, WrittenCondition]]] = []

    def run(self, for_s: float, state: ConditionState, *, answers: bool = True) -> None:
        until_s = self.now_s + for_s
        while self.now_s < until_s:
            self.now_s += 1.0
            states = {**dict.fromkeys(TYPES, WELL), "HealthdGPU": state}
            due = self.conditions.wanted(states, self.now_s, NOW + timedelta(seconds=self.now_s))
            if not self.conditions.is_due(due, self.now_s):
                continue
            self.writes.append((self.now_s, due))
            if answers:
                self.conditions.written(due, self.now_s)
            else:
                self.conditions.failed(self.now_s, random=0.5)

    def gpu(self) -> list[str]:
        """The statuses of one condition, as they were written."""
        return [due["HealthdGPU"].state.status for _, due in self.writes]


def well() -> dict[str, WrittenCondition]:
    return {kind: WrittenCondition(state=WELL, moved=NOW - timedelta(days=1)) for kind in TYPES}


def test_all_four_are_created_at_once_as_unknown() -> None:
    """Absent never means healthy; the verdict follows after the debounce, not after the time between flips."""
    clock = Clock()
    clock.run(1 + DEBOUNCE_S + 1, WELL)
    assert clock.gpu() == ["Unknown", "True"]


def test_a_blip_is_never_written() -> None:
    """Shorter than the debounce, there and back."""
    clock = Clock(well())
    clock.run(5, WELL)
    clock.run(DEBOUNCE_S - 1, SICK)
    clock.run(5, WELL)
    assert clock.writes == []


def test_a_status_is_shown_for_a_while_whatever_it_flaps() -> None:
    """Two flips are never closer than 30 s."""
    clock = Clock(well())
    for _ in range(40):
        clock.run(DEBOUNCE_S + 1, SICK)
        clock.run(DEBOUNCE_S + 1, WELL)
    shown = ["True", *clock.gpu()]
    flips = [at for (at, _), (before, after) in zip(clock.writes, pairwise(shown), strict=True) if before != after]
    assert len(flips) > 5
    assert min(later - earlier for earlier, later in pairwise(flips)) >= FLIP_S


def test_a_new_message_is_written_and_moves_no_transition_time() -> None:
    """After the debounce; the status has not moved."""
    clock = Clock(well())
    clock.run(60, ConditionState(status="True", reason="HealthyWithWarnings", message="gpu.temperature"))
    ((_, due),) = clock.writes
    assert due["HealthdGPU"].moved == NOW - timedelta(days=1)


def test_a_daemon_that_starts_anew_leaves_what_is_there_until_it_has_looked() -> None:
    """A rollout must not turn every node of the fleet Unknown."""
    clock = Clock(well())
    clock.run(30, NOT_LOOKED)
    assert clock.writes == []


def test_what_failed_is_sent_again_ever_more_rarely_and_whole() -> None:
    """At 10, 20, 40 … 300 s; the transition time is that of the change, not of the write."""
    clock = Clock(well())
    clock.run(2000, SICK, answers=False)
    times = [at for at, _ in clock.writes]
    undecided = [later - earlier for earlier, later in pairwise(times)]
    assert undecided[:5] == [10, 20, 40, 80, 160]
    assert max(undecided) == 300
    clock.run(300, SICK)
    clock.run(50, SICK)
    assert clock.writes[-1][1]["HealthdGPU"] == WrittenCondition(state=SICK, moved=NOW + timedelta(seconds=1))


def test_heartbeats_are_at_most_twelve_an_hour_and_out_of_step() -> None:
    """Each node has a period and a phase of its own, and keeps them."""
    periods = [heartbeat_s(f"uid-{number}") for number in range(500)]
    phases = sorted(first_heartbeat_s(f"uid-{number}") for number in range(500))
    assert all(300 <= period <= 330 for period in periods)
    assert max(later - earlier for earlier, later in pairwise(phases)) < 10
    clock = Clock(well())
    clock.run(36_000, WELL)
    assert 36_000 // 330 <= len(clock.writes) <= 121


# -- as the API has them ----------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back() -> None:
    """Types, states and whole seconds."""
    shown = {kind: WrittenCondition(state=SICK, moved=NOW) for kind in TYPES}
    data: dict[str, Any] = {"metadata": {"name": "n1"}, **patch_of(shown, NOW + timedelta(seconds=5))}
    assert shown_on(node_of(data)) == shown


@pytest.mark.parametrize(
    "there",
    [
        {"status": "Maybe", "lastTransitionTime": "2026-11-21T12:00:00Z"},
        {"status": "True"},
        {"status": "True", "lastTransitionTime": "yesterday"},
        {"status": "True", "lastTransitionTime": "2026-11-21T12:00:00"},
    ],
)
def test_what_is_not_ours_to_have_written_is_written_anew(there: dict[str, str]) -> None:
    """The API server takes all of these."""
    data = {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "HealthdGPU", **there}]}}
    assert shown_on(node_of(data)) == {}
