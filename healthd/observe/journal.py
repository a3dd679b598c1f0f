"""The journal's way into judgement: rules on its lines, and the last words of the boot before this one.

It is followed only where a check's settings ask for it (``journal_needles``): it costs a child process.
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

_POLL_S = 10.0
_FIRST_S = 1.0  # a quiet journal counts as read after this


def wanted(checkup: Checkup) -> WantedLines | None:
    """What the checks want of the journal, or None."""
    settings = checkup.of_the_journal().values()
    needles = {needle for each in settings for needle in each.journal_needles}
    units = {unit for each in settings for unit in each.journal_units}
    return WantedLines(needles=tuple(sorted(needles)), units=frozenset(units)) if needles else None


def read_once(checkup: Checkup, monitor: Monitor) -> None:
    """Judge what the journal holds after what was judged before. What cannot be read makes its checks unknown."""
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
    """Judge what the kernel said after we last looked and before this boot: the last words of a machine that went down.

    To be called while the monitor is still in the old boot: what a reboot ends is then over at once, the rest stays.
    What cannot be read is said in the audit trail: the gap is known.
    """
    known, since = monitor.boot_id, monitor.cursor_at
    if since is None or known in ("", UNKNOWN_BOOT) or boot_id in (known, UNKNOWN_BOOT):
        return
    try:
        past = read_past_kernel(since, boot_id)
        records, text = past.records, _judged_text(past, since)
    except SourceError as error:
        records, text = (), f"the kernel's last words before this boot could not be read: {error}"
    monitor.record(Event(at=now, kind="daemon", text=text))
    if records:
        checkup.judge_kernel(records, None, past=True)


def _judged_text(past: JournalBatch, since: datetime) -> str:
    """What was judged of the time before this boot, for the audit trail."""
    text = f"{len(past.records)} kernel lines of the time before this boot, after {since:%H:%M:%S}, were judged"
    if not past.cut:
        return text
    first = (
        f"the first of these is of {past.records[0].time:%H:%M:%S}" if past.records else "all that was read is newer"
    )
    return f"{text}; older ones were left out, for the journal holds more than is read at once: {first}"


def open_journal(checkup: Checkup, monitor: Monitor) -> JournalLog | None:
    """The follower of the journal, where the last run left off; None where nobody wants it."""
    lines = wanted(checkup)
    if lines is None:
        return None
    log = JournalLog(lines, cursor=monitor.journal_cursor)
    checkup.journal_problem = log.problem
    return log


def follow(log: JournalLog, checkup: Checkup, stop: threading.Event) -> None:
    """Judge each batch as it comes, until told to stop."""
    timeout_s = _FIRST_S
    while not stop.is_set():
        batch = log.read_batch(timeout_s)
        timeout_s = _POLL_S
        if batch.cursor:
            checkup.judge_journal(batch.records, batch.cursor)
