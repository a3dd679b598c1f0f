"""The parts of the status that can be told without a daemon: the first lines, the strips, the board, what changed."""

from __future__ import annotations

import json
import threading
from enum import Enum
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.api.devices import strips
from healthd.api.headline import headline, steps_of
from healthd.api.html_page import html_page
from healthd.api.plan_cache import PlanCache
from healthd.api.status import _news
from healthd.cli.status import PrintedStatus
from healthd.core.check import judged, unknown
from healthd.core.errors import BackendError
from healthd.core.model import (
    NODE,
    Action,
    Component,
    Decision,
    Event,
    Mode,
    Outcome,
    Reading,
    Refusal,
    Remedy,
    Severity,
    Status,
    Step,
    Verdict,
    gpu_component,
)
from healthd.judge.devices import DeviceNames
from healthd.remediation.decide.policy import Considered
from healthd.remediation.decide.rules import Rule
from tests.support.judgement import at, diagnosis, fault
from tests.support.running import ROOT

GPUS = [gpu_component(uuid=f"GPU-{index}", pci=f"0000:{index}0:00", index=index) for index in range(4)]
NAMES = {f"gpu:0000:{index}0:00": gpu for index, gpu in enumerate(GPUS)}


def outcome(check: str, *readings: Reading, why: str = "", undecided: tuple[str, ...] = ()) -> Outcome:
    result = unknown(why) if why else judged((), readings, undecided=undecided)
    return Outcome(check=check, result=result, at=at(0), duration_s=0.1)


def listed(*gpus: Component) -> dict[str, Outcome]:
    return {"gpu.count": outcome("gpu.count", *(Reading(component=gpu, name="gpu_index", value=0) for gpu in gpus))}


def states(strip: dict[str, Any]) -> list[tuple[str, str]]:
    return [(part["label"], part["state"]) for part in strip["parts"]]


# -- strips ------------------------------------------------------------------------------------------------------------


def test_only_what_the_last_look_listed_is_well() -> None:
    """One that is not listed any more is missing, and so is one that nobody ever named; unknown, where the list had a
    gap."""
    (strip,) = strips(listed(GPUS[0], GPUS[1], GPUS[3]), (), NAMES, {"gpu": 5})
    assert states(strip) == [("0", "ok"), ("1", "ok"), ("2", "missing"), ("3", "ok"), ("4", "missing")]
    assert (strip["expected"], strip["parts"][2]["name"]) == (5, "GPU-2")
    partly = outcome("gpu.count", Reading(component=GPUS[0], name="gpu_index", value=0), undecided=("NVML hangs",))
    (strip,) = strips({"gpu.count": partly}, (), NAMES, {"gpu": 4})
    assert states(strip) == [("0", "ok"), ("1", "unknown"), ("2", "unknown"), ("3", "unknown")]


def test_while_nobody_asks_the_parts_stand_as_they_were() -> None:
    """NVML is paused: the GPUs keep what was read last, one note says from when, and the faulty one is critical."""
    before = listed(*GPUS)["gpu.count"]
    paused = replace(outcome("gpu.count", why="paused after gpu.xid.79"), at=at(45)).keeping(before)
    fallen = fault("gpu.xid.79", GPUS[2])
    (strip,) = strips({"gpu.count": paused}, [fallen], NAMES, {"gpu": 4})
    assert states(strip) == [("0", "ok"), ("1", "ok"), ("2", "critical"), ("3", "ok")]
    assert strip["notes"] == [f"as of {at(0):%H:%M:%S} UTC (45 s before the last run): paused after gpu.xid.79"]


def test_where_the_count_could_not_tell_nothing_is_called_missing() -> None:
    """Unknown is neither healthy nor broken."""
    blind = {"gpu.count": outcome("gpu.count", why="NVML did not answer")}
    (strip,) = strips(blind, (), {}, {"gpu": 2})
    assert states(strip) == [("0", "unknown"), ("1", "unknown")]


def test_a_fault_marks_its_part_by_any_of_its_names() -> None:
    """Of a PCI address, of a UUID, of the index alone that a lost GPU has; the worst counts, news do not."""
    faults = [
        fault("gpu.xid.79", gpu_component(pci="0000:10:00")),
        fault("gpu.hot", GPUS[1], severity=Severity.WARNING),
        fault("gpu.lost", gpu_component(index=2)),
        fault("gpu.hot", GPUS[0], severity=Severity.WARNING),
        fault("gpu.xid.43", GPUS[3], severity=Severity.INFO),
    ]
    (strip,) = strips(listed(GPUS[0], GPUS[1], GPUS[3]), faults, NAMES, {"gpu": 4})
    assert states(strip) == [("0", "warning"), ("1", "critical"), ("2", "critical"), ("3", "ok")]
    assert strip["parts"][1]["messages"] == ["gpu.xid.79 on gpu:0000:10:00", "gpu.hot on gpu:GPU-1"]


