"""What the tests of checks fold with: results of one check, look after look, through the real history.

Values only; nothing here asserts anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from healthd.core.check import Learned, discover
from healthd.core.model import Diagnosis, Outcome, Result
from healthd.judge.diagnose import diagnose
from healthd.judge.history import History, observe, relearn
from tests.support.judgement import at


def open_codes(check: str, results: Iterable[Result], *, every_s: float = 60.0) -> list[set[str]]:
    """The codes of the faults that are open after each look, the looks being so many seconds apart."""
    return [{fault.code for fault in each.faults.values()} for each in _histories(check, results, every_s)]


def codes_after_relearn(check: str, before: Iterable[Result], result: Result) -> set[str]:
    """The codes that are open after one more look, before which ``healthd relearn`` was run."""
    *_, history = _histories(check, before, 60.0)
    limits = discover()[check].limits
    history = relearn(history, [limit.reading for limit in limits if isinstance(limit, Learned)])
    outcome = Outcome(check=check, result=result, at=at(3600.0), duration_s=0.01)
    history, _ = observe(history, outcome, limits, outcome.at)
    return {fault.code for fault in history.faults.values()}


def diagnoses(check: str, results: Iterable[Result], *, every_s: float = 60.0) -> tuple[Diagnosis, ...]:
    """The diagnoses after the last look."""
    *_, last = _histories(check, results, every_s)
    return diagnose(last)


def _histories(check: str, results: Iterable[Result], every_s: float) -> Iterator[History]:
    limits, history = discover()[check].limits, History(boot_id="boot-1")
    for number, result in enumerate(results):
        outcome = Outcome(check=check, result=result, at=at(number * every_s), duration_s=0.01)
        history, _ = observe(history, outcome, limits, outcome.at)
        yield history
