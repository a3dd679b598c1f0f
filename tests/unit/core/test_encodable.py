"""Text that UTF-8 has no bytes for is repaired once, where it comes in."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.check import judged
from healthd.core.encodable import encodable, json_text, writable
from healthd.core.model import Component, Reading, Severity
from tests.support.judgement import at, finding

ANY_TEXT = st.text(st.characters())  # half pairs among them
ODD = "half a pair \udcff"
HALF = "half a pair ?"


def test_what_can_be_written_is_handed_on_as_it_is() -> None:
    """Not even copied: nearly all of it can."""
    result = judged([finding(evidence={"pids": (1, 2), "path": Path("/dev/kmsg")}, message="größer")])
    assert writable(result) is result


def test_every_text_in_a_result_is_repaired() -> None:
    """Messages, names, evidence in any depth, gaps; numbers, times and words of ours stay what they are."""
    part = Component(kind="mount", id=f"/{ODD}", aliases=(ODD,))
    evidence = {ODD: [ODD, {"deep": (ODD, frozenset({ODD}))}], "pid": 7, "none": None}
    odd = finding(component=part, message=ODD, evidence=evidence, time=at(0))
    reading = Reading(component=part, name="x_ratio", value=0.5, epoch=ODD)
    result = writable(judged([odd], [reading], undecided=[ODD]))
    (repaired,) = result.findings
    assert (repaired.message, str(repaired.component), repaired.component.aliases) == (HALF, f"mount:/{HALF}", (HALF,))
    assert repaired.evidence == {HALF: [HALF, {"deep": (HALF, frozenset({HALF}))}], "pid": 7, "none": None}
    assert (repaired.severity, type(repaired.severity), repaired.time) == (odd.severity, Severity, at(0))
    assert (result.undecided, result.readings) == (
        (HALF,),
        (replace(reading, component=repaired.component, epoch=HALF),),
    )


def test_what_has_no_form_at_all_is_told() -> None:
    """As an error, of which the runner makes an unknown: behind it nobody could write it down."""
    endless: dict[str, object] = {}
    endless["itself"] = endless
    with pytest.raises(RecursionError):
        writable(judged([finding(evidence=endless)]))


@given(st.recursive(ANY_TEXT | st.integers() | st.none(), lambda inner: st.dictionaries(ANY_TEXT, inner)))
def test_whatever_was_repaired_can_be_written(value: object) -> None:
    """And repair it again changes nothing."""
    repaired = encodable(value)
    json.dumps(repaired, ensure_ascii=False).encode()
    assert encodable(repaired) == repaired
    assert msgspec.json.decode(json_text(value)) is not ...
