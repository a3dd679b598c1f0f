"""The meaning of AWS's errors for a call: applied, not applied, or unknown; by ``aws_errors.csv``.

Codes: botocore/retries/standard.py for throttling; Amazon EC2 API Reference, "Error codes"; the error shapes of the
service models of Auto Scaling, SageMaker and STS (2026). docs/reference/aws-calls.md is made from the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache, partial

from msgspec import Struct

from healthd.checklib.tables import as_row, keyed_rows


class CallTrouble(StrEnum):
    """Why a call did not end well. After all but UNKNOWN nothing was applied."""

    THROTTLED = "throttled"
    BUSY = "busy"
    DENIED = "denied"
    CREDENTIALS = "credentials"  # there are none now, or they are not valid now: this proves no missing right
    REFUSED = "refused"
    UNSENT = "unsent"
    UNKNOWN = "unknown"
    WOULD_DO = "would_do"  # the answer to a dry run that is allowed


class AwsError(Struct, frozen=True, kw_only=True):
    """The meaning of one error code, and why."""

    code: str
    trouble: CallTrouble
    why: str


@cache
def errors() -> Mapping[str, AwsError]:
    """``aws_errors.csv`` by code. Raises ValueError naming the line that cannot be read."""
    return keyed_rows("aws_errors.csv", partial(as_row, kind=AwsError), lambda error: error.code, "healthd.remediation")


def trouble_of(code: str, status: int) -> CallTrouble:
    """The meaning of an error code with its HTTP status. A call that the service did not understand was not applied."""
    if status == 429:
        return CallTrouble.THROTTLED
    if (error := errors().get(code)) is not None:
        return error.trouble
    if status in (401, 403):
        return CallTrouble.DENIED
    return CallTrouble.REFUSED if 400 <= status < 500 else CallTrouble.UNKNOWN
