"""The worker side of a probe: a process that answers one question after the other until its parent is gone.

Run by path, ``python -S -P worker.py MODULE IDLE_S ARGUMENT…``, with the parent's module path in PYTHONPATH. MODULE has
a function ``family(arguments)`` that returns a :class:`Family`. A thread listens to the parent, so that the worker ends
at once when its parent does, even while a question hangs in a library. This module knows nothing of the questions.
"""

from __future__ import annotations

import _thread
import os
import sys
from _queue import Empty, SimpleQueue

from healthd.core.errors import SourceError
from healthd.probe import wire

TYPE_CHECKING = False  # the name that type checkers know; a worker does without the module typing, which takes 2 MB
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn, Protocol

    class Family(Protocol):
        """The questions that a worker can answer."""

        @property
        def worn(self) -> bool:
            """Whether this process must end after the answer, because only a fresh one can answer again."""

        def answer(self, op: str, args: Mapping[str, Any]) -> Any:
            """A JSON-like value. Raises SourceError."""


def main(argv: Sequence[str]) -> NoReturn:
    """Serve until the parent ends, the family is worn, or no question came for IDLE_S seconds (0: for ever)."""
    module, idle_s, *arguments = argv
    be_expendable()
    replies = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not write to the pipe of the answers
    questions: SimpleQueue[bytes] = SimpleQueue()
    _thread.start_new_thread(_listen, (questions,))
    __import__(module)
    family: Family = sys.modules[module].family(arguments)
    _send(replies, {"ready": True})
    while True:
        try:
            line = questions.get(timeout=float(idle_s) or None)
        except Empty:
            break
        answer = _answer(family, line)
        if family.worn:
            _send(replies, {**answer, "end": True})
            break
        _send(replies, answer)
    os._exit(0)


def be_expendable(path: str = "/proc/self/oom_score_adj") -> None:
    """Give up the daemon's protection from the OOM killer: no job must be killed in the place of a library that leaks.

    Every process may raise its own value (proc_pid_oom_score_adj(5)); a positive one stays as it is.
    """
    try:
        with open(path, encoding="ascii") as file:
            protected = int(file.read()) < 0
        if protected:
            with open(path, "w", encoding="ascii") as file:
                file.write("0\n")
    except OSError:  # without /proc there is work all the same
        return


def _listen(questions: SimpleQueue[bytes]) -> NoReturn:
    """Queue each line of standard input; end the process at its end, because the parent is gone."""
    rest = b""
    while chunk := os.read(0, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            questions.put(line)
    os._exit(0)


def _answer(family: Family, line: bytes) -> dict[str, Any]:
    """The answer to one line. Anything but a SourceError ends the process; the parent reads its standard error."""
    question = wire.decode(line) or {}
    number, op = int(question.get("id", 0)), str(question.get("op", ""))
    try:
        return {"id": number, "value": family.answer(op, question.get("args", {}))}
    except SourceError as error:
        return wire.failed(number, error)


def _send(replies: int, message: Mapping[str, Any]) -> None:
    data = wire.encode(message)
    while data:
        data = data[os.write(replies, data) :]


if __name__ == "__main__":
    main(sys.argv[1:])
