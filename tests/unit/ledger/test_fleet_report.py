"""The report of a fleet from rows written by hand, hour by hour."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from healthd.ledger.entries import (
    EntryKind,
    GpuSighting,
    LedgerContents,
    LedgerEntry,
    NodeSpan,
    SpanState,
    WatchInterval,
)
from healthd.ledger.report import NOT_KNOWN, LostHours, fleet_report
from healthd.ledger.text import (
    case_text,
    history_json,
    history_text,
    report_json,
    report_markdown,
    report_text,
    selected,
)
from tests.support.work import steps_of

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


def fault(node: str, hours: float, code: str = "gpu.xid.79", *, serial: str = "", critical: bool = True) -> LedgerEntry:
    gpu = f"GPU-{serial}" if serial else ""
    return LedgerEntry(
        kind=EntryKind.FAULT, node=node, at=at(hours), code=code, critical=critical, gpu=gpu, serial=serial, rack="r1"
    )


def span(node: str, start: float, end: float | None, state: SpanState, cause: str = "") -> NodeSpan:
    until = None if end is None else at(end)
    return NodeSpan(node=node, start=at(start), until=until, state=state, cause=cause, instance_type="p5", rack="r1")


CONTENTS = LedgerContents(
    watched=(WatchInterval(start=at(0), until=at(40)), WatchInterval(start=at(60), until=at(100))),
    spans=(
        span("n1", 0, 10, SpanState.SERVING),
        span("n1", 10, 20, SpanState.OUT, "gpu.xid.79"),
        span("n1", 20, None, SpanState.SERVING),
        span("n2", 0, 30, SpanState.SERVING),
        span("n2", 30, 70, SpanState.SILENT),
        span("n2", 70, 90, SpanState.SERVING),
    ),
    entries=(
        fault("n1", 10, serial="16a"),
        fault("n1", 50, serial="16a"),  # no ledger watched
        fault("n2", 40),  # silent
        fault("n2", 80, "gpu.xid.95", serial="16a"),
        fault("n2", 81, "efa.slow", critical=False),
        LedgerEntry(kind=EntryKind.REPAIR, node="n1", at=at(11), act="reboot", code="gpu.xid.79", outcome="failed"),
        LedgerEntry(kind=EntryKind.REPLACEMENT, node="n1", at=at(12), act="replace", code="c", outcome="helped",
                    evidence="s3://site/n1/k1.tar.gz"),
        LedgerEntry(kind=EntryKind.REPLACEMENT, node="n9", at=at(12), act="replace", code="c"),
        LedgerEntry(kind=EntryKind.RETURN, node="n2", at=at(13), act="return", code="efa.slow"),
    ),
    gpus=(GpuSighting(gpu="GPU-16a", serial="16a", node="n1", instance="", first=at(0), last=at(90)),),
)  # fmt: skip


def test_exposure_is_what_was_served_and_watched() -> None:
    """n1: 10 + 20 + 40 hours; n2: 30 + 20. Faults in the gap and in silence count in no rate."""
    report = fleet_report(CONTENTS, T0, at(100))
    assert (report.watched_h, report.total.exposure_h, report.total.failures, report.unseen) == (80.0, 120.0, 2, 2)
    assert [(each.key, each.exposure_h) for each in report.by_rack] == [("r1", 120.0)]
    assert {each.key: each.failures for each in report.by_type} == {"p5": 0, NOT_KNOWN: 2}
    assert [(each.key, each.failures) for each in report.by_code] == [("gpu.xid.79", 1), ("gpu.xid.95", 1)]


def test_lost_hours_have_their_cause() -> None:
    """Ten hours out, and twenty of the forty silent ones, which were watched; without a cause that is said."""
    report = fleet_report(CONTENTS, T0, at(100))
    assert report.lost == (
        LostHours(cause=NOT_KNOWN, hours=20.0, nodes=1),
        LostHours(cause="gpu.xid.79", hours=10.0, nodes=1),
    )


def test_repairs_and_replacements_are_counted() -> None:
    """With what came of them, and the hours of the time out; none where that was not seen."""
    report = fleet_report(CONTENTS, T0, at(100))
    assert [(each.act, each.tried, each.helped, each.failed) for each in report.repairs] == [
        ("reboot", 1, 0, 1),
        ("replace", 2, 1, 0),
    ]
    assert [(each.node, each.lost_h) for each in report.replaced] == [("n1", 10.0), ("n9", None)]


def test_a_replacement_costs_the_whole_time_out() -> None:
    """Also where the cause changed meanwhile, as when the platform writes its own reason, or nobody watched an hour."""
    contents = LedgerContents(
        watched=(WatchInterval(start=at(0), until=at(6)), WatchInterval(start=at(7), until=at(100))),
        spans=(
            span("n1", 0, 2, SpanState.OUT, "before"),
            span("n1", 2, 3, SpanState.SERVING),
            span("n1", 3, 5, SpanState.OUT, "gpu.xid.79"),
            span("n1", 5, 6, SpanState.OUT, "slurm: Node failing"),
            span("n1", 7, 8, SpanState.SILENT, "no report"),
            span("n1", 8, None, SpanState.SERVING),
        ),
        entries=(LedgerEntry(kind=EntryKind.REPLACEMENT, node="n1", at=at(4), act="replace", code="gpu.xid.79"),),
    )
    (replaced,) = fleet_report(contents, T0, at(100)).replaced
    assert replaced.lost_h == 4.0


def test_a_report_of_twice_the_fleet_is_twice_the_work() -> None:
    """Beside each replacement are the spans of its own node."""

    def work(nodes: int) -> int:
        names = [f"n{number}" for number in range(nodes)]
        contents = LedgerContents(
            watched=CONTENTS.watched,
            spans=tuple(span(name, hour, hour + 4, SpanState.OUT, "c") for name in names for hour in (0, 5, 10)),
            entries=tuple(
                LedgerEntry(kind=EntryKind.REPLACEMENT, node=name, at=at(7), act="replace", code="c") for name in names
            ),
        )
        return steps_of(lambda: fleet_report(contents, T0, at(100)))

    assert work(200) < 2.2 * work(100)


def test_a_repeat_offender_is_a_lemon_only_where_chance_is_excluded() -> None:
    """Two faults of one GPU in two nodes are not enough; twelve of one among a hundred are."""
    (offender,) = fleet_report(CONTENTS, T0, at(100)).offenders
    assert (offender.name, offender.nodes, offender.is_lemon) == ("16a", ("n1", "n2"), False)
    many = LedgerContents(
        watched=(WatchInterval(start=T0, until=at(1000)),),
        spans=tuple(span(f"n{number}", 0, 1000, SpanState.SERVING) for number in range(100)),
        entries=tuple(fault("n7", 10 * number, serial="16z") for number in range(12)),
    )
    assert [(each.kind, each.name) for each in fleet_report(many, T0, at(1000)).offenders if each.is_lemon] == [
        ("node", "n7")
    ]


def test_a_gpu_that_left_the_fleet_years_ago_makes_none_of_today_a_lemon() -> None:
    """A fleet that scales has had many times the GPUs that it has: how often one of today fails is told by these."""
    here = [
        GpuSighting(gpu=f"GPU-{each}", serial=each, node="n1", instance="", first=at(0), last=at(90)) for each in "abcd"
    ]
    gone = [
        GpuSighting(gpu=f"GPU-{each}", serial=str(each), node="n1", instance="", first=at(-9000), last=at(-8000))
        for each in range(4000)
    ]
    entries = tuple(fault("n1", hours, serial=each) for each in "abcd" for hours in (1, 2, 3))
    contents = replace(CONTENTS, spans=(span("n1", 0, 40, SpanState.SERVING),), entries=entries, gpus=(*here, *gone))
    gpus = [each for each in fleet_report(contents, T0, at(100)).offenders if each.kind == "gpu"]
    assert [(each.failures, each.expected, each.is_lemon) for each in gpus] == [(3, 3.0, False)] * 4


def test_an_empty_ledger_has_no_rate() -> None:
    """And every form of the report is made."""
    report = fleet_report(LedgerContents(), T0, at(100))
    assert (report.total.mtbf_h, report.total.low_h, report.offenders) == (None, 0.0, ())
    assert "not known" in report_text(report)


@pytest.mark.parametrize("since", [0.0, 75.0])
def test_each_form_says_the_same(since: float) -> None:
    """Text, markdown and JSON, clipped to the time of the report."""
    report = fleet_report(CONTENTS, at(since), at(100))
    data = json.loads(report_json(report))
    assert data["total"]["exposure_hours"] == (120.0 if since == 0.0 else 40.0)
    assert "| gpu.xid.95 | 1 |" in report_markdown(report)
    assert "gpu.xid.95" in report_text(report)


def test_a_history_is_of_a_node_a_gpu_or_a_code() -> None:
    """A GPU by serial number or UUID, and in whatever node it was."""
    assert {each.node for each in selected(CONTENTS, gpu="GPU-16a")} == {"n1", "n2"}
    assert selected(CONTENTS, gpu="16a") == selected(CONTENTS, gpu="GPU-16a")
    assert len(selected(CONTENTS, node="n2", code="gpu.xid.95", since=at(79))) == 1
    entries = selected(CONTENTS, gpu="16a")
    offenders = fleet_report(CONTENTS, T0, at(100)).offenders
    text = history_text(entries, CONTENTS.gpus, offenders)
    assert text.startswith("repeat offender: gpu 16a, 2 critical faults in n1, n2")
    assert len(json.loads(history_json(entries, CONTENTS.gpus, offenders))["entries"]) == 3


def test_a_case_has_serials_times_and_what_was_tried() -> None:
    """And says what is not known."""
    text = case_text("n1", CONTENTS, T0)
    assert "GPU-16a  16a" in text
    assert "2026-01-01 10:00:00  gpu.xid.79" in text
    assert "reboot   failed" in text
    assert "2026-01-01 12:00    s3://site/n1/k1.tar.gz" in text
    assert "Evidence that was uploaded before a replacement:\n  nothing" in case_text("n2", CONTENTS, T0)
    assert "inventory_url" in case_text("n2", CONTENTS, T0)
