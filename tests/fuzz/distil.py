"""The corpus: of many changed inputs, those that reach lines of healthd's which no seed and no other reaches."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from tests.fuzz.target import CORPUS, Target

_LASTS_S = 5.0
_MOST = 12
"""Files of one target: a corpus is read by every run of the tests."""
_LONGEST = 512

_OURS = tuple(str(Path(__file__).parents[2] / folder) for folder in ("healthd", "checks", "remediation"))
_Lines = set[tuple[str, int]]


def distilled(target: Target, seed: int) -> int:
    """Write what is worth keeping beside what is there; how many files the target has then."""
    folder, random, seeds = CORPUS / target.name, Random(seed), target.begins_with()
    known: _Lines = set()
    for each in seeds:
        known |= reached(target, each)
    until, kept = time.process_time() + _LASTS_S, list(seeds)
    count = len(target.corpus())
    while time.process_time() < until and count < _MOST:
        data = target.input(random, tuple(kept))
        if len(data) > _LONGEST:
            continue
        if new := reached(target, data) - known:
            known |= new
            kept.append(data)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
            count += 1
    return count


def reached(target: Target, data: bytes) -> _Lines:
    """The lines of healthd's own that this input runs through."""
    found: _Lines = set()

    def line(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        target.takes(data)
    finally:
        sys.settrace(before)
    return found
