"""The kernel lines that healthd's own GPU reset causes: it takes every NVLink down, and the switches log it. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta

from healthd.core.model import Finding, Outcome

_OF_LINKS = re.compile(r"nvswitch\..*|gpu\.nvlink\..*|gpu\.xid\.(74|14[4-9]|150)")
_LATE = timedelta(seconds=2)
"""By how much the time of a record, which counts from the boot, may differ from that of this process."""
_KEPT = 4


class OwnResets:
    """The resets that healthd made or is making, by the wall clock."""

    def __init__(self) -> None:
        self._spans: list[tuple[datetime, datetime | None]] = []

    def begin(self, at: datetime) -> None:
        """Note the beginning of a reset: findings about links from now on are its own."""
        self._spans = [*self._spans, (at, None)][-_KEPT:]

    def end(self, at: datetime) -> None:
        """Note the end of the reset that began last, whatever its result."""
        self._spans = [(began, ended or at) for began, ended in self._spans]

    def without(self, outcome: Outcome) -> tuple[Outcome, int]:
        """The outcome without the findings of a reset, and their number. XID 79 and the like remain: a reset that loses
        a GPU is news."""
        findings = tuple(finding for finding in outcome.result.findings if not self._is_own(finding))
        dropped = len(outcome.result.findings) - len(findings)
        if not dropped:
            return outcome, 0
        return replace(outcome, result=outcome.result.with_findings(findings)), dropped

    def _is_own(self, finding: Finding) -> bool:
        if finding.time is None or not _OF_LINKS.fullmatch(finding.code):
            return False
        at = finding.time
        return any(began - _LATE <= at and (ended is None or at <= ended + _LATE) for began, ended in self._spans)
