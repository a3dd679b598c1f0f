"""Runs questions that may hang, each in a fork of this process, all at once, with a firm deadline.

Commands must return whatever the machine does: a question may read a file system whose server is gone, and a process
that does so cannot be ended, not even by its own exit. A fork that does not answer is killed; one that does not die is
left alone and named. The process must have one thread: a fork has no others, and would wait for ever for their locks.
The daemon has many threads, and uses ``healthd.probe`` instead.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct, field

from healthd.core.errors import HealthdError, SourceError, SourceTimeout, SourceUnreadable
from healthd.probe.child import REAP_S, kill_group

T = TypeVar("T")
_POLL_S = 0.02


def ask_apart(questions: Mapping[str, Callable[[], T]], kind: Any, *, deadline_s: float) -> dict[str, T | SourceError]:
    """Each question's answer, of the type ``kind``, which msgspec can write; or why there is none, by its name.

    SourceTimeout: not within ``deadline_s``. SourceUnreadable: it raised; a HealthdError by its own words. Takes at
    most ``deadline_s`` plus 0.3 s. Raises SourceUnreadable where this process has several threads, or cannot fork.
    """
    if threading.active_count() > 1:
        raise SourceUnreadable("a process with several threads cannot be forked; ask by healthd.probe")
    until_s = time.monotonic() + deadline_s
    asked: dict[str, _Fork] = {}
    try:
        for name, question in questions.items():
            asked[name] = _asked(question)
        _collect(asked.values(), until_s)
    finally:  # also where the operator interrupts the command
        for fork in asked.values():
            if not fork.ended:
                kill_group(fork.pid)
        _reap(asked.values(), time.monotonic() + REAP_S)
    return {name: _told(fork, kind, deadline_s) for name, fork in asked.items()}


def answer_apart(question: Callable[[], T], kind: Any, *, deadline_s: float) -> T:
    """One question. Raises the SourceError that :func:`ask_apart` would give for it."""
    answer = ask_apart({"": question}, kind, deadline_s=deadline_s)[""]
    if isinstance(answer, SourceError):
        raise answer
    return answer


# ---------------------------------------------------------------------------------------------------------------------


class _Fork(Struct, kw_only=True):
    """``ended``: its pipe is closed. ``gone``: it was reaped."""

    pid: int
    pipe: int
    output: bytearray = field(default_factory=bytearray)
    ended: bool = False
    gone: bool = False


def _asked(question: Callable[[], Any]) -> _Fork:
    sys.stdout.flush()
    sys.stderr.flush()
    reads, writes = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(reads)
        os.close(writes)
        raise SourceUnreadable(f"no process can be started: {error.strerror}") from error
    if pid == 0:
        _answer(question, writes)
    os.close(writes)
    return _Fork(pid=pid, pipe=reads)


def _answer(question: Callable[[], Any], pipe: int) -> NoReturn:
    """The fork's whole life. Nothing leaves it but by its pipe: it must never return into what forked it."""
    try:
        os.setsid()
        _let_go_of_the_terminal()
        try:
            output = {"answer": question()}
        except HealthdError as error:
            output = {"problem": str(error)}
        except Exception as error:  # noqa: BLE001  the process that asked reports it
            output = {"problem": f"it broke: {error!r}: {' '.join(traceback.format_exc(limit=-1).split())}"}
        with os.fdopen(pipe, "wb") as stream:
            stream.write(msgspec.json.encode(output))
    finally:
        os._exit(0)


def _let_go_of_the_terminal() -> None:
    """Close the standard streams: a reader of the command's output would wait for a fork that never dies."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


def _collect(forks: Iterable[_Fork], until_s: float) -> None:
    poller, open_pipes = select.poll(), {fork.pipe: fork for fork in forks}
    for pipe in open_pipes:
        poller.register(pipe, select.POLLIN)
    while open_pipes and (left_s := until_s - time.monotonic()) > 0:
        for pipe, _ in poller.poll(left_s * 1000):
            chunk = os.read(pipe, 65536)
            open_pipes[pipe].output += chunk
            if not chunk:
                poller.unregister(pipe)
                open_pipes.pop(pipe).ended = True


def _reap(forks: Iterable[_Fork], until_s: float) -> None:
    """Reap the dead forks, and wait for none beyond ``until_s``."""
    left = list(forks)
    while left:
        for fork in left:
            fork.gone = os.waitpid(fork.pid, os.WNOHANG)[0] != 0
        left = [fork for fork in left if not fork.gone]
        if time.monotonic() >= until_s:
            break
        if left:
            time.sleep(_POLL_S)
    for fork in forks:
        os.close(fork.pipe)


def _told(fork: _Fork, kind: Any, deadline_s: float) -> Any:
    if not fork.ended:
        left = "" if fork.gone else f"; process {fork.pid} cannot be ended (uninterruptible sleep) and was left alone"
        return SourceTimeout(f"no answer within {deadline_s:g} s{left}")
    try:
        reply = msgspec.json.decode(bytes(fork.output))
        if "problem" in reply:
            return SourceUnreadable(reply["problem"])
        return msgspec.convert(reply["answer"], kind)
    except (msgspec.MsgspecError, KeyError) as error:
        return SourceUnreadable(f"the process exited without an answer: {error}")
