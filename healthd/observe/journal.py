"""Judges lines of the journal by the site's rules, and the last kernel lines of the boot before this one.

healthd follows the journal only where a check's settings ask for it (``journal_needles``): it costs a child process.
"""

from __future__ import annotations

import threading
from datetime import datetime

from healthd.core.errors import SourceError
from healthd.core.model import Event
from healthd.judge.history import UNKNOWN_BOOT
from healthd.observe.checkup import Checkup
from healthd.sources.journal import JournalBatch, JournalLog, WantedLines, read_journal, read_past_kernel
from healthd.state.monitor import Monitor

_POLL_S = 15.0
_FIRST_S = 1.0  # a quiet journal counts as read after this


def wanted(checkup: Checkup) -> WantedLines | None:
    """The lines of the journal that the checks want, or None."""
    settings = checkup.of_the_journal().values()
    needles = {needle for each in settings for needle in each.journal_needles}
    units = {unit for each in settings for unit in each.journal_units}
    return WantedLines(needles=tuple(sorted(needles)), units=frozenset(units)) if needles else None


def read_once(checkup: Checkup, monitor: Monitor) -> None:
    """Judge the lines of the journal after its cursor. If they cannot be read, their checks are unknown."""
    lines = wanted(checkup)
    if lines is None:
        return
    try:
        batch = read_journal(lines, cursor=monitor.journal_cursor)
    except SourceError as error:
        problem = str(error)
        checkup.journal_problem = lambda: problem
        return
    checkup.journal_problem = lambda: ""
    checkup.judge_journal(batch.records, batch.cursor)


def judge_past_boot(checkup: Checkup, monitor: Monitor, boot_id: str, now: datetime) -> None:
    """Judge the kernel lines after the cursor and before this boot: the last ones of a machine that went down.

    Call it while the monitor is still in the old boot: the new boot then ends at once what a reboot ends, and the rest
    stays. The audit trail records a read that fails, so the loss is known.
    """
    known, since = monitor.boot_id, monitor.cursor_at
    if since is None or known in ("", UNKNOWN_BOOT) or boot_id in (known, UNKNOWN_BOOT):
        return
    try:
        past = read_past_kernel(since, boot_id)
        records, text = past.records, _judged_text(past, since)
    except SourceError as error:
        records, text = (), f"cannot read the kernel log from before this boot: {error}"
    monitor.record(Event(at=now, kind="daemon", text=text))
    if records:
        checkup.judge_kernel(records, None, past=True)


def _judged_text(past: JournalBatch, since: datetime) -> str:
    """The line of the audit trail about the kernel lines before this boot."""
    text = f"judged {len(past.records)} kernel lines from before this boot, after {since:%H:%M:%S}"
    if past.unread:
        text = f"{text}; there may have been more, because journalctl did not read all of the journal: {past.unread}"
    if not past.cut:
        return text
    first = (
        f"the first of these is from {past.records[0].time:%H:%M:%S}" if past.records else "all lines read are newer"
    )
    return f"{text}; older lines are not judged, because the journal has more than healthd reads at once: {first}"


def open_journal(checkup: Checkup, monitor: Monitor) -> JournalLog | None:
    """The follower of the journal, from the cursor on; None where no check wants it."""
    lines = wanted(checkup)
    if lines is None:
        return None
    log = JournalLog(lines, cursor=monitor.journal_cursor)
    checkup.journal_problem = log.problem
    return log


def follow(log: JournalLog, checkup: Checkup, stop: threading.Event) -> None:
    """Judge each batch as it arrives, until ``stop`` is set."""
    timeout_s = _FIRST_S
    while not stop.is_set():
        batch = log.read_batch(timeout_s)
        timeout_s = _POLL_S
        if batch.cursor:
            checkup.judge_journal(batch.records, batch.cursor)