def test_a_part_that_a_check_could_not_read_is_unknown() -> None:
    """A gap names the part, and its words stand beside it."""
    outcomes = {**listed(*GPUS), "gpu.ecc": outcome("gpu.ecc", undecided=("gpu:GPU-2: NVML answered UNKNOWN (999)",))}
    (strip,) = strips(outcomes, (), NAMES, {"gpu": 4})
    assert states(strip)[2] == ("2", "unknown")
    assert strip["parts"][2]["messages"] == ["gpu.ecc: gpu:GPU-2: NVML answered UNKNOWN (999)"]


def test_efa_devices_stand_in_the_order_of_their_bus() -> None:
    """By number, not by letter; a device that the bus lost is not there, and what is wrong with all is a note."""
    parts = [Component(kind="efa", id=f"rdmap{bus}s0") for bus in (101, 79, 80)]
    outcomes = {
        "efa.devices": outcome("efa.devices"),
        "efa.counters": outcome("efa.counters", *(Reading(component=part, name="efa_x", value=1) for part in parts)),
    }
    missing = fault("efa.missing", NODE, message="3 of 4 EFA devices are on the PCI bus")
    (strip,) = strips(outcomes, (missing,), {}, {"efa": 4})
    assert [part["name"] for part in strip["parts"]] == ["rdmap79s0", "rdmap80s0", "rdmap101s0", ""]
    assert strip["parts"][3]["state"] == "missing"
    assert strip["notes"] == ["3 of 4 EFA devices are on the PCI bus"]


def test_a_node_without_such_parts_has_no_strip() -> None:
    """Nothing to show, nothing expected."""
    assert strips({}, (), {}, {"gpu": 0, "efa": None}) == []


# -- the first lines ---------------------------------------------------------------------------------------------------

PLAIN = DeviceNames({"gpu:GPU-3": "GPU 3"})
XID = {"code": "gpu.xid.79", "severity": "critical", "where": "GPU 3", "messages": ["off the bus"],
       "next_step": "reboot", "optional": False, "components": ["gpu:GPU-3"]}  # fmt: skip
REMEDIATION = {
    "code": "gpu.xid.79", "where": "GPU 3", "why": "off the bus", "command": "", "note": "", "end": None,
    "is_out": True, "at_rest": "", "approval": None, "step": "drain",
    "steps": ["slot", "drain", "reboot", "verify", "release"], "then": ["reboot", "verify", "release"],
}  # fmt: skip


def told(verdict: Verdict, *, remediation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"causes": [], "names": PLAIN, "decision": "nothing", "trouble": []}
    return headline(verdict, remediation=remediation, **{**plain, **more})


@pytest.mark.parametrize(
    ("verdict", "remediation", "state", "usable"),
    [
        (Verdict.OK, None, "healthy", "yes"),
        (Verdict.WARNING, None, "warning", "yes"),
        (Verdict.CRITICAL, None, "critical", "no"),
        (Verdict.UNKNOWN, None, "unknown", "unknown"),
        (Verdict.CRITICAL, REMEDIATION, "repairing", "no"),
        (Verdict.OK, REMEDIATION, "repairing", "no"),
        (Verdict.OK, {**REMEDIATION, "is_out": False}, "repairing", "no"),
        (Verdict.CRITICAL, {**REMEDIATION, "steps": ["slot", "drain", "verify", "release"]}, "out", "no"),
        (Verdict.OK, {**REMEDIATION, "steps": ["slot", "drain", "stay"], "step": "stay"}, "out", "no"),
        (Verdict.CRITICAL, {**REMEDIATION, "end": "failed", "note": "out of attempts"}, "out", "no"),
        (Verdict.CRITICAL, {**REMEDIATION, "at_rest": "observe mode"}, "out", "no"),
        (Verdict.CRITICAL, {**REMEDIATION, "approval": {"remedy": "reboot_node"}}, "out", "no"),
    ],
)
def test_a_node_that_is_out_is_not_usable_whatever_its_verdict(
    verdict: Verdict, remediation: dict[str, Any] | None, state: str, usable: str
) -> None:
    """The answer, its word for the page, and a sentence about what comes next, in every state."""
    message = told(verdict, remediation=remediation, causes=[XID] if verdict is Verdict.CRITICAL else [])
    assert (message["state"], message["usable"]) == (state, usable)
    assert message["message"].startswith({"yes": "Yes, ", "no": "No, ", "unknown": "Cannot tell "}[usable])
    assert message["next"].endswith(".")


