"""The texts that healthd writes onto a node and into its cluster: reasons, reservations, taints, conditions, labels.

Each text is a row of ``remediation/data/node_texts.csv``: a glob over the text, where it stands, its meaning, and what
the operator does with it. A test finds each such constant of the orchestrators in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from textwrap import wrap
from typing import Any

from msgspec import Struct

from healthd.checklib.runbooks import steps
from healthd.checklib.tables import filled, keyed_rows
from healthd.checklib.xids import sxid_table, xid_table
from healthd.cli.codes import forms_of
from healthd.core.check import discover
from healthd.remediation.orchestrators.kubernetes.objects.conditions import reason_of

SCHEMA = "healthd.explain-text/v1"
_COLUMNS = ("do_1", "do_2", "do_3")
_BETWEEN = re.compile(r"[\s=@:;,\"{}\[\]]+")


class NodeText(Struct, frozen=True, kw_only=True):
    """A text of healthd's. ``text``: a glob over all of it; ``where``: what it is in its cluster. ``notes``: of a check
    what it reads, in paragraphs."""

    text: str
    where: str
    meaning: str
    do: tuple[str, ...]
    notes: tuple[str, ...] = ()


@cache
def node_texts() -> Mapping[str, NodeText]:
    """``node_texts.csv`` by its globs, in its order. Raises ValueError naming the line that cannot be read."""
    return keyed_rows("node_texts.csv", _node_text, lambda row: row.text, package="healthd.remediation")


def node_text(text: str) -> NodeText | None:
    """The first row that fits a text; None for a text that is not healthd's."""
    return next((row for row in node_texts().values() if fnmatchcase(text, row.text)), None)


def code_in(text: str) -> str:
    """The code that a text names, as such or as the reason of a condition (``GpuXid79``); "" for none."""
    words = [word for word in _BETWEEN.split(text) if word]
    return next((code for word in words if (code := _code_of(word))), "")


def as_data(row: NodeText, text: str, runbook: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``explain --json`` for a text. ``runbook``: those of the code in it, or empty."""
    return {
        "schema": SCHEMA,
        "text": text,
        "where": row.where,
        "meaning": row.meaning,
        "notes": [" ".join(note.split()) for note in row.notes],
        "do": list(row.do),
        "runbook": dict(runbook) or None,
    }


def as_text(row: NodeText, text: str) -> str:
    """The text of ``healthd explain`` for a text."""
    steps_ = [f"  {number}. {step}" for number, step in enumerate(row.do, 1)]
    notes = [line for note in row.notes for line in wrap(note, 108, initial_indent="  ", subsequent_indent="  ")]
    return "\n".join([f"{text}: {row.where}", f"  {row.meaning}.", *notes, "", "What you can do", *steps_, ""])


def _code_of(word: str) -> str:
    if "." in word and not word.endswith(".*") and forms_of(word) is not None:
        return word
    return _by_reason().get(word, "") if word[:1].isupper() else ""


@cache
def _by_reason() -> Mapping[str, str]:
    """Every code by its reason in a condition."""
    return {reason_of(code): code for code in _codes()}


def _codes() -> Iterator[str]:
    yield from (code.code for check in discover().values() for code in check.codes if not code.code.endswith(".*"))
    yield from (f"gpu.xid.{xid}" for xid in xid_table())
    yield from (f"nvswitch.sxid.{sxid}" for sxid, _ in sxid_table())


def _node_text(cells: Mapping[str, str]) -> NodeText:
    text = filled(cells, "text")
    do = tuple(cells[column] for column in _COLUMNS if cells[column])
    return NodeText(text=text, where=filled(cells, "where"), meaning=filled(cells, "meaning"), do=do or steps(text))
