"""A NodeHealth: its record is the handoff record, what is odd hides nothing else, and what people are shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.core.model import Action, Decision, Mode, Refusal, Remedy, Step
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.orchestrators.kubernetes.objects.conditions import LONGEST_RETRY_S, RETRY_S
from healthd.remediation.orchestrators.kubernetes.objects.labels import GAP_S, SHOWN, Labels
from healthd.remediation.orchestrators.kubernetes.objects.node_health import (
    FIELDS,
    RECORD,
    STATUS,
    HealthStatus,
    NodeHealth,
    WrittenStatus,
    health_of,
    healths_in,
    read_record,
    record_of,
    record_patch,
    status_of,
    text_of,
    without_nulls,
)
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult, RequestAnswer

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RESOURCE = Path(__file__).resolve().parents[4] / "packaging" / "kubernetes" / "nodehealths.yaml"
MARK = HandoffRecord(
    remediation_id="k3v9",
    machine="i-1@2026-11-20T00:00:00+00:00",
    remedy=Remedy.REBOOT_NODE,
    asks=True,
    attempt=1,
    asked=NOW,
    following=(Remedy.REPLACE_NODE,),
    answer=RequestAnswer.WAITS,
    answered=NOW,
    given_up="k3v8",
    code="gpu.xid.79",
    since=NOW,
    history=(
        PastRepair(act=PastAct.RESET, at=NOW, code="gpu.xid.79", outcome=RepairResult.HELPED, back=NOW),
        PastRepair(act=PastAct.RETURN, at=NOW),
    ),
    message="not idle: train-0",
)
REMEDIATION = Remediation(
    id="k3v9",
    opened=NOW,
    since=NOW + timedelta(minutes=5),
    mode=Mode.REPAIR,
    code="gpu.xid.79",
    component="gpu:1",
    remedy=Remedy.REBOOT_NODE,
    why="",
    text="",
    steps=(Step.SLOT, Step.DRAIN, Step.WAIT_IDLE, Step.REBOOT),
    index=2,
)


def test_a_record_has_a_field_for_each_word_and_none_for_what_is_not_said() -> None:
    """Times are RFC 3339, the history a list of objects."""
    assert record_of(HandoffRecord()) == {}
    assert record_of(MARK)["asked"] == "2026-11-21T12:00:00Z"
    assert record_of(MARK)["givenUp"] == "k3v8"
    assert record_of(MARK)["history"][1] == {"act": "return", "at": "2026-11-21T12:00:00Z"}
    assert read_record(record_of(MARK), NOW).handoff == MARK
    assert read_record(record_of(MARK), NOW).odd == ""
    assert text_of(record_of(MARK)) == MARK.text
    assert text_of(None) == text_of({}) == ""


def test_the_schema_has_the_fields_that_are_written_and_bounds_each() -> None:
    """No field may hold what nobody bounded: agents write there."""
    (version,) = yaml.safe_load(RESOURCE.read_text(encoding="utf-8"))["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    assert set(parts) == {STATUS, RECORD}
    assert set(parts[RECORD]["properties"]) == FIELDS
    assert set(parts[STATUS]["properties"]) == set(HealthStatus().patch[STATUS])
    assert parts[STATUS]["properties"]["state"]["enum"] == [each.value for each in SHOWN]
    assert parts[STATUS]["properties"]["step"]["enum"] == [each.value for each in Step]
    past = parts[RECORD]["properties"]["history"]["items"]["properties"]
    assert past["act"]["enum"] == [each.value for each in PastAct]
    assert [*past["outcome"]["enum"], ""] == [
        each.value for each in (RepairResult.HELPED, RepairResult.FAILED, RepairResult.NOT_KNOWN)
    ]
    assert parts[RECORD]["properties"]["answer"]["enum"] == [each.value for each in RequestAnswer]
    assert all(_is_bound(each) for part in parts.values() for each in part["properties"].values())
    assert "x-kubernetes-preserve-unknown-fields" not in RESOURCE.read_text(encoding="utf-8")


def _is_bound(schema: dict[str, Any]) -> bool:
    match schema["type"]:
        case "string":
            return "enum" in schema or "maxLength" in schema
        case "array":
            return "maxItems" in schema and _is_bound(schema["items"])
        case "object":
            return all(_is_bound(each) for each in schema["properties"].values())
        case "integer":
            return "maximum" in schema
    return bool(schema["type"] == "boolean")


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        ({"attempt": "many"}, "attempt"),
        ({"asked": "2026-11-21T12:00:00"}, "asked"),
        ({"remedy": "explode"}, "remedy"),
        ({"later": "a field of another version"}, "later"),
        ({"history": "none"}, "history"),
        ({"history": [{"act": "explode", "at": "2026-11-21T12:00:00Z"}]}, "history[0]"),
        ({"history": [{"act": "reboot", "at": "2026-11-21T12:00:00"}]}, "history[0]"),
        ({"history": [{"act": "reboot", "at": "2026-11-21T12:00:00Z", "back": "2026-11-21T12:00:00"}]}, "history[0]"),
        ({"history": [{"act": "reboot", "at": "2026-11-21T12:00:00Z", "more": 1}]}, "history[0]"),
        ({"history": ["reboot"]}, "history[0]"),
    ],
)
def test_what_is_odd_is_named_and_hides_nothing_else(odd: dict[str, Any], named: str) -> None:
    """One field that no healthd of this version writes; all others are read."""
    read = read_record({"remediationID": "k3v9", "code": "gpu.xid.79", **odd}, NOW)
    assert read.odd == named
    assert (read.handoff.remediation_id, read.handoff.code) == ("k3v9", "gpu.xid.79")


def test_an_act_with_a_field_of_a_later_version_counts() -> None:
    """While a fleet is upgraded, the bounds of replacements count it."""
    entry = {"act": "replace", "at": "2026-11-21T12:00:00Z", "code": "gpu.xid.79", "more": 1}
    (past,) = read_record({"history": [entry]}, NOW).handoff.history
    assert (past.act, past.code) == (PastAct.REPLACE, "gpu.xid.79")


def test_a_time_that_is_ahead_is_odd_and_stays_for_those_who_leave_it_out() -> None:
    """In the record itself, and in its history."""
    later = NOW + timedelta(hours=1)
    for handoff in (
        HandoffRecord(asked=later),
        HandoffRecord(history=(PastRepair(act=PastAct.REBOOT, at=NOW, back=later),)),
    ):
        assert read_record(record_of(handoff), NOW).odd == "a time in the future"
        assert read_record(record_of(handoff)).odd == ""
        assert read_record(record_of(handoff), NOW).handoff == handoff


def test_what_is_no_record_is_odd_and_says_nothing() -> None:
    """Whatever stands there."""
    assert read_record("healthd case=k3v9", NOW).odd == "it is not a record"
    assert text_of(["healthd"]) == ""


def test_a_patch_sets_every_field() -> None:
    """A merge patch leaves what it does not name: a word of the record before must not stay."""
    record = record_patch("n1", "healthd case=k3v9")[RECORD]
    assert set(record) == FIELDS
    assert {name: value for name, value in record.items() if value is not None} == {"remediationID": "k3v9"}
    assert without_nulls({STATUS: None, **record_patch("n1", "healthd case=k3v9")}) == {
        RECORD: {"remediationID": "k3v9"}
    }


@pytest.mark.parametrize("text", ["two\nlines", "somebody's", "healthd case=" + "x" * 8000, ""])
def test_only_a_handoff_record_is_left(text: str) -> None:
    """One line of healthd's own, of bounded length."""
    with pytest.raises(BackendRefused, match="record of n1 not written"):
        record_patch("n1", text)


