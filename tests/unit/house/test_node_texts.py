"""Each text that healthd writes onto a node, or into its cluster, can be explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.cli.explain import explained
from healthd.cli.node_texts import node_text, node_texts
from healthd.config.schema.config import Config
from healthd.controller.kube_troubles import REASONS
from healthd.core.check import discover
from healthd.core.errors import UsageError
from healthd.core.model import Action, Remedy
from healthd.job.text import at_drain
from healthd.remediation.decide.remediation import ORDERED, visible_text
from healthd.remediation.orchestrators.kubernetes.event_writer import NODE_FAULT
from healthd.remediation.orchestrators.kubernetes.objects.conditions import TYPES, reason_of, states_of
from healthd.remediation.orchestrators.slurm.incident_reservations import FENCE, WATCH, notice_name
from healthd.remediation.orchestrators.slurm.job_comments import PREFIX
from healthd.remediation.orchestrators.slurm.jobs import taken_name
from healthd.remediation.orchestrators.slurm.slots import freeze_name
from healthd.remediation.provisioners.slurm_node import ACTION_REBOOT, ACTION_REPLACE
from healthd.remediation.records.handoff import HandoffRecord
from healthd.remediation.records.incident_notices import IncidentNotice
from tests.unit.house.test_english import Passage, hits
from tests.unit.house.test_runbook_table import QUOTED, exists

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 11, 24, tzinfo=UTC)
KEY = re.compile(r"(?:[a-z]+\.)?healthd\.io/[a-z-]*")
CONFIG = Config()
SENTENCES = (
    at_drain("gpu-213", "gpu.xid.79", "GPU 3"),
    "node gpu-213 GPU 3 XID 79 12:03:07; drained; requeued",
    "node gpu-213 is not fit for job 7: healthd: gpu.xid.79 gpu:0000:05:00 [a321e36c]",
    "no node fault seen on 32 nodes",
    "not known whose fault: gpu-213 of 32 nodes could not tell",
)
"""Of the AdminComment of a job."""


def keys() -> Iterator[str]:
    """Every label, taint and annotation of healthd's that the code spells out."""
    for folder in ("healthd", "remediation"):
        texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).rglob("*.py"))]
        for text in [text for text in texts if "healthd.io/" in text]:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value):
                    yield node.value


WRITTEN = [
    *sorted(set(keys()) - {"healthd.io/"}),  # the prefix of all of them
    "healthd.io/unhealthy=gpu.xid.79",
    "claim.healthd.io/gpu-51",
    *TYPES,
    *(state.reason for state in states_of([], {}, ["gpu.count"]).values()),
    "HealthyWithWarnings",
    "CouldNotTell",
    *(reason_of(action) for action in (Action.QUARANTINE, Action.REPAIR, Action.RELEASE, Action.PAGE)),
    *ORDERED,
    visible_text("gpu.xid.79", "gpu:GPU-51a1", "b7da3274"),
    f"{visible_text('operator.quarantine', 'node', 'b7da3274')} [root@2026-11-24T10:00:00]",
    "healthd-cluster-3",
    freeze_name("driver rollout", "alice"),
    WATCH,
    notice_name(IncidentNotice(id="1124-3f2a9c", root="lustre.disconnected", began=NOW, nodes=frozenset({"gpu-001"}))),
    f"{FENCE}1124-3f2a9c:rack-7",
    HandoffRecord(remediation_id="b7da3274", machine="i-0123", remedy=Remedy.REBOOT_NODE).text,
    '{"healthd":"healthd state=ok"}',
    ACTION_REBOOT,
    ACTION_REPLACE,
    taken_name("4711", 0),
    *REASONS.values(),
    NODE_FAULT,
    "PodCameBack",
    "DrainStuck",
    "NodeIsOut",
    *(f"{PREFIX}{sentence}" for sentence in SENTENCES),
]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_text_of_healthds_is_explained(text: str) -> None:
    """What an operator copies from ``scontrol`` or ``kubectl`` has an explanation, and a next step."""
    row, _ = explained(text, CONFIG)
    assert row is not None
    assert row.do


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("healthd: gpu.xid.79 gpu:GPU-51a1 [b7da3274]", "gpu.xid.79"),
        ("healthd.io/unhealthy=gpu.remap.failure", "gpu.remap.failure"),
        ("efa.missing on efa:rdmap79s0: reboot_node", "efa.missing"),
        ("healthd state=held at=1 code=site.disk.slow on=node", "site.disk.slow"),
        ("GpuXid79", "gpu.xid.79"),
        ("GpuRemapPending", "gpu.remap.pending"),
    ],
)
def test_the_code_in_a_text_is_explained_too(text: str, code: str) -> None:
    """Behind the meaning of a text comes the runbook of the code in it."""
    _, runbook = explained(text, CONFIG)
    assert runbook is not None
    assert runbook.code == code


def test_the_reason_of_each_code_leads_back_to_it() -> None:
    """No two codes share the reason of a condition."""
    for code in (code.code for check in discover().values() for code in check.codes if not code.code.endswith(".*")):
        _, runbook = explained(reason_of(code), CONFIG)
        assert runbook is not None
        assert runbook.code == code


def test_a_check_that_could_not_decide_is_explained() -> None:
    """A condition that is Unknown names checks: each is explained by its name."""
    row, runbook = explained("gpu.ecc", CONFIG)
    assert row is not None
    assert (row.where, runbook) == ("a check", None)
    assert row.notes[-1].startswith("Sources: ")


@pytest.mark.parametrize("text", ["low battery", "healthdd", "Not responding", "gpu.xid.x", "79.5"])
def test_another_text_is_not_healthds(text: str) -> None:
    """A text of an operator, of Slurm or of nobody is no text of healthd's."""
    with pytest.raises(UsageError, match="unknown code or text"):
        explained(text, CONFIG)


def test_what_to_do_exists_and_uses_the_fields_words() -> None:
    """As with the runbooks: no command is made up, and no phrase is banned."""
    for row in node_texts().values():
        assert [quoted for step in row.do for quoted in QUOTED.findall(step) if not exists(quoted)] == []
        prose = " ".join((row.meaning, row.where, *row.do))
        assert hits(Passage(path=row.text, line=1, text=QUOTED.sub("", prose))) == []
        assert row.meaning[-1] not in ".:"


def test_no_row_hides_another() -> None:
    """The first row that fits counts: each row is the one for its own text."""
    plain = {row.text: row for row in node_texts().values() if not set(row.text) & set("*[")}
    assert {text: node_text(text) for text in plain} == plain
