"""Memory of ``healthd controller`` that outlives its pod: annotations of the Lease of the leader election. They hold
the reports that were sent, so that the next leader repeats none and still reports their end; and the records of drains.
A Lease of its own holds what ``healthd controller --status`` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from healthd.core.errors import BackendError, StoreError
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, Missing, ResourceKind
from healthd.remediation.orchestrators.kubernetes.leader_election import LEASE
from healthd.remediation.orchestrators.kubernetes.objects.budget import annotations_of

TOLD = "healthd.io/told"
_MOST_BYTES = 200_000  # the API server takes 262,144 for all annotations of an object


class LeaseNotes:
    """One annotation. ``leads`` raises BackendRefused where this controller may not write any more."""

    def __init__(
        self, api: KubeApi, *, namespace: str, leads: Callable[[], None], key: str = TOLD, lease: str = LEASE
    ) -> None:
        self._api, self._namespace, self._leads, self._key, self._lease = api, namespace, leads, key, lease

    @property
    def name(self) -> str:
        """The annotation's name in messages."""
        return f"annotation {self._key} of the Lease {self._namespace}/{self._lease}"

    def kept(self) -> str:
        try:
            return annotations_of(self._api.get(ResourceKind.LEASE, self._lease, namespace=self._namespace))[1].get(
                self._key, ""
            )
        except Missing:
            return ""
        except BackendError as error:
            raise StoreError(f"{self.name} cannot be read: {error}") from error

    def keep(self, text: str) -> None:
        if len(text.encode()) > _MOST_BYTES:
            raise StoreError(f"the {self.name} would have {len(text.encode())} bytes, allowed are {_MOST_BYTES}")
        try:
            self._leads()
            body = {"metadata": {"annotations": {self._key: text}}}
            self._written(body)
        except BackendError as error:
            raise StoreError(str(error)) from error

    def _written(self, body: dict[str, Any]) -> None:
        """Write it; a Lease that is missing is created, but not the one of the leader election."""
        try:
            self._api.patch(ResourceKind.LEASE, self._lease, body, namespace=self._namespace)
        except Missing:
            if self._lease == LEASE:
                raise
            made = {"metadata": {"name": self._lease, **body["metadata"]}, "spec": {}}
            self._api.create(ResourceKind.LEASE, made, namespace=self._namespace)