def test_objects_are_read_as_they_come() -> None:
    """One, and a page of them; a status of another version is written anew."""
    there = {"metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7"}, "record": {"remediationID": "k3v9"}}
    assert health_of(there) == NodeHealth(
        name="n1", uid="u1", version="7", status=None, record={"remediationID": "k3v9"}
    )
    assert health_of(there).text == "healthd case=k3v9"
    page = b'{"items": [{"metadata": {"name": "n1"}, "status": {"state": "held", "waitsFor": "x"}}]}'
    assert healths_in(page)[0].status == HealthStatus(state="held", waits_for="x")
    assert health_of({**there, "status": {"state": 3}}).status == HealthStatus()
    with pytest.raises(BackendUnknown, match="no NodeHealth"):
        health_of({"metadata": {}})


# -- what people are shown --------------------------------------------------------------------------------------------


def decided(action: Action, refusal: Refusal | None = None) -> Decision:
    return Decision(action=action, reason="", refusal=refusal)


def test_a_case_shows_since_when_its_step_and_what_it_waits_for() -> None:
    """What the engine waits for comes before what its step is about; a page waits for an operator."""
    labels, shown = Labels(state="draining", code="gpu.xid.79"), HealthStatus()
    plain = status_of(labels, REMEDIATION, None, shown, NOW + timedelta(hours=1))
    assert plain == HealthStatus(
        state="draining", code="gpu.xid.79", since="2026-11-21T12:00:00Z", step="wait_idle", waits_for="its jobs to end"
    )
    waits = {
        status_of(labels, REMEDIATION, each, shown, NOW).waits_for
        for each in (
            decided(Action.HOLD, Refusal.BUDGET),
            decided(Action.HOLD, Refusal.OBSERVE),
            decided(Action.PAGE, Refusal.LEMON),
            decided(Action.PAGE),
        )
    }
    assert waits == {"a slot in the budget", "its jobs to end", "an operator: lemon", "an operator"}
    assert "state=draining" in plain.text


