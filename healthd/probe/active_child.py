"""What the children of active tests share: one JSON line as the answer, and the words for why there is none.

The answer is the only thing on standard output; what libraries print goes to standard error. A child holds nothing
that the end of its process does not give back, so it ends without tidying up: nothing may wait for a broken GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from healthd.probe.cuda_driver import NO_DEVICE, OUT_OF_MEMORY, CudaError, LibraryMissing

ANSWER, MISSING, BUSY, REFUSED = "answer", "missing", "busy", "refused"
"""The keys of the one line: what was measured; what is not installed; what the test needs and others hold; what the
hardware's own library said no to."""


class Busy(Exception):
    """The test cannot run beside what is on the GPU already."""


class LibraryRefused(Exception):
    """The library under test said no: its own words."""


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
