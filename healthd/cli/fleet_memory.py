"""``healthd fleet history`` and ``healthd fleet report``: the contents of the fleet's ledger.

They read the controller's file on the head node; they need no daemon, and change nothing.
"""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime, timedelta

from healthd.api.wire import Reply
from healthd.cli.settings import loaded
from healthd.core.errors import StoreError, UsageError
from healthd.ledger.database import kept_ledger
from healthd.ledger.entries import LedgerContents
from healthd.ledger.report import FleetReport, Offender, fleet_report
from healthd.ledger.text import (
    history_json,
    history_text,
    names_of,
    report_json,
    report_markdown,
    report_text,
    selected,
)

DEFAULT_SINCE = timedelta(days=30)
"""How far a report goes back."""


def answer(options: Namespace) -> Reply:
    """Exit 0: answered; 1: the ledger has nothing of what was asked for; 2: there is no ledger that can be read."""
    now = datetime.now(UTC)
    is_report = options.node == "report"
    try:
        contents = ledger_contents(options, now - (options.since or DEFAULT_SINCE) if is_report else None)
    except StoreError as error:
        return Reply(code=2, err=f"healthd: {error}\n")
    return _report(options, contents, now) if is_report else _history(options, contents, now)


def ledger_contents(options: Namespace, since: datetime | None = None) -> LedgerContents:
    """All that the ledger of this head node holds, or what a report from ``since`` on needs. Raises StoreError."""
    with kept_ledger(loaded(options, names=()).config.controller.state_dir) as ledger:
        return ledger.contents(since)


def _report(options: Namespace, contents: LedgerContents, now: datetime) -> Reply:
    if options.of_node or options.gpu or options.code:
        raise UsageError("healthd fleet report: --node, --gpu and --code are of `healthd fleet history`")
    report = fleet_report(contents, now - (options.since or DEFAULT_SINCE), now)
    if options.json:
        return Reply(code=0, out=report_json(report))
    return Reply(code=0, out=report_markdown(report) if options.markdown else report_text(report))


def _history(options: Namespace, contents: LedgerContents, now: datetime) -> Reply:
    if options.markdown:
        raise UsageError("healthd fleet history: --markdown is of `healthd fleet report`")
    since = now - options.since if options.since else None
    entries = selected(contents, node=options.of_node, gpu=options.gpu, code=options.code, since=since)
    names = names_of(contents.gpus, options.gpu) if options.gpu else set()
    places = [each for each in contents.gpus if {each.gpu, each.serial} & names]
    offenders = _offenders(options, fleet_report(contents, since or _first(contents, now), now), names)
    show = history_json if options.json else history_text
    return Reply(code=0 if entries or places else 1, out=show(entries, places, offenders))


def _offenders(options: Namespace, report: FleetReport, names: set[str]) -> list[Offender]:
    wanted = {options.of_node} if options.of_node else names
    return [each for each in report.offenders if each.name in wanted]


def _first(contents: LedgerContents, now: datetime) -> datetime:
    """When the ledger begins."""
    return min((each.start for each in contents.watched), default=now)
