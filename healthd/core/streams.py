"""The standard streams of a command, for the hot path and for every other verb: what a closed or full one does.

It imports next to nothing, because each command loads it.
"""

from __future__ import annotations

import os
import sys

FAILED = 70
"""The exit code for a result that could not be written, where it would be 0 (``api.exit_codes``, EX_SOFTWARE)."""


def open_streams() -> None:
    """Open the streams that the caller closed: else the next socket or database gets the number of standard output, and
    the text that is printed there. Text is UTF-8, whatever the locale."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = open(os.devnull, "r+")  # noqa: SIM115 - as long as the process
            os.set_inheritable(nowhere.fileno(), True)  # for the programs that healthd starts
            setattr(sys, name, nowhere)
        elif name != "stdin":
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def print_answer(code: int, out: str, err: str) -> int:
    """Print an answer, and return its exit code. A reader that went away (``| head``) is no error; a full disk is."""
    error = written("stdout", out)
    if error is not None and not isinstance(error, BrokenPipeError):
        code, err = code or FAILED, f"{err}healthd: {unwritten(error)}\n"
    written("stderr", err)
    return code


def written(name: str, text: str) -> OSError | None:
    """Write to ``stdout`` or ``stderr``. Returns the error of a stream that does not take it, and opens nowhere in its
    place: at its end Python would try again, and exit with 120."""
    stream = getattr(sys, name)
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
        return error
    return None


def unwritten(error: OSError) -> str:
    """The message about a result that standard output did not take."""
    return f"the result cannot be written to standard output: {error.strerror}; free its disk, or name another file"
