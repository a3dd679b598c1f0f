"""Pods that are Slurm nodes (Slinky, SUNK): whether Slurm has drained the node that such a pod is. Pure.

A pod with a slurmd never ends by itself, and an eviction kills the Slurm jobs in it. Both operators drain the Slurm
node where the Kubernetes node is cordoned, and Slinky's shows Slurm's state of it as conditions of the pod. So such a
pod is left alone until these say that Slurm has drained it, and that its jobs are over.

Sources: slinky.schedmd.com, slurm-operator 1.1, NodeSet controller (Drain and Cordon; Slurm Node State Visibility);
docs.coreweave.com, SUNK, Pod Controller (Node cordon) and NodeSet.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

_GROUPS = ("slinky.slurm.net", "sunk.coreweave.com")
_NAME = ("app.kubernetes.io/name", "slurmd")
_STATE = "SlurmNodeState"
_BUSY = frozenset({"Allocated", "Mixed", "Completing"})


class SlurmState(StrEnum):
    """Slurm's state of the node that a pod is. UNKNOWN: the pod does not show it."""

    IN_SERVICE = "in service"
    DRAINING = "draining"
    DRAINED = "drained"
    UNKNOWN = "unknown"


REASON_AGAINST = {
    SlurmState.IN_SERVICE: (
        "a Slurm node that Slurm has not drained: set [orchestrator.kubernetes] cordon, so that its Slurm operator"
        " drains it, or drain it with scontrol"
    ),
    SlurmState.UNKNOWN: (
        "a Slurm node whose pod does not show whether Slurm has drained it: drain it with scontrol, then delete the pod"
    ),
}
"""Why a pod in this state is not evicted, whatever its rule says, and what an operator does."""


def is_slurm_node(kind: str, group: str, labels: Mapping[str, str]) -> bool:
    """Whether a pod with these labels, made by a controller of this kind and API group, is a Slurm node."""
    key, value = _NAME
    return (kind == "NodeSet" and group in _GROUPS) or labels.get(key) == value


def slurm_state(conditions: Mapping[str, str]) -> SlurmState:
    """By the conditions of the pod, type to status: drained is DRAIN without UNDRAIN, and no job."""
    states = {kind.removeprefix(_STATE): status for kind, status in conditions.items() if kind.startswith(_STATE)}
    shown = {name for name, status in states.items() if status == "True"}
    if not shown or "Unknown" in shown:
        return SlurmState.UNKNOWN
    if "Drain" not in shown or "Undrain" in shown:
        return SlurmState.IN_SERVICE
    return SlurmState.DRAINING if shown & _BUSY else SlurmState.DRAINED
