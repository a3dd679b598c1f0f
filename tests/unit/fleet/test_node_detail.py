"""What an operator reads of one node beside the cluster's part: its own answer, or why there is none, and its past."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from healthd.agent.job_verdicts import JobVerdicts
from healthd.api.timeline import trail_data, trail_of
from healthd.config.schema.config import SlurmSection
from healthd.core.model import Mode
from healthd.fleet.asking import NodeAnswer
from healthd.fleet.node_detail import NodeDetail
from healthd.ledger.entries import EntryKind, LedgerEntry
from healthd.state.store import EventFilter
from tests.support.engine_rig import NODE, repair_story

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
URL = "http://gpu-213:9809/verdict"
VERDICT = {
    "schema": "healthd.verdict/v1",
    "node": "gpu-213",
    "verdict": "critical",
    "generated_at": (NOW - timedelta(seconds=2)).isoformat(),
    "checks": [
        {
            "name": "kernel.xid",
            "outcome": "findings",
            "reason": "",
            "findings": [
                {"code": "gpu.xid.79", "severity": "critical", "message": "GPU 3 has fallen off the bus"},
                {"code": "gpu.xid.43", "severity": "info", "message": "an application failed"},
                {"code": "gpu.xid.92", "severity": "warning", "message": "m\x1b[2J", "acknowledged": "by alice"},
            ],
        },
        {"name": "gpu.count", "outcome": "unknown", "reason": "NVML does not answer", "findings": []},
        {"name": "host.clock", "outcome": "ok", "reason": "", "findings": []},
        {"name": "efa.device", "outcome": "not_applicable", "reason": "no EFA", "findings": []},
    ],
}


def answer(**more: object) -> NodeAnswer:
    return NodeAnswer(node="gpu-213", asked=URL, body=json.dumps({**VERDICT, **more}).encode())


def past(count: int) -> list[LedgerEntry]:
    return [
        LedgerEntry(
            kind=EntryKind.REPAIR,
            node="gpu-213",
            at=NOW - timedelta(days=count - number),
            code="gpu.xid.79",
            act="reset",
            outcome="helped",
        )
        for number in range(count)
    ]


TEXT = """\
answer    CRITICAL, 2 s ago, from http://gpu-213:9809/verdict
  critical  kernel.xid: GPU 3 has fallen off the bus  [gpu.xid.79]
  warning   kernel.xid: m?[2J  [gpu.xid.92]  (by alice)
  unknown   gpu.count: NVML does not answer
  ok        1 checks; not applicable: 1
ledger    the last entries: `healthd fleet history --node gpu-213`
  2026-11-23 12:00  gpu-213  repair  gpu.xid.79  reset  helped
"""


def test_many_findings_of_one_code_are_one_line() -> None:
    """With how many devices have it; so are checks that cannot tell for one reason."""
    lost = [{"code": "gpu.xid.79", "severity": "critical", "message": f"GPU {n} is lost"} for n in range(8)]
    blind = [{"name": f"gpu.{n}", "outcome": "unknown", "reason": "no driver", "findings": []} for n in range(15)]
    found = {"name": "kernel.xid", "outcome": "findings", "reason": "", "findings": lost}
    detail = NodeDetail(now=NOW, answer=answer(checks=[found, *blind]))
    assert detail.text.splitlines()[1:] == [
        "  critical  kernel.xid: GPU 0 is lost  [gpu.xid.79 x8]",
        "  unknown   gpu.0 and 14 more: no driver",
        "  ok        0 checks; not applicable: 0",
    ]


def test_a_node_that_answers_shows_its_findings_and_its_past() -> None:
    """Without news, and without a character that moves the cursor."""
    detail = NodeDetail(now=NOW, answer=answer(), past=past(1))
    assert detail.text == TEXT
    assert detail.data["answer"] == {"asked": URL, "problem": "", "verdict": VERDICT}
    assert [each["act"] for each in detail.data["past"]] == ["reset"]


def test_a_node_that_does_not_answer_says_why_and_what_to_run() -> None:
    """The past is there all the same; an answer that is none of a node counts as none."""
    silent = NodeAnswer(node="gpu-213", asked=URL, problem=f"{URL} refuses connections")
    detail = NodeDetail(now=NOW, answer=silent, past=past(12))
    first, second, *rest = detail.text.splitlines()
    assert first == f"answer    none: {URL} refuses connections; run `healthd status` on gpu-213"
    assert second == "ledger    the last entries, and 2 earlier: `healthd fleet history --node gpu-213`"
    assert len(rest) == len(detail.data["past"]) == 10
    assert detail.data["answer"] == {"asked": URL, "problem": f"{URL} refuses connections", "verdict": None}
    odd = NodeDetail(now=NOW, answer=answer(verdict=7))
    assert "answered with something else" in odd.text
    assert odd.data["answer"]["verdict"] is None


HISTORY_URL = "http://gpu-213:9809/history"
REMEDIATION = {
    "id": "b7da3274",
    "code": "gpu.xid.79",
    "component": "GPU 3",
    "remedy": "reboot_node",
    "opened": (NOW - timedelta(minutes=6)).isoformat(),
    "since": (NOW - timedelta(minutes=4)).isoformat(),
    "steps": ["slot", "drain", "reboot", "verify", "release"],
    "step": "reboot",
    "end": None,
    "note": "",
}
OPENED = {"severity": "critical", "opened": True, "code": "gpu.xid.79"}
HISTORY = {
    "schema": "healthd.history/v1",
    "node": "gpu-213",
    "cut": "",
    "newest": 7,
    "events": [
        {"at": (NOW - timedelta(minutes=7)).isoformat(), "kind": "fault", "text": "gpu.xid.79 opened", "data": OPENED}
    ],
    "remediations": [REMEDIATION],
}
HISTORY_TEXT = """\
history   from http://gpu-213:9809/history
  2026-11-24 11:53:00  fault        gpu.xid.79 opened
  2026-11-24 11:54:00  remediation  [b7da3274] gpu.xid.79 on GPU 3, reboot_node: slot, drain, reboot, verify, release; \
open, at reboot since 2026-11-24 11:56:00
"""


def told(**more: object) -> NodeAnswer:
    return NodeAnswer(node="gpu-213", asked=HISTORY_URL, body=json.dumps({**HISTORY, **more}).encode())


def test_a_node_shows_its_history_and_its_open_remediation() -> None:
    """As the node has it; a name without a machine is not asked."""
    detail = NodeDetail(now=NOW, answer=answer(), history=told())
    assert detail.text.endswith(HISTORY_TEXT)
    assert detail.data["timeline"] == HISTORY
    nothing = NodeDetail(now=NOW)
    assert (nothing.text, nothing.data["answer"], nothing.data["timeline"]) == ("", None, None)


def test_a_long_history_ends_with_its_newest_lines() -> None:
    """Ten, without a character that moves the cursor."""
    lines = [{**HISTORY["events"][0], "text": f"fault {n}\x1b[2J"} for n in range(30)]  # type: ignore[index]
    shown = NodeDetail(now=NOW, history=told(events=lines, remediations=[])).text.splitlines()
    assert [line.rpartition("  ")[2] for line in shown[1:]] == [f"fault {n}?[2J" for n in range(20, 30)]


def test_a_history_names_devices_as_the_node_does() -> None:
    """An answer of an earlier version has no names."""
    opened = {**HISTORY["events"][0], "text": "gpu.xid.79 on gpu:GPU-51a1 opened"}  # type: ignore[index]
    shown = NodeDetail(now=NOW, history=told(events=[opened], names={"gpu:GPU-51a1": "GPU 3"})).text
    assert "gpu.xid.79 on GPU 3 opened" in shown
    assert "gpu.xid.79 on gpu:GPU-51a1 opened" in NodeDetail(now=NOW, history=told(events=[opened])).text


def test_each_line_of_a_daemon_is_read(tmp_path: Path) -> None:
    """Over the socket all data of a line comes along: of the steps of a repair, under way and over, and of the end of
    a job."""
    world = repair_story(tmp_path).run_to_end()
    verdicts = JobVerdicts(
        node=NODE,
        monitor=world.monitor,
        store=world.store,
        checks={},
        mode=Mode.REPAIR,
        section=SlurmSection(),
        slurm=None,
        holds=world.store.open_remediation,
        clock=world.clock.now,
    )
    job, verdict = verdicts.judge({"SLURM_JOB_ID": "4711"}, (), world.clock.now())
    verdicts.keep(job, verdict, blamed=False, now=world.clock.now())
    trail = trail_data(trail_of(world.store, EventFilter(), last=1000))
    world.close()
    assert {"fault", "decision", "step", "job"} <= {each["kind"] for each in trail["events"]}
    assert {"code", "end", "evidence"} <= {key for each in trail["events"] for key in each["data"]}
    shown = NodeDetail(now=NOW, history=told(**trail)).text
    assert shown.startswith(f"history   from {HISTORY_URL}\n"), shown


@pytest.mark.parametrize(
    "more",
    [
        {"events": 7},
        {"events": [{}]},
        {"newest": "x"},
        {"node": "gpu-1"},
        {"names": {"": "GPU 3"}},
        {"names": {f"gpu:{n}": f"GPU {n}" for n in range(513)}},
    ],
    ids=["no-list", "no-event", "no-number", "other-node", "empty-name", "many-names"],
)
def test_a_history_that_is_none_of_this_node_says_so(more: dict[str, object]) -> None:
    """An older daemon has none, and any user of a node may listen at its port."""
    detail = NodeDetail(now=NOW, history=told(**more))
    assert detail.text.startswith(f"history   none: {HISTORY_URL} answered with ")
    assert detail.data["timeline"] is None
    assert detail.data["timeline_problem"]


def test_the_page_shows_such_an_answer() -> None:
    """The lines of the docs are those of the code."""
    page = (Path(__file__).resolve().parents[3] / "docs/how-to/fleet.md").read_text(encoding="utf-8")
    shown = page.partition("```text node\n")[2].partition("```")[0]
    text = NodeDetail(now=NOW, answer=answer(), history=told(), past=past(1)).text
    assert shown.splitlines() == [line for line in text.splitlines() if "m?[2J" not in line]
