"""What ``healthd controller`` keeps where it outlives its pod: an annotation of the Lease that says who leads. There is
what people were told, which the next leader neither repeats nor forgets to say that it is over; and its drains.
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
    """One annotation. ``leads`` raises BackendRefused where this controller may not write any more."""

    def __init__(self, api: KubeApi, *, namespace: str, leads: Callable[[], None], key: str = TOLD) -> None:
        self._api, self._namespace, self._leads, self._key = api, namespace, leads, key

    @property
    def name(self) -> str:
        """The annotation, as a person finds it."""
        return f"annotation {self._key} of the Lease {self._namespace}/{LEASE}"

    def kept(self) -> str:
        """What was kept last, by whichever leader, or "". Raises StoreError where that cannot be read."""
        try:
            return annotations_of(self._api.get(Kind.LEASE, LEASE, namespace=self._namespace))[1].get(self._key, "")
        except Missing:
            return ""
        except BackendError as error:
            raise StoreError(f"{self.name} cannot be read: {error}") from error

    def keep(self, text: str) -> None:
        """Write it down. Raises StoreError where that cannot be done."""
        if len(text.encode()) > _MOST_BYTES:
            raise StoreError(f"it has {len(text.encode())} bytes, and an annotation of the Lease {LEASE} {_MOST_BYTES}")
        try:
            self._leads()
            body = {"metadata": {"annotations": {self._key: text}}}
            self._api.patch(Kind.LEASE, LEASE, body, namespace=self._namespace)
        except BackendError as error:
            raise StoreError(str(error)) from error
