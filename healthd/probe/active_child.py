"""Shared by the children of active tests: one JSON line as the answer, and the reason where there is none.

The answer is the only thing on standard output; output of libraries goes to standard error. The end of the process
frees everything that a child holds, so it ends without cleaning up: nothing may wait for a broken GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from healthd.probe.cuda_driver import NO_DEVICE, OUT_OF_MEMORY, CudaError, LibraryMissing

ANSWER, MISSING, BUSY, REFUSED = "answer", "missing", "busy", "refused"
"""The keys of the one line: the measurement; the missing software; the resource that others hold; the refusal of the
library."""


class Busy(Exception):
    """The test cannot run beside the current load of the GPU."""


class LibraryRefused(Exception):
    """The library under test refused, with its own message."""


def answer_with(measure: Callable[[], Mapping[str, Any]]) -> NoReturn:
    """Run the test and write its one line; then end. Anything unforeseen is a traceback on standard error."""
    replies = os.dup(1)
    os.dup2(2, 1)
    line = json.dumps(_outcome(measure), separators=(",", ":"))
    os.write(replies, f"{line}\n".encode())
    os._exit(0)


def _outcome(measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    try:
        return {ANSWER: measure()}
    except LibraryMissing as error:
        return {MISSING: str(error)}
    except Busy as error:
        return {BUSY: str(error)}
    except LibraryRefused as error:
        return {REFUSED: str(error)}
    except CudaError as error:
        word = {NO_DEVICE: MISSING, OUT_OF_MEMORY: BUSY}.get(error.code, REFUSED)
        return {word: str(error)}
