"""The one place that prints and ends a command. stdout is the result, stderr is talk."""

from __future__ import annotations

import sys

from healthd.api.wire import Answer
from healthd.errors import ConfigError, HealthdError, UsageError

EXIT_USAGE = 64  # sysexits.h EX_USAGE
EXIT_CONFIG = 78  # sysexits.h EX_CONFIG
EXIT_FAILED = 70  # sysexits.h EX_SOFTWARE


def deliver(answer: Answer) -> int:
    """Print an answer and return its exit code. A reader that went away (``| head``) is not an error."""
    try:
        sys.stdout.write(answer.out)
        sys.stdout.flush()
        sys.stderr.write(answer.err)
        sys.stderr.flush()
    except BrokenPipeError:
        sys.stdout = None  # nothing more can be written; keeps the exit silent
    return answer.code


def progress(text: str) -> None:
    """A line of long work, as it happens; the result comes with the answer."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def failure(error: HealthdError) -> Answer:
    """How an error reads, and which exit code it has."""
    match error:
        case UsageError():
            return Answer(code=EXIT_USAGE, err=f"{error}\n")
        case ConfigError():
            listed = "".join(f"healthd: {problem}\n" for problem in error.problems)
            return Answer(code=EXIT_CONFIG, err=listed)
        case _:
            return Answer(code=EXIT_FAILED, err=f"healthd: {error}\n")
