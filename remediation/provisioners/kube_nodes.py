"""Machines of Kubernetes nodes, for ``healthd controller``: the instance of a Node, and replacement by Karpenter.

A Node names its machine itself, by ``spec.providerID``: no address and no name is looked up. On EKS the replacement is
a Node of another name, so that here a replacement shows as the old Node's end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from healthd.core.errors import BackendError, BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.ports import Provisioner, StateOwner
from healthd.remediation.provisioners.platform_reads import before_acting
from healthd.remediation.provisioners.target_node import TargetNode
from healthd.remediation.records.handoff import instance_of

_REQUEST_IS_OVER_S = 90.0  # kube-apiserver ends its own requests after 60 s (--request-timeout)


class NodeClaim(Protocol):
    """One of Karpenter's NodeClaims."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def deleting(self) -> bool:
        """Whether it is on its way out already."""


class NodeClaims(Protocol):
    """Karpenter's NodeClaims. Both raise BackendError."""

    def of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim of this instance, or None."""

    def delete(self, claim: NodeClaim) -> None:
        """Delete the NodeClaim: Karpenter drains and ends the machine, and makes another where pods need it."""


def launched(by_node: Callable[[], str], by_platform: Callable[[], str]) -> Callable[[], str]:
    """The machine of a node whose instance keeps its id when it moves to another host: the platform's answer, with the
    time of its launch, as long as the Node names that instance. Raises BackendError."""

    def machine() -> str:
        named, found = by_node(), by_platform()
        return found if instance_of(found) == named else named

    return machine


class ByProviderId:
    """``inner`` acts, as the platform does; the Node names the machine behind it.

    ``machine`` raises BackendUnknown once the Node is gone. ``repaired_by``: the service that repairs such nodes by
    itself, or ""; raises BackendError.
    """

    delegates = acts_late = False

    def __init__(self, inner: Provisioner, *, machine: Callable[[], str], repaired_by: Callable[[], str] = str) -> None:
        self.kind, self._inner, self.machine = inner.kind, inner, machine
        self._repaired_by = repaired_by

    @property
    def state_owner(self) -> StateOwner:
        """The engine owns the taint, whichever service replaces the machine."""
        return StateOwner.ENGINE

    def reason_against(self, remedy: Remedy) -> str:
        return self._inner.reason_against(remedy) or self._repaired_by()

    def stands_down(self) -> str:
        return self._inner.stands_down()

    def reboot(self) -> None:
        self._inner.reboot()

    def replace(self) -> None:
        self._inner.replace()

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        return self._inner.repeats_after_s(remedy)

    def take_back(self, *, carried_out: bool) -> bool:
        return self._inner.take_back(carried_out=carried_out)

    def progress(self) -> str:
        return self._inner.progress()

    def dry_run(self, remedy: Remedy) -> str:
        return self._inner.dry_run(remedy)


class KarpenterProvisioner:
    """A node that Karpenter made, EKS Auto Mode's own too. ``claims`` None: on the node itself, which only asks the
    controller. ``monotonic_s`` counts how long a NodeClaim stays that was to be deleted.

    Where Karpenter repairs nodes as well (NodeRepair), the first of the two deletes the NodeClaim, which ends only
    once.
    """

    kind = "karpenter"
    state_owner = StateOwner.ENGINE
    delegates = acts_late = False

    def __init__(
        self,
        *,
        subject: TargetNode,
        machine: Callable[[], str],
        claims: NodeClaims | None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subject, self.machine, self._claims = subject, machine, claims
        self._monotonic_s, self._stands_since_s = monotonic_s, float("inf")

    def reason_against(self, remedy: Remedy) -> str:
        """Why this remedy cannot be carried out here, or "". Raises BackendError where NodeClaims cannot be read."""
        if remedy is Remedy.REBOOT_NODE:
            return "Karpenter cannot reboot a node, it replaces it"
        if self._claims is not None and self._claims.of(self._subject.instance_id) is None:
            return self._no_claim
        return self._subject.reason_against(remedy)

    def stands_down(self) -> str:
        """Karpenter may be ending this machine already."""
        try:
            claim = self._claim()
        except BackendError as error:
            return f"unknown whether Karpenter ends this machine already: {error}"
        return f"Karpenter ends NodeClaim {claim.name} already" if claim.deleting else ""

    def reboot(self) -> None:
        raise BackendRefused(self.reason_against(Remedy.REBOOT_NODE))

    def replace(self) -> None:
        """Delete the NodeClaim. Karpenter's own drain comes first, and asks the PodDisruptionBudgets."""
        if self._claims is None:
            raise BackendRefused("a node may not delete NodeClaims, healthd controller does it")
        self._stands_since_s = float("inf")
        with before_acting():
            claim = self._claim()
        self._claims.delete(claim)

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """At once: the deletion names the NodeClaim by its uid, and one that is being deleted shows it."""
        return 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """A deleted NodeClaim cannot be taken back."""
        return False

    def progress(self) -> str:
        """Whether the NodeClaim is still there. Raises BackendUnknown where that is unknown, and BackendRefused where
        it stays long after any request to delete it was over: a request without an answer that never arrived."""
        claim = self._claims.of(self._subject.instance_id) if self._claims is not None else None
        if claim is None:
            return f"the NodeClaim of {self._subject.instance_id} is gone"
        if claim.deleting:
            return f"Karpenter ends NodeClaim {claim.name}"
        self._stands_since_s = min(self._stands_since_s, self._monotonic_s())
        if self._monotonic_s() - self._stands_since_s >= _REQUEST_IS_OVER_S:
            raise BackendRefused(f"NodeClaim {claim.name} was never deleted: the request to delete it was lost")
        return f"NodeClaim {claim.name} is there"

    def dry_run(self, remedy: Remedy) -> str:
        """The NodeClaim that would be deleted. Raises as the act would."""
        if why := self.reason_against(remedy):
            raise BackendRefused(why)
        return f"would delete NodeClaim {self._claim().name} of {self._subject.instance_id}"

    def _claim(self) -> NodeClaim:
        claim = self._claims.of(self._subject.instance_id) if self._claims is not None else None
        if claim is None:
            raise BackendRefused(self._no_claim)
        return claim

    @property
    def _no_claim(self) -> str:
        return f"Karpenter has no NodeClaim of {self._subject.instance_id}: check [provisioner] kind"
