"""JSON of any origin, an annotation or an answer that a user may have written, ends no daemon that reads it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from healthd.core.errors import BackendUnknown
from healthd.fleet.asking import NodeAnswer
from healthd.fleet.incident_memory import FILE, kept_memory
from healthd.fleet.job_comparison import READINGS_SCHEMA, READS_READINGS
from healthd.remediation.orchestrators.kubernetes.objects import budget
from healthd.remediation.orchestrators.kubernetes.objects.domain_fences import fences_in
from healthd.remediation.orchestrators.kubernetes.objects.drain_record import records_in
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import notices_in
from healthd.remediation.orchestrators.kubernetes.objects.node import HOLD, UNHEALTHY, hold_of, node_of
from healthd.remediation.orchestrators.kubernetes.objects.silent_nodes import silent_in

ROOT = Path(__file__).parents[3]
NESTED = "[" * 5_000
TEXTS = ("", "no json", "[]", "{}", "null", '{"x":' + NESTED, NESTED, '"\udcff"')
NOW = datetime(2026, 11, 1, tzinfo=UTC)
READERS: dict[str, Callable[[str], Any]] = {
    "fences": fences_in,
    "drains": records_in,
    "notices": notices_in,
    "silent": silent_in,
    "freeze": lambda text: budget.freeze_in({budget.FREEZE: text}, NOW),
    "claim": lambda text: budget._claim("n1", text),
    "hold": lambda text: hold_of(
        node_of(
            {
                "metadata": {"name": "n1", "annotations": {HOLD: text}},
                "spec": {"taints": [{"key": UNHEALTHY, "effect": "NoSchedule"}]},
            }
        )
    ),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", TEXTS)
def test_an_annotation_of_any_text_is_read(name: str, text: str) -> None:
    """It proves nothing, or keeps something back; it raises nothing that the controller's sync does not handle."""
    READERS[name](text)


BODIES = (b"\xff", b'{"schema":"a","node":"\xff"}', NESTED.encode(), b'{"z":' + NESTED.encode())


@pytest.mark.parametrize("body", BODIES)
def test_the_answer_of_a_node_may_be_anything(body: bytes, tmp_path: Path) -> None:
    """Any user of a node can listen where its daemon does not."""
    answer = NodeAnswer(node="n1", asked="http://n1:9809/readings", body=body)
    with pytest.raises(BackendUnknown, match=r"http://n1:9809/readings answered with something else .*of n1"):
        answer.document(READS_READINGS, READINGS_SCHEMA)
    (tmp_path / FILE).write_bytes(body)
    kept_memory(tmp_path)


def test_no_reader_catches_less() -> None:
    """msgspec raises three kinds of error for a text; who names one of them alone forgets the others."""
    shipped = [path for folder in ("healthd", "remediation", "checks") for path in (ROOT / folder).rglob("*.py")]
    alone = re.compile(r"except \(?msgspec\.(MsgspecError|DecodeError)\)?( as \w+)?:")
    assert [str(path.relative_to(ROOT)) for path in shipped if alone.search(path.read_text(encoding="utf-8"))] == []
