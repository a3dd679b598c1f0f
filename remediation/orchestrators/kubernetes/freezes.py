"""The freeze of a Kubernetes fleet, as an administrator sets it: one annotation of the cluster's budget Lease.

The agents read that Lease before each act, and the admission policy lets none of them write this annotation.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from healthd.remediation.decide.freeze import Freeze
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, ResourceKind
from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE, annotations_of, freeze_in, freeze_patch


class KubeFreezes:
    """The freezes of one cluster. Each call raises BackendError."""

    def __init__(self, api: KubeApi, *, namespace: str) -> None:
        self._api, self._namespace = api, namespace

    def freezes(self) -> tuple[Freeze, ...]:
        lease = self._api.get(ResourceKind.LEASE, LEASE, namespace=self._namespace)
        freeze = freeze_in(annotations_of(lease)[1], datetime.now(UTC))
        return () if freeze is None else (freeze,)

    def freeze(self, reason: str, by: str, minutes: int) -> None:
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=minutes)
        self._write(Freeze(reason=reason, by=by, until=until))

    def unfreeze(self) -> None:
        self._write(None)

    def _write(self, freeze: Freeze | None) -> None:
        self._api.patch(ResourceKind.LEASE, LEASE, freeze_patch(freeze), namespace=self._namespace)