def test_without_a_case_it_shows_since_when_it_was_shown_so() -> None:
    """The time stays while state and code do, also over a restart, and no word changes by time alone."""
    labels = Labels(state="needs-operator", code="gpu.xid.79")
    first = status_of(labels, None, decided(Action.PAGE), HealthStatus(), NOW)
    assert first.since == "2026-11-21T12:00:00Z"
    assert status_of(labels, None, decided(Action.PAGE), first, NOW + timedelta(days=1)) == first
    other = status_of(Labels(state="held", code="gpu.xid.79"), None, None, first, NOW + timedelta(days=1))
    assert (other.since, other.waits_for) == ("2026-11-22T12:00:00Z", "")


def test_a_node_that_is_well_waits_for_nothing_and_is_quiet() -> None:
    """So is one of which nothing is known to be wrong; with a code open it is not."""
    quiet = status_of(Labels(state="ok"), None, decided(Action.HOLD, Refusal.BUDGET), HealthStatus(), NOW)
    assert (quiet.is_quiet, quiet.waits_for, HealthStatus().text) == (True, "", "nothing")
    assert not HealthStatus(code="gpu.xid.79").is_quiet


def test_of_a_quiet_node_no_object_is_made_and_a_change_is_news() -> None:
    """One that is there is brought up to date, no sooner than labels are."""
    showing, quiet, held = WrittenStatus(), HealthStatus(state="ok"), HealthStatus(state="held", code="x")
    assert showing.is_due(0.0)
    assert showing.read(None) == HealthStatus()
    assert (showing.is_news(quiet), showing.is_news(held)) == (False, True)
    showing.written(held, 0.0)
    assert (showing.is_due(GAP_S - 1), showing.is_due(GAP_S)) == (False, True)
    assert (showing.is_news(held), showing.is_news(quiet)) == (False, True)
    there = NodeHealth(name="n1", uid="u", version="1", status=None, record={"remediationID": "k3v9"})
    assert showing.read(there) == HealthStatus()
    assert showing.is_news(quiet)


def test_what_was_not_acknowledged_is_tried_again_ever_less_often() -> None:
    """From seconds up to minutes; an answer ends that."""
    showing = WrittenStatus()
    pauses = [showing.failed(0.0, random=0.5) for _ in range(12)]
    assert (pauses[0], pauses[1], pauses[-1]) == (RETRY_S, 2 * RETRY_S, LONGEST_RETRY_S)
    assert not showing.is_due(LONGEST_RETRY_S - 1)
    showing.written(HealthStatus(), 0.0)
    assert showing.failed(0.0, random=0.5) == RETRY_S
