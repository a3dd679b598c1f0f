"""The ledger for operators and programs: history, report and support case, as text, markdown and data. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import asdict

from healthd.core.json_documents import json_document
from healthd.ledger.entries import UNKNOWN_MACHINE, EntryKind, GpuSighting, LedgerContents, LedgerEntry, SpanState
from healthd.ledger.failure_rate import CONFIDENCE, FailureRate
from healthd.ledger.report import FleetReport, Offender
from healthd.observe.text_lines import TextLine, aligned, joined

REPORT_SCHEMA, HISTORY_SCHEMA = "healthd.fleet-report/v1", "healthd.fleet-history/v1"
_STATES = {
    SpanState.SERVING: "serving (exposure)",
    SpanState.FAULTY: "in service with a critical fault",
    SpanState.UNKNOWN: "in service, a check cannot tell",
    SpanState.OUT: "out of service",
    SpanState.SILENT: "without a report",
}


# ---------------------------------------------------------------------------------------------------------------------
# history


def selected(
    contents: LedgerContents, *, node: str = "", gpu: str = "", code: str = "", since: datetime | None = None
) -> tuple[LedgerEntry, ...]:
    """The entries of this node, GPU (serial number or UUID) and code, from ``since`` on; "" and None: of all."""
    names = names_of(contents.gpus, gpu)
    return tuple(
        each
        for each in contents.entries
        if (not node or each.node == node)
        and (not gpu or {each.gpu, each.serial} & names)
        and (not code or each.code == code)
        and (since is None or each.at >= since)
    )


def names_of(sightings: Iterable[GpuSighting], gpu: str) -> set[str]:
    """Every name of a GPU: its serial number and its UUID, whichever was given."""
    pairs = [{each.gpu, each.serial} for each in sightings if gpu in (each.gpu, each.serial)]
    return {gpu}.union(*pairs) - {""}


def history_text(entries: Sequence[LedgerEntry], places: Sequence[GpuSighting], offenders: Sequence[Offender]) -> str:
    """A line for each entry, oldest first. ``places``: where the GPU that was asked for was seen; ``offenders``: what
    it, or the node, was found to be."""
    lines = [_offender_line(each) for each in offenders]
    lines += [
        f"GPU {each.serial or each.gpu} in {each.node} {each.instance} from {_minute(each.first)} to"
        f" {_minute(each.last)}"
        for each in places
    ]
    rows = [_history_row(each) for each in entries]
    return joined(map(TextLine, [*lines, *(aligned(rows) or ["the ledger has nothing of that"])]))


def history_json(entries: Sequence[LedgerEntry], places: Sequence[GpuSighting], offenders: Sequence[Offender]) -> str:
    """The same as data."""
    return json_document(
        {
            "schema": HISTORY_SCHEMA,
            "entries": [entry_data(each) for each in entries],
            "places": [_plain(asdict(each)) for each in places],
            "offenders": [asdict(each) for each in offenders],
        }
    )


def entry_data(entry: LedgerEntry) -> dict[str, Any]:
    """One entry as data."""
    return _plain(asdict(entry))


def _history_row(entry: LedgerEntry) -> tuple[str, ...]:
    match entry.kind:
        case EntryKind.FAULT:
            end = f"until {_minute(entry.until)}" if entry.until is not None else "open"
            what = f"{entry.component} {entry.serial and f'serial {entry.serial}'}".strip()
        case _:
            end = entry.outcome or ("" if entry.kind is EntryKind.RETURN else "outcome not known")
            what = entry.act
    return (_minute(entry.at), entry.node, entry.kind.value, entry.code, what, end, entry.instance, entry.evidence)


# ---------------------------------------------------------------------------------------------------------------------
# report


def report_data(report: FleetReport) -> dict[str, Any]:
    """The report as data: hours are numbers, times ISO 8601, what is not known null."""
    rates = ("by_type", "by_rack", "by_code")
    return {
        "schema": REPORT_SCHEMA,
        "since": report.since.isoformat(),
        "until": report.until.isoformat(),
        "watched_hours": report.watched_h,
        "nodes": report.nodes,
        "node_hours": {state.value: hours for state, hours in report.hours.items()},
        "faults_outside_exposure": report.unseen,
        "confidence": CONFIDENCE,
        "total": _rate_data(report.total),
        **{name: [_rate_data(each) for each in getattr(report, name)] for name in rates},
        "lost": [asdict(each) for each in report.lost],
        "repairs": [asdict(each) for each in report.repairs],
        "replacements": [_plain(asdict(each)) for each in report.replaced],
        "offenders": [asdict(each) for each in report.offenders],
    }


def report_json(report: FleetReport) -> str:
    """One JSON object, two-space indented."""
    return json_document(report_data(report))


def report_text(report: FleetReport) -> str:
    """The report as tables for a terminal."""
    return joined(map(TextLine, _sections(report, aligned, "{}".format)))


def report_markdown(report: FleetReport) -> str:
    """The report as markdown."""
    return joined(map(TextLine, _sections(report, _table, "## {}".format)))


def _sections(report: FleetReport, table: Any, title: Any) -> Iterator[str]:
    length_h = (report.until - report.since).total_seconds() / 3600.0
    yield title(f"Fleet from {_minute(report.since)} to {_minute(report.until)} UTC")
    yield ""
    yield (
        f"{report.nodes} nodes; watched {_h(report.watched_h)} of {_h(length_h)} h. {report.total.failures} critical"
        f" faults in {_h(report.total.exposure_h)} node-hours of exposure; {report.unseen} more began while nothing was"
        " watched, or on a node that was out, and count in no rate."
    )
    hours = [("STATE", "NODE-HOURS"), *((_STATES[state], _h(report.hours[state])) for state in _STATES)]
    yield from ("", *table(hours))
    for name, rates in (("all", (report.total,)), ("type", report.by_type), ("rack", report.by_rack)):
        yield from _part(title(f"MTBF by {name}"), table, _rate_rows(rates))
    yield from _part(title("MTBF by code"), table, _rate_rows(report.by_code))
    lost: list[tuple[str, ...]] = [
        ("CAUSE", "NODE-HOURS", "NODES"),
        *((each.cause, _h(each.hours), str(each.nodes)) for each in report.lost),
    ]
    yield from _part(title("Node-hours lost"), table, lost)
    repairs: list[tuple[str, ...]] = [("REPAIR", "CODE", "BEGUN", "HELPED", "FAILED")]
    repairs += [(each.act, each.code, *map(str, (each.tried, each.helped, each.failed))) for each in report.repairs]
    yield from _part(title("Repairs"), table, repairs)
    replaced: list[tuple[str, ...]] = [("NODE", "AT", "CODE", "INSTANCE", "OUTCOME", "NODE-HOURS")]
    replaced += [
        (each.node, _minute(each.at), each.code, each.instance, each.outcome or "not known", _h(each.lost_h))
        for each in report.replaced
    ]
    yield from _part(title("Replacements"), table, replaced)
    offenders: list[tuple[str, ...]] = [("KIND", "NAME", "FAULTS", "EXPECTED", "", "CODES", "NODES")]
    offenders += [
        (
            each.kind,
            each.name,
            str(each.failures),
            f"{each.expected:.2f}",
            "LEMON" if each.is_lemon else "",
            " ".join(each.codes),
            " ".join(each.nodes),
        )
        for each in report.offenders
    ]
    yield from _part(title("Repeat offenders"), table, offenders)


def _part(title: str, table: Any, rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield from ("", title, "", *(table(rows) if len(rows) > 1 else ["none"]))


def _rate_rows(rates: Iterable[FailureRate]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "FAULTS", "EXPOSURE H", "MTBF H", f"{CONFIDENCE:.0%} INTERVAL")]
    for each in rates:
        ends = f"{_h(each.low_h)} to {_h(each.high_h)}" if each.high_h is not None else f"at least {_h(each.low_h)}"
        rows.append((each.key, str(each.failures), _h(each.exposure_h), _h(each.mtbf_h), ends))
    return rows


def _rate_data(rate: FailureRate) -> dict[str, Any]:
    return {
        "key": rate.key,
        "faults": rate.failures,
        "exposure_hours": rate.exposure_h,
        "mtbf_hours": rate.mtbf_h,
        "low_hours": rate.low_h,
        "high_hours": rate.high_h,
    }


# ---------------------------------------------------------------------------------------------------------------------
# support case


def case_text(node: str, contents: LedgerContents, since: datetime) -> str:
    """The text of a support case about a node: its machine, its GPUs, what failed when, and what was tried."""
    entries = selected(contents, node=node, since=since)
    faults = [each for each in entries if each.kind is EntryKind.FAULT]
    latest = entries[-1]
    places = [each for each in contents.gpus if each.node == node and each.instance in ("", latest.instance)]
    lines = [
        f"Node {node}: {len(faults)} faults since {_minute(since)} UTC",
        "",
        f"Instance: {_or_not(latest.instance)}   Type: {_or_not(latest.instance_type)}   Rack: {_or_not(latest.rack)}",
        *_place_lines(contents, node, latest.instance),
        f"Image: {_or_not(latest.image)}   Driver: {_or_not(latest.driver)}",
        "",
        "GPUs of this machine (UUID, board serial number):",
        *_gpu_lines(places),
        "",
        "Faults (times in UTC):",
        *(_indented(_fault_rows(faults))),
        "",
        "What was tried:",
        *(_indented([_history_row(each)[:-1] for each in entries if each.kind is not EntryKind.FAULT])),
        "",
        "Evidence that was uploaded before a replacement:",
        *(_indented([(_minute(each.at), each.instance, each.evidence) for each in entries if each.evidence])),
    ]  # fmt: skip
    return joined(map(TextLine, lines))


def _place_lines(contents: LedgerContents, node: str, instance: str) -> Iterator[str]:
    """Where EC2 says that the machine stands, if it is still the one behind the name."""
    machine = contents.machines.get(node, UNKNOWN_MACHINE)
    if machine.network and machine.instance == instance:
        yield f"EC2 network nodes: {' / '.join(machine.network)}   Capacity Block: {machine.capacity_block or 'none'}"


def _gpu_lines(places: Sequence[GpuSighting]) -> list[str]:
    lines = [f"  {each.gpu}  {each.serial or 'serial not known'}" for each in places]
    return lines or ["  not known: see [ledger] inventory_url"]


def _fault_rows(faults: Iterable[LedgerEntry]) -> list[tuple[str, ...]]:
    return [
        (
            f"{each.at:%Y-%m-%d %H:%M:%S}",
            each.code,
            each.component,
            f"GPU {each.gpu} serial {each.serial or 'not known'}" if each.gpu else "",
            each.instance,
        )
        for each in faults
    ]


def _indented(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows) or ["nothing"]]


# ---------------------------------------------------------------------------------------------------------------------


def _offender_line(each: Offender) -> str:
    verdict = "LEMON" if each.is_lemon else "repeat offender"
    places = f" in {', '.join(each.nodes)}" if each.kind == "gpu" else ""
    return f"{verdict}: {each.kind} {each.name}, {each.failures} critical faults{places}, {each.expected:.2f} expected"


def _or_not(text: str) -> str:
    return text or "not known"


def _minute(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M}" if at is not None else ""


def _h(hours: float | None) -> str:
    if hours is None:
        return "not known"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.1f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest)]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
