"""Runs one check and turns whatever happens into an Outcome.

This is the one place with a broad ``except``: a check that raises, for whatever cause, is *unknown*, and says why.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from healthd.check import Check, unknown
from healthd.encodable import writable
from healthd.errors import SourceError
from healthd.model import Finding, Outcome, Result
from healthd.node import Node


def run_check(check: Check, node: Node, settings: Any, *, optional: bool = False) -> Outcome:
    """One run. Findings without a time get that of the start of the run; the duration is monotonic."""
    at, started = datetime.now(UTC), time.monotonic()
    result = _result(check, node, settings, at)
    return Outcome(
        check=check.name,
        result=result,
        at=at,
        duration_s=time.monotonic() - started,
        optional=optional,
    )


def _result(check: Check, node: Node, settings: Any, at: datetime) -> Result:
    """What the check came to. Every text in it can be written down, sent and shown, whatever the machine said."""
    try:
        return writable(_stamped(check.run(node, settings), at))
    except SourceError as error:
        return writable(unknown(str(error)))
    except Exception as error:  # noqa: BLE001 - the contract: a raising check is unknown, never absent, never fatal
        words = f"the check failed: {type(error).__name__}: {error}; this is a defect of {check.name}"
        return writable(unknown(words))


def _stamped(result: Result, at: datetime) -> Result:
    findings: tuple[Finding, ...] = tuple(f if f.time else replace(f, time=at) for f in result.findings)
    return replace(result, findings=findings)
