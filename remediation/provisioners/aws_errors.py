"""What an error of AWS means for what was asked: applied, not applied, or not to be told. Pure.

Codes: botocore/retries/standard.py for throttling; Amazon EC2 API Reference, "Error codes"; the error shapes of the
service models of Auto Scaling and SageMaker (2026).
"""

from __future__ import annotations

from enum import StrEnum


class CallTrouble(StrEnum):
    """Why a call did not end well. After all but UNKNOWN nothing was applied."""

    THROTTLED = "throttled"
    BUSY = "busy"
    DENIED = "denied"
    CREDENTIALS = "credentials"  # there are none now, or they are not valid now: this says nothing of a right
    REFUSED = "refused"
    UNSENT = "unsent"
    UNKNOWN = "unknown"
    WOULD_DO = "would_do"  # the answer to a dry run that is allowed


_WOULD_DO = frozenset({"DryRunOperation"})
_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
_BUSY = frozenset(
    {
        # another operation on the same thing is in flight
        "IncorrectInstanceState",
        "IncorrectState",
        "ResourceContention",
        "ResourceContentionFault",
        "ScalingActivityInProgress",
        "ScalingActivityInProgressFault",
        # there is no capacity now
        "InsufficientCapacity",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "ReservationCapacityExceeded",
    }
)
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "OptInRequired",
        "UnauthorizedOperation",
    }
)
_CREDENTIALS = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


def trouble_of(code: str, status: int) -> CallTrouble:
    """What an error code with its HTTP status means. What the service itself did not understand was not applied."""
    if code in _WOULD_DO:
        return CallTrouble.WOULD_DO
    if code in _THROTTLED or status == 429:
        return CallTrouble.THROTTLED
    if code in _BUSY:
        return CallTrouble.BUSY
    if code in _CREDENTIALS:
        return CallTrouble.CREDENTIALS
    if code in _DENIED or status in (401, 403):
        return CallTrouble.DENIED
    return CallTrouble.REFUSED if 400 <= status < 500 else CallTrouble.UNKNOWN
