"""One run of one check: whatever happens becomes an outcome."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from healthd.core.check import Check, NoSettings, judged, not_applicable, ok
from healthd.core.encodable import encodable
from healthd.core.errors import SourceBusy, SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Clearance, ClearsBy, Component, Result, Status
from healthd.core.node import Node
from healthd.judge.history import History
from healthd.observe.runner import run_check
from healthd.testing import FakeNode
from tests.support.judgement import GPU, any_component, at, counter, finding, fold, looked


def a_check(run: Callable[[Node, Any], Result]) -> Check:
    return Check(name="test.look", run=run, title="", doc="", interval_s=60, timeout_s=10, settings=NoSettings)


def outcome_of(run: Callable[[Node, Any], Any], **options: bool) -> Any:
    return run_check(a_check(run), FakeNode(), NoSettings(), **options)


def test_a_result_is_passed_on_with_its_time() -> None:
    """The outcome is of the start of the run, in aware UTC, and says how long the run took."""
    before = datetime.now(UTC)
    outcome = outcome_of(lambda _node, _settings: ok(reason="idle"))
    assert (outcome.check, outcome.result, outcome.optional) == ("test.look", ok(reason="idle"), False)
    assert before <= outcome.at <= datetime.now(UTC)
    assert outcome.at.utcoffset() == timedelta(0)
    assert 0 <= outcome.duration_s < 5


def test_the_node_and_the_settings_reach_the_check() -> None:
    """The check is called with exactly what the runner was given."""
    node, settings = FakeNode(), NoSettings()
    seen: list[object] = []

    def run(*given: object) -> Result:
        seen.extend(given)
        return ok()

    run_check(a_check(run), node, settings)
    assert (seen[0] is node, seen[1] is settings) == (True, True)


def test_findings_without_a_time_get_that_of_the_run() -> None:
    """A level is dated by the look; what happened at a known time keeps it."""
    outcome = outcome_of(lambda _node, _settings: judged([finding(), finding("dated", time=at(5))]))
    assert [each.time for each in outcome.result.findings] == [outcome.at, at(5)]


def test_what_came_while_the_check_ran_is_not_over() -> None:
    """Evidence that a fault is over is of the start of the run: a line of the log after that is news of the fault. A
    clearance with a time of its own keeps it."""
    over, dated = (Clearance(by=ClearsBy.LOG_LINE, time=time) for time in (None, at(5)))
    outcome = outcome_of(lambda _node, _settings: ok(clearances=[over, dated]))
    assert [each.time for each in outcome.result.clearances] == [outcome.at, at(5)]
    for late_s, is_open in ((-1, False), (1, True)):
        line = finding(clears_by=ClearsBy.LOG_LINE, time=outcome.at + timedelta(seconds=late_s))
        assert bool(fold(History(), [looked(line), outcome]).faults) is is_open


ODD = Component(kind="gpu", id="\x1b[31m\u202e" + "A" * 9000)


def test_a_part_has_a_name_that_can_be_shown() -> None:
    """128 printable characters: what is cut or replaced has a digest, so that two parts stay two."""
    other = replace(ODD, id=ODD.id + "B")
    result = outcome_of(lambda _node, _settings: judged([finding("x", each) for each in (ODD, other)])).result
    one, two = (str(each.component) for each in result.findings)
    assert one.startswith("gpu:?[31m?AAAA")
    assert (len(one), one.isprintable(), one[:-8] == two[:-8], one != two) == (128, True, True, True)


def test_the_same_part_has_the_same_name_wherever_it_is_told() -> None:
    """In findings, readings and clearances, and where nothing was told of it; a plain name stays as it is."""
    seen = Result(
        status=Status.FINDINGS,
        findings=(finding("x", ODD), finding("x", GPU[0])),
        readings=(counter(1, ODD),),
        clearances=(Clearance(by=ClearsBy.REBOOT, component=ODD),),
        not_reported=((ODD, "x"),),
    )
    result = outcome_of(lambda _node, _settings: seen).result
    named = [result.findings[0], result.readings[0], result.clearances[0]]
    assert {str(each.component) for each in named} == {str(component) for component, _ in result.not_reported}
    assert result.findings[1].component is GPU[0]


@example([Component(kind="mount"), Component(kind="mount", aliases=("\x1f",))])
@given(st.lists(any_component, max_size=4))
def test_names_are_shown_whatever_they_are(parts: list[Component]) -> None:
    """Any characters, any aliases: as many parts come out as went in."""
    found = outcome_of(lambda _node, _settings: judged([finding("x", each) for each in parts])).result.findings
    assert all(len(name) <= 128 and name.isprintable() for each in found for name in each.component.all_names())
    assert len({each.component for each in found}) == len(set(map(encodable, parts)))


@pytest.mark.parametrize("kind", [SourceMissing, SourceTimeout, SourceBusy, SourceUnreadable, SourceError])
def test_a_source_that_does_not_answer_is_unknown(kind: type[SourceError]) -> None:
    """The source's own words are the reason."""

    def run(_node: Node, _settings: Any) -> Result:
        raise kind("NVML did not answer within 10 s")

    result = outcome_of(run).result
    assert (result.status, result.reason) == (Status.UNKNOWN, "NVML did not answer within 10 s")
    assert result.do == kind.do


