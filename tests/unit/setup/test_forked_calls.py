"""Questions that may hang, asked in forks: each answer comes, or the reason why none did, within the deadline.

A process with several threads is not forked, and earlier tests may have left some: these run in processes of their own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from healthd.core.errors import BackendRefused, SourceError, SourceTimeout, SourceUnreadable
from healthd.setup.forked_calls import answer_apart, ask_apart
from tests.support.own_process import in_own_process

pytestmark = pytest.mark.process


ANSWERS_WITHIN_S = 120.0
"""Of what does answer, however busy the machine is."""


def asked(**questions: Callable[[], str]) -> dict[str, str | SourceError]:
    return ask_apart(questions, str, deadline_s=ANSWERS_WITHIN_S)


def raises(error: Exception) -> str:
    raise error


@in_own_process
def test_answers_come_by_their_names() -> None:
    """Each fork answers for itself; what it changes stays in it."""
    here: list[int] = []

    def changes() -> str:
        here.append(1)
        return "one"

    told = asked(a=changes, b=lambda: "x" * 300_000)
    assert told == {"a": "one", "b": "x" * 300_000}
    assert here == []


@in_own_process
def test_an_error_is_told_by_its_words() -> None:
    """healthd's own in its own words, any other as what it is: a defect, with its place."""
    told = asked(ours=lambda: raises(BackendRefused("no: as said")), other=lambda: raises(KeyError("what")))
    assert isinstance(told["ours"], SourceUnreadable)
    assert str(told["ours"]) == "no: as said"
    assert "it broke: KeyError('what')" in str(told["other"])
    assert "test_forked_calls.py" in str(told["other"])


@in_own_process
def test_who_dies_without_a_word_has_told_nothing() -> None:
    """A fork that is killed, or answers something else than was asked for, is unreadable and no answer."""

    def dies() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "not reached"

    told = asked(killed=dies)
    assert "exited without an answer" in str(told["killed"])
    strange = ask_apart({"n": lambda: 7}, str, deadline_s=ANSWERS_WITHIN_S)["n"]
    assert isinstance(strange, SourceUnreadable)


@in_own_process
def test_a_hanging_question_costs_its_deadline_once_and_hides_no_other(tmp_path: Path) -> None:
    """Eight that hang and one that answers: one deadline for all, each is killed, and no child is left."""
    pids = {name: tmp_path / name for name in "abcdefgh"}

    def hangs(own: Path) -> str:
        own.write_text(str(os.getpid()))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        return "late"

    began, deadline_s = time.monotonic(), 5.0
    hanging: dict[str, Callable[[], str]] = {name: partial(hangs, path) for name, path in pids.items()}
    told = ask_apart({**hanging, "fine": lambda: "yes"}, str, deadline_s=deadline_s)
    assert time.monotonic() - began < len(pids) * deadline_s, "each was waited for by itself"
    assert told["fine"] == "yes"
    assert {type(told[name]) for name in pids} == {SourceTimeout}
    assert str(told["a"]) == "no answer within 5 s"
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


@in_own_process
def test_one_question_raises_what_it_came_to() -> None:
    """The form for a single question."""
    assert answer_apart(lambda: (1, "x"), tuple[int, str], deadline_s=ANSWERS_WITHIN_S) == (1, "x")
    with pytest.raises(SourceUnreadable, match="as said"):
        answer_apart(lambda: raises(BackendRefused("as said")), str, deadline_s=ANSWERS_WITHIN_S)


def test_a_process_with_threads_is_not_forked() -> None:
    """Its other threads' locks would be held for ever in the fork, so it is refused, not tried."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pytest.raises(SourceUnreadable, match="several threads"):
            asked(a=lambda: "never")
    finally:
        stop.set()
        thread.join()
