"""The provisioner of a node that asks ``healthd controller`` to reboot or replace it, and has no right to do so itself.

What is asked stands in the node's mark, and so does the answer: no port is open for it, and nothing is lost with either
daemon. It never calls a cloud. Evidence stays what it is: another boot id, another instance; the controller's word
counts only where a machine keeps its id when it moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.decide.handoff import UNASKED_S, HandoffRecord, RequestAnswer, instance_of, parse, withdrawing
from healthd.remediation.ports import Provisioner, StateOwner

UNTAKEN_S = 180.0
"""After how many seconds a request that no controller took pages."""


class DelegatedProvisioner:
    """``inner``: the node's platform as seen from elsewhere; asked only what it could do, which needs no right.

    ``read`` and ``write`` are of this node's mark and raise BackendError. ``monotonic_s`` counts for how long a request
    has been withdrawn.
    """

    state_owner = StateOwner.ENGINE
    delegates = True

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

    def why_not(self, remedy: Remedy) -> str:
        """Why this remedy cannot be asked for here, or ""."""
        if not self._instance_id:
            return "the instance id of this node could not be found out: check [sources] imds_endpoint"
        return self._inner.why_not(remedy)

    def stands_down(self) -> str:
        """Whether the platform acts already is the controller's to see, who may ask it."""
        return ""

    def machine(self) -> str:
        """Our own instance; where it keeps its id when it moves, as the controller last saw it after a move."""
        mark = parse(self._read())
        moved = mark.became if mark is not None else ""
        return moved if instance_of(moved) == self._instance_id else self._instance_id

    def reboot(self) -> None:
        """Ask the controller to reboot this node."""
        self._ask(Remedy.REBOOT_NODE)

    def replace(self) -> None:
        """Ask the controller for another machine."""
        self._ask(Remedy.REPLACE_NODE)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """At once: a request that stands already is not made again."""
        return 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """Withdraw a request that nobody has taken. True once it has been withdrawn for UNASKED_S: by then a controller
        that was at it has said so. What was taken is waited for."""
        mark = parse(self._read())
        if mark is None or instance_of(mark.machine) != self._instance_id:
            return False
        if mark.is_withdrawn:
            return self._withdrawn_s(mark) >= UNASKED_S
        self._withdrawn = None
        if mark.remedy is not None and mark.answer in (None, RequestAnswer.WAITS):
            self._write(withdrawing(mark).text)
        return False

    def progress(self) -> str:
        """What the controller answered. BackendBusy: nobody took the request, or its taker waits for a person."""
        mark = parse(self._read())
        age = self._clock() - mark.asked if mark is not None and mark.asked is not None else timedelta()
        if mark is None or instance_of(mark.machine) != self._instance_id:
            raise BackendUnknown("the request is not to be seen in the node's mark")
        if mark.is_withdrawn:
            if self._withdrawn_s(mark) > 2 * UNASKED_S:
                raise BackendRefused("the request was withdrawn before any controller began it")
            raise BackendUnknown("the request is withdrawn; a controller that has begun it says so within a minute")
        if not mark.asks:
            if age > timedelta(seconds=UNASKED_S):
                raise BackendRefused("the request was never left with the cluster")
            raise BackendUnknown("the request is not to be seen in the node's mark yet")
        match mark.answer:
            case RequestAnswer.REFUSED:
                raise BackendRefused(f"healthd controller: {mark.said}")
            case RequestAnswer.WAITS:
                raise BackendBusy(f"healthd controller waits: {mark.said}")
            case RequestAnswer.TAKEN:
                return f"the controller has taken it{': ' * bool(mark.said)}{mark.said}"
            case None:
                return self._untaken(age)

    def dry_run(self, remedy: Remedy) -> str:
        """What would be asked. Raises BackendRefused for what cannot be."""
        if why := self.why_not(remedy):
            raise BackendRefused(why)
        return f"would ask healthd controller, by the node's mark: asks={remedy} machine={self._instance_id}"

    def _ask(self, remedy: Remedy) -> None:
        """Turn the mark that the engine has left into a request. One that stands already is not made again."""
        mark = parse(self._read()) or HandoffRecord()
        if (mark.remedy, instance_of(mark.machine)) != (remedy, self._instance_id):
            raise BackendRefused("no request could be left: the node's mark is not what was written a moment ago")
        if not mark.asks:
            self._write(replace(mark, asks=True).text)

    def _withdrawn_s(self, mark: HandoffRecord) -> float:
        """For how many seconds this process has seen this request withdrawn."""
        now_s = self._monotonic_s()
        if self._withdrawn is None or self._withdrawn[:2] != (mark.case, mark.asked):
            self._withdrawn = (mark.case, mark.asked, now_s)
        return now_s - self._withdrawn[2]

    def _untaken(self, age: timedelta) -> str:
        if age > timedelta(seconds=UNTAKEN_S):
            minutes = UNTAKEN_S / 60
            wrong = f"nobody has taken the request for more than {minutes:g} minutes"
            raise BackendBusy(f"{wrong}: does `healthd controller` run, and can it reach the cluster?")
        return "the controller has not taken it yet"