def test_each_kind_of_silence_has_its_own_next_step() -> None:
    """What is missing or unreadable is for `healthd doctor`; what hangs is for the kernel; what was not asked ends by
    itself."""
    assert (SourceMissing.do, SourceUnreadable.do) == ("", "")
    assert "wchan" in SourceTimeout.do
    assert "again" in SourceBusy.do


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), KeyError("x"), RecursionError("deep"), MemoryError()])
def test_a_raising_check_is_unknown_and_named(error: Exception) -> None:
    """A defect of a check is neither a fault of the node nor silence."""

    def run(_node: Node, _settings: Any) -> Result:
        raise error

    result = outcome_of(run).result
    assert result.status is Status.UNKNOWN
    assert result.reason == f"the check failed: {type(error).__name__}: {error}; this is a defect of test.look"
    assert '[checks."test.look"] optional = true' in result.do


@pytest.mark.parametrize("nonsense", [None, "ok", (), True, object()])
def test_what_is_no_result_is_unknown(nonsense: object) -> None:
    """A check that forgets its return, or returns something else, is unknown as well."""
    result = outcome_of(lambda _node, _settings: nonsense).result
    assert result.status is Status.UNKNOWN
    assert "this is a defect of test.look" in result.reason


def test_optional_is_remembered() -> None:
    """Whether an unknown counts is the outcome's to say, whatever the result."""
    assert outcome_of(lambda _node, _settings: not_applicable("no GPU"), optional=True).optional


@pytest.mark.parametrize("number", [0xDCFF, 0xD800])
def test_half_a_surrogate_pair_gets_no_further(number: int) -> None:
    """Of a plug-in's JSON, a file's name, an error's words: whoever writes, sends or shows an outcome can encode it."""
    half = chr(number)

    def fails(_node: Node, _settings: Any) -> Result:
        raise SourceUnreadable(f"{half}: no such file")

    def breaks(_node: Node, _settings: Any) -> Result:
        raise ValueError(half)

    odd = Component(kind="mount", id=f"/{half}")
    found = outcome_of(lambda _node, _settings: judged([finding(component=odd, message=half, evidence={half: [half]})]))
    for outcome in (found, outcome_of(fails), outcome_of(breaks)):
        msgspec.json.encode(outcome)
    (repaired,) = found.result.findings
    assert (repaired.message, str(repaired.component), repaired.evidence) == ("?", "mount:/?", {"?": ["?"]})
    assert outcome_of(fails).result.reason == "?: no such file"


def test_evidence_that_can_never_be_written_is_unknown() -> None:
    """It would keep everything unwritten that comes with it: the check is told, and named."""
    endless: dict[str, object] = {}
    endless["itself"] = endless
    result = outcome_of(lambda _node, _settings: judged([finding(evidence=endless)])).result
    assert result.status is Status.UNKNOWN
    assert "this is a defect of test.look" in result.reason