def test_what_comes_next_names_the_part_as_a_person_does() -> None:
    """And says of observe mode that nothing happens by itself; what keeps healthd from acting comes first."""
    decision = "observe mode: would take the node out for gpu.xid.79 on gpu:GPU-3 (reboot_node)"
    message = told(Verdict.CRITICAL, causes=[XID], decision=decision, refusal=Refusal.OBSERVE)
    assert message["next"].startswith(
        "healthd does nothing by itself. Observe mode: would take the node out for gpu.xid.79 on GPU 3"
    )
    out = "opted out: /etc/healthd/opt-out exists"
    message = told(Verdict.CRITICAL, causes=[XID], decision=out, refusal=Refusal.OPTED_OUT)
    assert message["next"] == "Nothing until the opt-out ends. Opted out: /etc/healthd/opt-out exists."
    message = told(Verdict.CRITICAL, causes=[XID], decision=decision, trouble=["the disk is full"])
    assert message["next"].startswith("The disk is full. Observe mode")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("properties", "mode"), Mode),
        (("properties", "verdict"), Verdict),
        (("$defs", "severity"), Severity),
        (("$defs", "remedy"), Remedy),
        (("$defs", "step"), Step),
        (("$defs", "check", "properties", "outcome"), Status),
    ],
)
def test_the_published_schema_knows_every_word(path: tuple[str, ...], words: type[Enum]) -> None:
    """A mode that it lacks would make each answer of a node in that mode invalid."""
    found = json.loads((ROOT / "docs/reference/status.schema.json").read_text(encoding="utf-8"))
    for part in path:
        found = found[part]
    assert set(found["enum"]) == {each.value for each in words}


def test_a_repair_that_waits_for_an_operator_says_so_first() -> None:
    """healthd repairs nothing until then: an operator who is woken must not wait for it."""
    message = told(Verdict.CRITICAL, remediation={**REMEDIATION, "approval": {"remedy": "reboot_node"}}, causes=[XID])
    assert message["message"] == "No, this node is out, and its repair waits for your approval."


def test_a_drain_of_ours_without_a_case_is_no_quiet_node() -> None:
    """Every check is good, and the node is out: the first line says so, and the next one what undoes it."""
    words = "held by a drain of ours without a remediation; `healthd release` undoes it"
    message = told(Verdict.OK, decision=words, refusal=Refusal.ORPHAN)
    assert (message["state"], message["usable"]) == ("out", "no")
    assert message["next"] == "Held by a drain of ours without a remediation; `healthd release` undoes it."
    message = told(Verdict.OK, decision="no turn succeeds", refusal=Refusal.STUCK)
    assert (message["usable"], message["next"]) == ("yes", "No turn succeeds.")


def test_an_unknown_that_does_not_count_is_no_reason() -> None:
    """Each cause once, in its order."""
    unknown_ = {**XID, "code": "gpu.count", "severity": "unknown", "where": "and 1 more check", "messages": ["x"]}
    why = told(Verdict.UNKNOWN, causes=[XID, unknown_, {**unknown_, "code": "efa.devices", "optional": True}])["why"]
    assert [(each["code"], each["where"], each["message"]) for each in why] == [
        ("gpu.xid.79", "GPU 3", "off the bus"),
        ("gpu.count", "and 1 more check", "x"),
    ]


def test_a_case_says_why_it_began_when_its_fault_is_over() -> None:
    """After the reboot nothing is wrong any more, and the node is out all the same: for this reason."""
    (why,) = told(Verdict.OK, remediation=REMEDIATION)["why"]
    words = "off the bus (the cause of the drain)"
    assert why == {"code": "gpu.xid.79", "where": "GPU 3", "message": words, "next_step": "", "severity": ""}


def test_steps_stand_as_done_now_and_to_do() -> None:
    """In their order, each with words."""
    assert [each["state"] for each in steps_of(REMEDIATION)] == ["done", "now", "todo", "todo", "todo"]
    assert all(each["message"] for each in steps_of(REMEDIATION))
    assert steps_of(None) == []


# -- the board ---------------------------------------------------------------------------------------------------------


def considered() -> Considered:
    decision = Decision(action=Action.HOLD, reason="held")
    return Considered(
        diagnosis=diagnosis(),
        rule=Rule(name="r", codes=(), reason="", source=""),
        ladder=(),
        mode=Mode.OBSERVE,
        decision=decision,
    )


def test_a_cluster_that_hangs_keeps_nobody_waiting() -> None:
    """The answer comes within its timeout and says that there is no plan; one question is asked, not one per asker."""
    asked, go_on = [], threading.Event()

    def consider() -> tuple[Considered, ...]:
        asked.append(1)
        assert go_on.wait(20)
        return (considered(),)

    board = PlanCache(consider, wait_s=0.01)
    for _ in range(3):
        plans, problem = board.plans([diagnosis()])
        assert plans == ()
        assert "no plan yet: waiting for the cluster" in problem
    assert asked == [1]
    go_on.set()
    board = PlanCache(consider, wait_s=10)
    assert board.plans([diagnosis()]) == ((considered(),), "")


