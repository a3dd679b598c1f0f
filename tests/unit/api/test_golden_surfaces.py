"""One cause is one line on every surface, however many findings it has; the decision and the next step come first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from healthd import __version__
from healthd.api.headline import QUIET, headline
from healthd.api.plan import as_text as plan_text
from healthd.api.plan import decisions, entry
from healthd.api.status import _timeline, status_text
from healthd.checklib.runbooks import next_step
from healthd.cli.status import PrintedStatus
from healthd.core.model import Event, Mode, Refusal
from healthd.judge.causes import causes_of, unknowns_of
from healthd.notify.news import NODE_KEY, NewsKind, Piece, lines, topics
from healthd.notify.node import for_operators
from healthd.observe.cause_text import cause_data
from healthd.observe.report import as_brief, as_data, as_text
from healthd.remediation.decide.policy import Considered, Needs, Rules, Situation, decide_each
from healthd.remediation.ports import FleetSnapshot, Hold, NodeView
from tests.support.judgement import a_remediation, all_read, at
from tests.support.many_findings import (
    CASES,
    EFA,
    GPUS,
    MINUTES,
    UNKNOWN,
    diagnoses_of,
    faults_of,
    names_of,
    outcomes_of,
    report_of,
)

MOST_LINES, FIRST = 15, 10
STEP = "See whether the device answers at all: `fi_info -p efa -t FI_EP_RDM` and `rdma link`"
WELL = Situation(
    view=NodeView(name="gpu-51", in_service=True, flags=frozenset({"IDLE"}), hold=None),
    snapshot=FleetSnapshot(out=frozenset(), total=100),
)
EVERY = pytest.mark.parametrize("codes", CASES.values(), ids=CASES)


def considered(codes: Sequence[str]) -> tuple[Considered, ...]:
    found = decide_each(diagnoses_of(codes), (), Rules(mode=Mode.QUARANTINE), at(MINUTES), all_read(WELL))
    assert not isinstance(found, Needs)
    return found


def shown_causes(codes: Sequence[str]) -> list[dict[str, Any]]:
    """The causes as the status and the plan have them."""
    names, plans = names_of(codes), [entry(each, None) for each in considered(codes)]
    found = [*causes_of(diagnoses_of(codes), faults_of(codes), names), *unknowns_of(outcomes_of(codes).values(), names)]
    return [{**cause_data(each), "decisions": decisions(cause_data(each), plans, names)} for each in found]


def status_of(codes: Sequence[str]) -> dict[str, Any]:
    report, names = report_of(codes), names_of(codes)
    causes = shown_causes(codes)
    decision = "observe mode: would take the node out"
    opened = [
        Event(at=each.first, kind="fault", text=f"{each.code} on {each.component} opened: seen")
        for each in faults_of(codes)
    ]
    return {
        "node": report.node, "verdict": report.verdict, "instance_type": report.instance_type, "version": __version__,
        "orchestrator": "slurm", "mode": "observe", "notices": [], "problem": "", "store_problem": "", "no_plan": "",
        "opted_out": "", "remediation": None, "decision": decision, "generated_at": report.generated_at.isoformat(),
        "headline": headline(report.verdict, remediation=None, causes=causes, names=names, decision=decision,
                             refusal=Refusal.OBSERVE, trouble=()),
        "causes": causes,
        "diagnoses": [],
        "devices": [],
        "checks": [{**each, "blind": each["outcome"] == "unknown"} for each in as_data(report)["checks"]],
        "timeline": _timeline(opened, names),
    }  # fmt: skip


def told_once(text: str, codes: Sequence[str]) -> None:
    """Each cause has one line, and no stable name is where a person reads."""
    for code in codes:
        assert sum(line.lstrip(" X!?").startswith(code) for line in text.splitlines()) == 1, text
    assert "GPU-51a1" not in text
    assert "rdmap" not in text


def test_the_check_of_a_node_whose_fabric_is_lost() -> None:
    """The form of one cause: its code, its devices, since when; what is wrong; what to do; the rest as a count."""
    assert as_text(report_of((EFA,)), mode="quarantine").splitlines() == [
        f"{'gpu-51  WARNING   usable, 1 problem':<74}p5.48xlarge · quarantine · healthd {__version__}",
        "  ! efa.counters.keep_alive   32 EFA devices (0-31)   since 3 min",
        "    No keep-alive from the network for 187 s (limit 180 s)",
        f"    do: {STEP}; `healthd explain {EFA}`",
        "  ok 31 checks · 8 not applicable",
    ]


def test_the_check_of_a_node_with_all_of_it() -> None:
    """The worst first; 15 checks with one reason are one cause."""
    text = as_text(report_of((EFA, GPUS, UNKNOWN)), mode="quarantine")
    head = "gpu-51  CRITICAL  not usable, 2 problems, 15 checks unknown"
    assert text.splitlines() == [
        f"{head:<74}p5.48xlarge · quarantine · healthd {__version__}",
        "  X gpu.xid.79                8 GPUs (0-7)            since 3 min",
        "    XID 79 on 8 GPUs (0-7): The GPU does not answer on PCIe: it has fallen off the bus",
        f"    do: {next_step(GPUS)}; `healthd explain {GPUS}`",
        "  ! efa.counters.keep_alive   32 EFA devices (0-31)   since 3 min",
        "    No keep-alive from the network for 187 s (limit 180 s)",
        f"    do: {STEP}; `healthd explain {EFA}`",
        "  ? gpu.ecc                   and 14 more checks",
        "    NVML: nvmlInit answered DRIVER_NOT_LOADED (9)",
        "    do: `healthd doctor` names what is missing, and how to fix it",
        "  ok 15 checks · 8 not applicable",
    ]


@EVERY
def test_the_check_fits_and_says_what_to_do_first(codes: Sequence[str]) -> None:
    """At most 15 lines; whether the node is usable and what to do are among the first ten. ``-v`` has every finding."""
    text = as_text(report_of(codes), mode="quarantine")
    shown = text.splitlines()
    assert len(shown) <= MOST_LINES
    assert "usable" in shown[0] or "cannot tell" in shown[0]
    assert sum("do: " in line for line in shown[:FIRST]) == len(codes)
    told_once(text, codes)
    long = as_text(report_of(codes), verbose=True)
    assert all(str(each.component) in long for each in faults_of(codes))
    assert all(name in long for name in outcomes_of(codes))
    assert len(as_brief(report_of(codes)).splitlines()) == 1


@EVERY
def test_the_status_says_the_decision_and_the_next_step_first(codes: Sequence[str]) -> None:
    """The headline and what happens next, then each cause once with the decision about it; the timeline folds too."""
    data = status_of(codes)
    text = status_text(data)
    first = "\n".join(text.splitlines()[:FIRST])
    assert data["headline"]["message"] in first
    assert data["headline"]["next"] in first
    assert "do: " in first
    told_once(text, codes)
    assert len(text.splitlines()) <= 25
    assert [each["text"].partition(" opened")[0] for each in data["timeline"]] == [
        f"{code} on {where}"
        for code, where in ((EFA, "32 EFA devices (0-31)"), (GPUS, "8 GPUs (0-7)"))
        if code in codes
    ]
    assert "GPU-51a1" in status_text(data, verbose=True) or GPUS not in codes


@EVERY
def test_the_plan_says_the_decision_first(codes: Sequence[str]) -> None:
    """One decision for all devices of a cause, with its rule once."""
    causes = [each for each in shown_causes(codes) if each["severity"] != "unknown"]
    head = {"node": "gpu-51", "mode": "quarantine", "policy": "p", "orchestrator": "slurm", "opted_out": "",
            "opt_out_unread": "", "operator": "", "by_job": "", "remediation": None}  # fmt: skip
    text = plan_text(head, causes, names_of(codes), at(MINUTES))
    told_once(text, [code for code in codes if code != UNKNOWN])
    for each in causes:
        assert len(each["decisions"]) == 1
        assert text.count(each["decisions"][0]["message"]) == 1
    if causes:
        first = "\n".join(text.splitlines()[:FIRST])
        assert causes[0]["decisions"][0]["message"] in first
        assert "do: " in first


@EVERY
def test_a_watcher_hears_of_each_cause_once(codes: Sequence[str]) -> None:
    """A line for each cause, and one for the checks that are unknown; the second answer says nothing new."""
    heard = PrintedStatus()
    news = list(heard.news(status_of(codes)))
    assert sum(line.startswith("  why ") for line in news) == len(codes)
    assert len(news) <= FIRST
    assert any(line.startswith("  next ") for line in news)
    later = status_of(codes)
    for each in later["headline"]["why"]:
        each["message"] = each["message"].replace("187 s", "189 s")
    assert list(heard.news(later)) == []


@EVERY
def test_a_message_names_each_cause_once(codes: Sequence[str]) -> None:
    """With what to do about it; a program still gets each finding by its key."""
    report, names = report_of(codes), names_of(codes)
    found = topics(
        verdict=report.verdict, diagnoses=report.diagnoses, acknowledged=(), decision=None, remediation=None,
        least=report.diagnoses[0].severity if report.diagnoses else next(iter(faults_of((EFA,)))).severity,
    )  # fmt: skip
    severities = {each.severity for each in report.diagnoses}
    pieces = [
        Piece(key=each.key, message=each.message, since=at(0), next_step=each.next_step)
        for each in for_operators(found, names)
        if not each.last
    ]
    shown = lines(pieces)
    assert len(shown) <= FIRST
    assert sum(line.startswith("PROBLEM: gpu.xid.79 on 8 GPUs (0-7): critical") for line in shown) == (GPUS in codes)
    is_told = EFA in codes and len(severities) == 1
    assert sum("32 EFA devices (0-31)" in line for line in shown) == is_told
    assert "GPU-51a1" not in "".join(shown)
    assert sum(line.startswith("  do: ") for line in shown) == (GPUS in codes) + is_told


def test_the_end_of_a_cause_is_one_line_too() -> None:
    """What began together and ends together is resolved in one line; a message about two kinds of news has both."""
    over = [
        Piece(key=str(n), message=f"{EFA} on EFA {n}", since=at(n), over=at(900), news=NewsKind.OVER) for n in range(32)
    ]
    began = at(0).strftime("%Y-%m-%d %H:%M:%S")
    assert lines(over) == [f"RESOLVED: {EFA} on 32 EFA devices (0-31) (since {began} UTC)"]
    new = Piece(key="x", message=f"{EFA} on EFA 3: silent", since=at(0) + timedelta(hours=1))
    assert [line.partition(":")[0] for line in lines([*over, new])] == ["PROBLEM", "RESOLVED"]


def test_what_is_about_the_node_names_all_devices_of_the_fault() -> None:
    """The decision, the note of a repair and a page are about one of eight GPUs: the first lines name the eight."""
    last = faults_of((GPUS,))[-1].component
    names, (cause,) = names_of((GPUS,)), shown_causes((GPUS,))
    words = f"observe mode: would take the node out for {GPUS} on {last} (reboot_node)"
    first = headline(report_of((GPUS,)).verdict, remediation=None, causes=[cause], names=names, decision=words,
                     refusal=Refusal.OBSERVE, trouble=())  # fmt: skip
    assert f"take the node out for {GPUS} on 8 GPUs (0-7) (reboot_node)" in first["next"]
    note = f"out until it is healthy: {GPUS} on {last} is still open"
    data = status_of((GPUS,)) | {
        "diagnoses": [{"component": each, "where": names.of(each)} for each in cause["components"]],
        "remediation": {"component": str(last), "where": names.of(last), "text": f"healthd: {GPUS} {last} [c1]",
                        "id": "c1", "step": "verify", "note": note, "evidence": ""},
        "steps": [],
    }  # fmt: skip
    assert f"out until it is healthy: {GPUS} on 8 GPUs (0-7) is still open" in status_text(data)
    assert f"healthd: {GPUS} GPU 7 [c1] at verify" in status_text({**data, "diagnoses": []})
    head = {"node": "gpu-51", "mode": "quarantine", "policy": "p", "orchestrator": "slurm", "opted_out": "",
            "opt_out_unread": "", "operator": note, "by_job": "",
            "remediation": {"message": note, "job": ""}}  # fmt: skip
    assert plan_text(head, [cause], names, at(MINUTES)).count(f"{GPUS} on 8 GPUs (0-7) is still open") == 2
    out = a_remediation(code=GPUS, component=str(last), hold=Hold(text="r", user="o", stamp=1), note=note)
    found = topics(
        verdict=report_of((GPUS,)).verdict, diagnoses=diagnoses_of((GPUS,)), acknowledged=(), decision=None,
        remediation=out, least=faults_of((GPUS,))[0].severity,
    )  # fmt: skip
    told = {each.key: each for each in for_operators(found, names)}
    assert (
        told[NODE_KEY].message
        == f"out of service for {GPUS} on 8 GPUs (0-7) [c1]: {note.replace(str(last), '8 GPUs (0-7)')}"
    )
    assert told[NODE_KEY].title == f"out of service for {GPUS} on 8 GPUs (0-7) [c1]"
    assert told[f"{GPUS} {last}"].message.startswith(f"{GPUS} on GPU 7: critical")


def test_a_quiet_node_says_once_that_there_is_nothing_to_do() -> None:
    """The next step says it; the decision of the daemon would say it again. Another decision has its line."""
    data = status_of((UNKNOWN,))
    quiet = {
        **data,
        "decision": "nothing calls for taking the node out",
        "headline": {**data["headline"], "next": QUIET},
    }
    assert "decision" not in status_text(quiet)
    other = {**quiet, "decision": "the cluster does not answer", "headline": {**data["headline"], "next": "Nothing."}}
    assert "decision  the cluster does not answer" in status_text(other)


def test_two_decisions_about_one_cause_are_both_shown() -> None:
    """What healthd does about one GPU, and what it says of the seven others, each with its devices."""
    plans, names = [entry(each, None) for each in considered((GPUS,))], names_of((GPUS,))
    mine = next(each for each in plans if names.of(each["component"]) == "GPU 3")
    mine.update(action="hold", message=f"remediation c1 on {mine['component']} goes on")
    (cause,) = causes_of(diagnoses_of((GPUS,)), (), names)
    told = {each["where"]: (each["action"], each["message"]) for each in decisions(cause_data(cause), plans, names)}
    assert told.keys() == {"GPU 3", "7 GPUs (0-2,4-7)"}
    assert told["GPU 3"] == ("hold", "remediation c1 on GPU 3 goes on")
    assert "gpu.xid.79 on 7 GPUs (0-2,4-7)" in told["7 GPUs (0-2,4-7)"][1]
