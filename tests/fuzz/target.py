"""What is fuzzed: a parser as a function of bytes, real inputs to begin with, and the errors that it may raise."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from msgspec import Struct, field

from healthd.core.errors import HealthdError
from tests.fuzz.mutate import LONGEST, mutated, mutated_json

CORPUS = Path(__file__).with_name("corpus")
"""A folder for each target: inputs that reached what the seeds do not, and each that ever failed."""


class Target(Struct, frozen=True, kw_only=True):
    """``parse`` may raise ``refuses`` and nothing else. ``json``: the seeds are JSON, and most inputs stay that.

    ``units``: what repeated makes an input long, beside the seeds themselves. ``longest``: bytes that production reads
    at once, as far as it bounds them lower than a fuzzer's input.
    """

    name: str
    parse: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    units: tuple[bytes, ...] = ()
    json: bool = False
    refuses: tuple[type[Exception], ...] = field(default=(HealthdError,))
    longest: int = 1 << 16

    def corpus(self) -> tuple[bytes, ...]:
        """The inputs that are kept for it."""
        return tuple(each.read_bytes() for each in sorted((CORPUS / self.name).glob("*")))

    def begins_with(self) -> tuple[bytes, ...]:
        """The seeds and what was found to be worth keeping."""
        return (*self.seeds, *self.corpus())

    def input(self, random: Random, seeds: tuple[bytes, ...]) -> bytes:
        """One changed input."""
        return (mutated_json if self.json else mutated)(random, seeds, LONGEST)

    def takes(self, data: bytes) -> None:
        """Parse. An error that is none of ``refuses`` is the finding."""
        try:
            self.parse(data)
        except self.refuses:
            return


def text(data: bytes) -> str:
    """As a file or a tool's output is read."""
    return data.decode("utf-8", "replace")


def each_takes(data: bytes, *parsers: Callable[[str], object]) -> None:
    """Several parsers of one text, each of which may refuse it."""
    message = text(data)
    for parse in parsers:
        try:
            parse(message)
        except HealthdError:
            continue


@cache
def memory_file() -> Path:
    """One file of this process's, in memory where there is such a folder."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="fuzz-", dir=where)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / "file"