def test_the_cluster_is_asked_only_while_something_is_wrong_and_not_for_each_asker() -> None:
    """No fault, no question; the same fault within its time, the same answer; another fault, a new question."""
    asked: list[int] = []

    def consider() -> tuple[Considered, ...]:
        asked.append(1)
        return (considered(),)

    board = PlanCache(consider)
    assert board.plans([]) == ((), "")
    assert asked == []
    for _ in range(3):
        assert board.plans([diagnosis()])[1] == ""
    assert asked == [1]
    assert board.plans([diagnosis(code="gpu.other")])[1] == ""
    assert asked == [1, 1]


def test_a_cluster_that_refuses_is_quoted() -> None:
    """The words of the error, and no plan."""

    def consider() -> tuple[Considered, ...]:
        raise BackendError("sinfo: not found")

    assert PlanCache(consider).plans([diagnosis()]) == ((), "no plan: sinfo: not found")


def test_a_question_that_cannot_be_asked_is_said_and_asked_again_later() -> None:
    """No thread can be started: nobody waits for an answer that never comes, and the faults are shown all the same."""

    def consider() -> tuple[Considered, ...]:
        raise AssertionError("nobody could ask")

    board = PlanCache(consider, wait_s=10)
    before = threading.stack_size(1 << 46)  # there is no memory for a stack so large
    try:
        plans, problem = board.plans([diagnosis()])
    finally:
        threading.stack_size(before)
    assert plans == ()
    assert problem.startswith("no plan: cannot start a thread to ask the cluster: ")


# -- what changed ------------------------------------------------------------------------------------------------------


def test_a_check_that_is_well_is_no_news_unless_it_was_not() -> None:
    """The timeline keeps what went wrong and what came right again."""
    texts = [
        "gpu.ecc is ok",
        "gpu.ecc is unknown: no answer",
        "gpu.ecc is ok",
        "gpu.ecc is ok: fine",
        "x is not_applicable: no",
    ]
    events = [Event(at=at(second), kind="check", text=text) for second, text in enumerate(texts)]
    events.append(Event(at=at(9), kind="fault", text="gpu.ecc is ok"))
    assert [event.text for event in _news(events)] == [
        "gpu.ecc is unknown: no answer",
        "gpu.ecc is ok",
        "gpu.ecc is ok",
    ]


def a_status(*, state: str = "ok", events: tuple[tuple[str, str], ...] = ()) -> dict[str, Any]:
    return {
        "verdict": state,
        "headline": {"message": f"It is {state}.", "why": [], "next": "Nothing."},
        "devices": [{"title": "GPU", "parts": [{"label": "3", "state": state}]}],
        "checks": [
            {"name": "gpu.ecc", "outcome": "ok" if state == "ok" else "findings"},
            *({"name": name, "outcome": "ok" if state == "ok" else "unknown"} for name in ("a", "b")),
        ],
        "timeline": [{"at": f"2026-01-01T00:00:0{second}", "kind": "fault", "text": text} for second, text in events],
    }


def test_a_watcher_hears_each_change_once() -> None:
    """The answer at first; then what is other than before, and two events of one second both."""
    heard = PrintedStatus()
    assert list(heard.news(a_status(events=(("1", "a"), ("2", "b"))))) == [
        "OK  It is ok.", "  next    Nothing.", "  2026-01-01 00:00:02 fault: b",
    ]  # fmt: skip
    assert list(heard.news(a_status(events=(("1", "a"), ("2", "b"))))) == []
    assert list(heard.news(a_status(state="critical", events=(("2", "b"), ("2", "c"), ("3", "d"))))) == [
        "CRITICAL  It is critical.", "  next    Nothing.", "  GPU 3 is critical", "  checks a, b are unknown",
        "  2026-01-01 00:00:02 fault: c", "  2026-01-01 00:00:03 fault: d",
    ]  # fmt: skip
    after = list(heard.news(a_status(events=(("3", "d"),))))
    assert after == ["OK  It is ok.", "  next    Nothing.", "  GPU 3 is ok", "  checks a, b are no longer unknown"]


def test_the_policy_of_the_page_names_its_script_and_its_style() -> None:
    """By hash, so that a byte more runs nothing; nothing is loaded from anywhere."""
    policy = html_page("healthd.api", "status.html").headers["Content-Security-Policy"]
    assert policy.count("'sha256-") == 2
    assert "unsafe" not in policy
    assert "innerHTML" not in html_page("healthd.api", "status.html").html
