"""What ``healthd controller`` has told people, kept where it outlives its pod: an annotation of the Lease that says who
leads. Whoever leads next neither repeats it nor forgets to say that it is over.
"""

from __future__ import annotations

from collections.abc import Callable

from healthd.errors import BackendError, StoreError
from healthd.remediation.orchestrators.kube_api import Kind, KubeApi, Missing
from healthd.remediation.orchestrators.kube_budget import annotations_of
from healthd.remediation.orchestrators.kube_lead import LEASE

TOLD = "healthd.io/told"
_MOST_BYTES = 200_000  # the API server takes 262,144 for all annotations of an object


class KubeTold:
    """``leads`` raises BackendRefused where this controller may not write any more."""

    def __init__(self, api: KubeApi, *, namespace: str, leads: Callable[[], None]) -> None:
        self._api, self._namespace, self._leads = api, namespace, leads

    def kept(self) -> str:
        """What the leader before this one told, or "". Raises StoreError where that cannot be read."""
        try:
            return annotations_of(self._api.get(Kind.LEASE, LEASE, namespace=self._namespace))[1].get(TOLD, "")
        except Missing:
            return ""
        except BackendError as error:
            raise StoreError(f"what was told before cannot be read: {error}") from error

    def keep(self, text: str) -> None:
        """Write it down. Raises StoreError where that cannot be done."""
        if len(text.encode()) > _MOST_BYTES:
            raise StoreError(f"it has {len(text.encode())} bytes, and an annotation of the Lease {LEASE} {_MOST_BYTES}")
        try:
            self._leads()
            body = {"metadata": {"annotations": {TOLD: text}}}
            self._api.patch(Kind.LEASE, LEASE, body, namespace=self._namespace)
        except BackendError as error:
            raise StoreError(str(error)) from error
