"""The provisioner of a node that asks ``healthd controller`` to reboot or replace it, and has no right to do so itself.

The node's handoff record holds the request and the answer: no port is open for it, and nothing is lost with either
daemon. It never calls a cloud. The evidence is still another boot id or another instance; the controller's answer
counts as evidence only where a machine keeps its id when it moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from healthd.core.errors import BackendBusy, BackendDenied, BackendError, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.ports import Provisioner, StateOwner
from healthd.remediation.records.handoff import (
    UNASKED_S,
    UNTAKEN_S,
    HandoffRecord,
    RequestAnswer,
    instance_of,
    parse,
    withdrawing,
)


class DelegatedProvisioner:
    """``inner``: the node's platform as the controller uses it; asked only which remedies it has, which needs no right.

    ``read`` and ``write`` are of this node's handoff record and raise BackendError. ``monotonic_s`` counts for how long
    a request has been withdrawn.
    """

    state_owner = StateOwner.ENGINE
    delegates, acts_late = True, False

    def __init__(
        self,
        *,
        inner: Provisioner,
        instance_id: str,
        read: Callable[[], str],
        write: Callable[[str], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = inner.kind
        self._inner, self._instance_id, self._read, self._write = inner, instance_id, read, write
        self._clock, self._monotonic_s = clock, monotonic_s
        self._withdrawn: tuple[str, datetime | None, float] | None = None
        self._first: tuple[str, datetime | None] | None = None  # the first request of a remediation that none has taken

    def reason_against(self, remedy: Remedy) -> str:
        """Why this remedy cannot be asked for here, or ""."""
        if not self._instance_id:
            return "the instance id of this node is unknown: check [sources] imds_endpoint"
        return self._inner.reason_against(remedy)

    def stands_down(self) -> str:
        """Always "": the controller, which has the rights, sees whether the platform acts already."""
        return ""

    def machine(self) -> str:
        """This node's instance; where it keeps its id when it moves, as the controller last saw it after a move."""
        record = parse(self._read())
        moved = record.became if record is not None else ""
        return moved if instance_of(moved) == self._instance_id else self._instance_id

    def reboot(self) -> None:
        self._ask(Remedy.REBOOT_NODE)

    def replace(self) -> None:
        self._ask(Remedy.REPLACE_NODE)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """At once: a request that is in the record already is not made again."""
        return 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """Withdraw a request that no controller has taken. True once it has been withdrawn for UNASKED_S: by then a
        controller that acts on it has answered. A request that was taken is waited for."""
        record = parse(self._read())
        if record is None or instance_of(record.machine) != self._instance_id:
            return False
        if record.is_withdrawn:
            return self._withdrawn_s(record) >= UNASKED_S
        self._withdrawn = None
        if record.remedy is not None and record.answer in (None, RequestAnswer.WAITS):
            self._write(withdrawing(record).text)
        return False

    def progress(self) -> str:
        """The controller's answer. BackendBusy: no controller took the request, or it waits for an operator."""
        record = parse(self._read())
        if record is None or instance_of(record.machine) != self._instance_id:
            raise BackendUnknown("the request is not in the node's handoff record")
        if record.is_withdrawn or not record.asks:
            raise self._unasked(record)
        match record.answer:
            case RequestAnswer.REFUSED:
                raise BackendRefused(f"healthd controller: {record.message}")
            case RequestAnswer.DENIED:
                raise BackendDenied(f"healthd controller: {record.message}")
            case RequestAnswer.WAITS:
                raise BackendBusy(f"healthd controller waits: {record.message}")
            case RequestAnswer.TAKEN:
                self._first = None
                return f"the controller has taken the request{': ' * bool(record.message)}{record.message}"
            case None:
                return self._untaken(record)

    def dry_run(self, remedy: Remedy) -> str:
        """The request that would be written. Raises BackendRefused where it cannot be."""
        if why := self.reason_against(remedy):
            raise BackendRefused(why)
        return f"would ask healthd controller, in the node's handoff record: asks={remedy} machine={self._instance_id}"

    def _ask(self, remedy: Remedy) -> None:
        """Turn the handoff record that the engine has written into a request. An existing request is not made again."""
        record = parse(self._read()) or HandoffRecord()
        if (record.remedy, instance_of(record.machine)) != (remedy, self._instance_id):
            raise BackendRefused("no request written: the node's handoff record was changed a moment ago")
        if not record.asks:
            self._write(replace(record, asks=True).text)

    def _unasked(self, record: HandoffRecord) -> BackendError:
        """How a request stands that is withdrawn, or was not written."""
        if record.is_withdrawn:
            if self._withdrawn_s(record) > 2 * UNASKED_S:
                return BackendRefused("the request was withdrawn before any controller began it")
            return BackendUnknown("the request is withdrawn; a controller that has begun it answers within a minute")
        if record.asked is not None and self._clock() - record.asked > timedelta(seconds=UNASKED_S):
            return BackendRefused("the request was never written to the cluster")
        return BackendUnknown("the request is not in the node's handoff record yet")

    def _withdrawn_s(self, record: HandoffRecord) -> float:
        """For how many seconds this process has seen this request withdrawn."""
        now_s = self._monotonic_s()
        if self._withdrawn is None or self._withdrawn[:2] != (record.remediation_id, record.asked):
            self._withdrawn = (record.remediation_id, record.asked, now_s)
        return now_s - self._withdrawn[2]

    def _untaken(self, record: HandoffRecord) -> str:
        """A request that is made again after its time is the same to an operator: its page goes on."""
        if self._first is None or self._first[0] != record.remediation_id:
            self._first = (record.remediation_id, record.asked)
        age = self._clock() - self._first[1] if self._first[1] is not None else timedelta()
        if age > timedelta(seconds=UNTAKEN_S):
            minutes = UNTAKEN_S / 60
            wrong = f"no controller has taken the request for more than {minutes:g} minutes"
            raise BackendBusy(f"{wrong}: check that `healthd controller` runs and reaches the cluster")
        return "the controller has not taken the request yet"
