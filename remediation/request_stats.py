"""Counts of requests to the cluster and to AWS, by request and result: for the metrics page.

In bounded memory: a request is a word from a table (an operation of AWS, a verb and a kind of Kubernetes, a client of
Slurm), a result is the name of an error class.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from healthd.core.errors import BackendError, SourceError
from healthd.core.node import CommandResult

OK = "ok"
RESULTS = (OK, "busy", "denied", "refused", "unknown")
"""The results that every target has; Kubernetes adds its own refusals (``api``)."""


class RequestStats:
    """The counts of one process since it began. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: Counter[tuple[str, str, str]] = Counter()

    @property
    def counted(self) -> Counter[tuple[str, str, str]]:
        """Counts by target, request and result; of a request that was made, every result of ``RESULTS``."""
        with self._lock:
            return self._counted.copy()

    @contextmanager
    def counting(self, to: str, request: str) -> Iterator[None]:
        """Count one request by how it ends."""
        try:
            yield
        except BackendError as error:
            self.count(to, request, result_of(error))
            raise
        self.count(to, request, OK)

    def count(self, to: str, request: str, result: str) -> None:
        """Count one request."""
        with self._lock:
            for each in RESULTS:
                self._counted[to, request, each] += each == result
            if result not in RESULTS:
                self._counted[to, request, result] += 1

    def of_commands(self, to: str, run: Callable[..., CommandResult]) -> Callable[..., CommandResult]:
        """``run``, with each command counted by its program: an exit status other than 0 is a refusal."""

        def counted(argv: Sequence[str], **more: Any) -> CommandResult:
            program = os.path.basename(argv[0])
            try:
                result = run(argv, **more)
            except SourceError:
                self.count(to, program, "unknown")
                raise
            self.count(to, program, "refused" if result.code else OK)
            return result

        return counted


def result_of(error: BackendError) -> str:
    """``busy`` for BackendBusy, and so on: one word for each class of error."""
    return type(error).__name__.removeprefix("Backend").lower()
