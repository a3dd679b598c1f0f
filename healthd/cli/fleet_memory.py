"""``healthd fleet history``, ``healthd fleet report`` and ``healthd remediation NODE``: what the fleet's ledger holds.

They read the controller's file on the head node, or in the pod that leads; they need no daemon, and change nothing.
"""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from healthd.api.wire import Reply
from healthd.cli.settings import loaded
from healthd.core.errors import StoreError, UsageError
from healthd.ledger.database import LEDGER, Ledger
from healthd.ledger.entries import LedgerContents
from healthd.ledger.report import FleetReport, Offender, fleet_report
from healthd.ledger.text import (
    case_text,
    history_json,
    history_text,
    names_of,
    report_json,
    report_markdown,
    report_text,
    selected,
)

WORDS = ("history", "report")
"""The words of ``healthd fleet`` that are no node."""
_DEFAULT = timedelta(days=30)


def answer(options: Namespace) -> Reply:
    """Exit 0: answered; 1: the ledger has nothing of what was asked for; 2: there is no ledger that can be read."""
    path = Path(loaded(options).config.controller.state_dir) / LEDGER
    now = datetime.now(UTC)
    try:
        contents = _contents(path, now)
    except StoreError as error:
        return Reply(code=2, err=f"healthd: {error}\n")
    if options.verb == "case":
        return _remediation(options, contents, now)
    return _report(options, contents, now) if options.node == "report" else _history(options, contents, now)


def _contents(path: Path, now: datetime) -> LedgerContents:
    if not path.exists():
        raise StoreError(f"{path}: no ledger here; `healthd controller` keeps it on the head node, or in its pod")
    ledger = Ledger(path, now=now, reads_only=True)
    try:
        return ledger.contents()
    finally:
        ledger.close()


def _report(options: Namespace, contents: LedgerContents, now: datetime) -> Reply:
    if options.of_node or options.gpu or options.code:
        raise UsageError("healthd fleet report: --node, --gpu and --code are of `healthd fleet history`")
    report = fleet_report(contents, now - (options.since or _DEFAULT), now)
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


def _remediation(options: Namespace, contents: LedgerContents, now: datetime) -> Reply:
    since = now - (options.since or _DEFAULT)
    if not selected(contents, node=options.node, since=since):
        return Reply(
            code=1, err=f"healthd: the ledger has nothing of {options.node} in that time; try a longer --since\n"
        )
    return Reply(code=0, out=case_text(options.node, contents, since))


def _first(contents: LedgerContents, now: datetime) -> datetime:
    """When the ledger begins."""
    return min((each.start for each in contents.watched), default=now)
