"""Leader election of ``healthd controller``: a Lease, by compare-and-swap, judged by the process's own clock alone.

As client-go elects (tools/leaderelection): a follower measures by its own monotonic clock how long the Lease has not
*changed*, and takes it after the holder's own duration; the times in it are for operators. A leader renews every
``RETRY_S`` and counts as leading for ``RENEW_S`` from when its last renewal that succeeded was *sent*, which is less
than the ``DURATION_S`` after which another controller may take it. So the old leader has stopped before the new one
begins, whatever the API server does meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from healthd.core.errors import BackendBusy, BackendError
from healthd.remediation.orchestrators.kubernetes.api import Conflict, KubeApi, Missing, ResourceKind

LEASE = "healthd-controller"
NO_HOLDER = "no controller: the Lease is new"
DURATION_S, RENEW_S, RETRY_S = 15.0, 10.0, 2.0


class Record(Struct, frozen=True, kw_only=True):
    """The content of the Lease. ``renewed`` is compared, never measured."""

    holder: str = ""
    renewed: str = ""
    duration_s: float = 0.0
    transitions: int = 0


def record_of(lease: dict[str, Any]) -> Record:
    """The content of a Lease; one that is missing fields or makes no sense has no holder."""
    spec = lease.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    return Record(
        holder=str(spec.get("holderIdentity") or ""),
        renewed=str(spec.get("renewTime") or ""),
        duration_s=float(_whole(spec.get("leaseDurationSeconds"))),
        transitions=_whole(spec.get("leaseTransitions")),
    )


def _whole(value: object) -> int:
    """An int32 of the API (Lease v1), or 0."""
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0


def may_take(record: Record, identity: str, unchanged_s: float) -> bool:
    """Whether ``identity`` may write this Lease: it is ours, free, or has not changed for its duration."""
    return record.holder in ("", identity) or unchanged_s >= record.duration_s


class Leadership:
    """The lead, held or sought by ``identity``. ``holds`` and ``check`` are for any thread, the other calls for one."""

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        identity: str,
        monotonic_s: Callable[[], float] = time.monotonic,
        duration_s: float = DURATION_S,
        renew_s: float = RENEW_S,
    ) -> None:
        self._api, self._namespace, self._identity = api, namespace, identity
        self._monotonic_s, self._duration_s, self._renew_s = monotonic_s, duration_s, renew_s
        self._seen, self._seen_s = Record(), monotonic_s()
        self._until_s = float("-inf")
        self.message = ""

    @property
    def leader(self) -> str:
        """The leader as of the last reading of the Lease."""
        return self._seen.holder

    def holds(self) -> bool:
        """Whether this controller may act at this moment."""
        return self._monotonic_s() < self._until_s

    def check(self) -> None:
        """Raise BackendBusy where it may not: another controller leads, and nothing has failed."""
        if not self.holds():
            raise BackendBusy(f"this controller is no longer the leader: {self.message or 'its lease was not renewed'}")

    def attempt(self) -> bool:
        """Take the lead, or renew it, with two requests; whether this controller leads then. ``message`` has the
        error."""
        return self._attempt(takes=True)

    def renew(self) -> bool:
        """Renew the lead, and never take it: another controller may have led meanwhile, and what it wrote is not known
        to the sync that still runs. Whether this controller leads then."""
        return self._attempt(takes=False)

    def _attempt(self, *, takes: bool) -> bool:
        asked_s = self._monotonic_s()
        try:
            lease = self._api.get(ResourceKind.LEASE, LEASE, namespace=self._namespace)
        except Missing:
            return self._made()
        except BackendError as error:
            self.message = str(error)
            return self.holds()
        record = record_of(lease)
        if record != self._seen:
            self._seen, self._seen_s = record, asked_s
        if not may_take(record, self._identity, asked_s - self._seen_s):
            self._until_s, self.message = float("-inf"), f"{record.holder} leads"
            return False
        if not takes and record.holder != self._identity:
            self._until_s, self.message = float("-inf"), "another controller has led meanwhile"
            return False
        return self._written(lease, record, asked_s)

    def give_up(self) -> None:
        """Stop acting, and free the Lease, so that the next controller need not wait for its end."""
        was_held, self._until_s = self.holds(), float("-inf")
        if not was_held:
            return
        try:
            lease = self._api.get(ResourceKind.LEASE, LEASE, namespace=self._namespace)
            if record_of(lease).holder == self._identity:
                self._patch(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except BackendError as error:
            self.message = str(error)  # the next one waits for it to end

    def _written(self, lease: dict[str, Any], record: Record, asked_s: float) -> bool:
        now, is_new = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}Z", record.holder != self._identity
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._duration_s),
            "renewTime": now,
        }
        if is_new:
            spec |= {"acquireTime": now, "leaseTransitions": record.transitions + 1}
        try:
            self._seen = record_of(self._patch(lease, spec))
        except Conflict:
            self.message = "another controller wrote the lease at the same moment"
            return self.holds()
        except BackendError as error:
            self.message = str(error)
            return self.holds()
        self._seen_s, self._until_s, self.message = asked_s, asked_s + self._renew_s, ""
        return self.holds()

    def _made(self) -> bool:
        """Create a missing Lease without a holder, for a whole duration: the leader before its deletion may not know
        yet. A leader whose Lease is gone stops."""
        self._until_s, self.message = float("-inf"), ""
        spec = {"holderIdentity": NO_HOLDER, "leaseDurationSeconds": int(self._duration_s)}
        try:
            self._api.create(ResourceKind.LEASE, {"metadata": {"name": LEASE}, "spec": spec}, namespace=self._namespace)
        except BackendError as error:
            self.message = str(error)
        return False

    def _patch(self, lease: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        body = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": spec}
        return self._api.patch(ResourceKind.LEASE, LEASE, body, namespace=self._namespace)


class Renewal:
    """Renews a lead in a thread of its own from ``with`` to its end, and gives it up then, or once ``stuck`` says why
    the running sync will not end. Every act calls ``Leadership.check`` first: a sync that continues after all changes
    nothing."""

    def __init__(self, lead: Leadership, *, stuck: Callable[[], str] = str, retry_s: float = RETRY_S) -> None:
        self._lead, self._stuck, self._retry_s = lead, stuck, retry_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lead", daemon=True)

    def __enter__(self) -> Renewal:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._lead.give_up()

    def _renew(self) -> None:
        while not self._stop.wait(self._retry_s):
            if self._stuck():
                self._lead.give_up()
                return
            self._lead.renew()
