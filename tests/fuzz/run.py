"""One target, fuzzed for so much CPU time; what is wrong with how it takes an input, and how little shows it."""

from __future__ import annotations

import time
import traceback
import warnings
from pathlib import Path
from random import Random

from msgspec import Struct, field

from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

_SLOW_S = 1.0
"""CPU time of one input that is a finding: none is longer than 4 KiB."""


class Slice(Struct, kw_only=True):
    """What came of one target in its time. ``failures``: what is wrong, and an input that shows it."""

    target: str
    inputs: int = 0
    took_s: float = 0.0
    slowest_s: float = 0.0
    failures: dict[str, bytes] = field(default_factory=dict)


def fuzzed(name: str, seed: int, slice_s: float) -> Slice:
    """One target for so much CPU time, with this chance."""
    warnings.simplefilter("ignore")  # of re and ast about what a fuzzer writes
    target, random, found = TARGETS[name], Random(seed), Slice(target=name)
    seeds, began = target.begins_with(), time.process_time()
    now = began
    while now - began < slice_s:
        data = target.input(random, seeds)
        before = time.process_time()
        wrong = failure(target, data)
        now = time.process_time()
        found.slowest_s = max(found.slowest_s, now - before)
        if not wrong and now - before > _SLOW_S:
            wrong = _slow(target, data)
        if wrong:
            found.failures[wrong] = min(found.failures.get(wrong, data), data, key=len)
        found.inputs += 1
    found.took_s = now - began
    return found


def failure(target: Target, data: bytes) -> str:
    """What is wrong with how the target takes this input, and where; "" where nothing is."""
    try:
        target.takes(data)
    except Exception as error:  # noqa: BLE001 - what a parser must not raise is what this looks for
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
    return ""


def smaller(target: Target, data: bytes) -> bytes:
    """The input with all taken away that its failure does not need."""
    wrong, step = failure(target, data), len(data) // 2
    while wrong and step:
        at = 0
        while at < len(data):
            less = data[:at] + data[at + step :]
            at, data = (at, less) if failure(target, less) == wrong else (at + step, data)
        step //= 2
    return data


def _slow(target: Target, data: bytes) -> str:
    """Whether it is slow again: once may be the machine."""
    before = time.process_time()
    failure(target, data)
    return "takes longer than a second" if time.process_time() - before > _SLOW_S else ""
