"""A Kubernetes Node as healthd reads it, and the patches by which it is taken out and put back. Pure.

healthd changes nothing on a Node but its own:

    taint healthd.io/unhealthy=<code>    the drain: it keeps new pods off
    taint healthd.io/claimed             the fence: the node holds a slot, and its drain is not decided for good yet
    taint healthd.io/unverified          kubelet registers with it; goes with the first full verdict
    taint healthd.io/domain-fence        the controller's alone: the fence of the node's NVLink domain
    annotation healthd.io/hold           the drain's text, owner and time, and what beside the taint is ours: a cordon,
                                         the annotations of KEEPS

``spec.taints`` is an atomic list: every patch here replaces all of it, and so carries ``metadata.resourceVersion``.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from healthd.core.encodable import NOT_JSON
from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.remediation.decide.remediation import PREFIX
from healthd.remediation.ports import Hold, NodeView
from healthd.remediation.records.domain_fence import KUBE_TAINT

UNHEALTHY, CLAIMED, UNVERIFIED = "healthd.io/unhealthy", "healthd.io/claimed", "healthd.io/unverified"
HOLD = "healthd.io/hold"

KEEPS = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""Annotations that keep autoscalers from removing a Node that is out, with the value ``true``: a node that healthd
drained is idle, and its evidence and its repair would go with its machine. A NodeClaim that is deleted on purpose goes
all the same. Sources: Cluster Autoscaler, FAQ (scale-down-disabled); Karpenter, Disruption, node-level controls
(do-not-disrupt)."""

JOBS_TOLERATE = ("nvidia.com/gpu", "amd.com/gpu", "aws.amazon.com/neuron*", "vpc.amazonaws.com/efa")
"""Taints that say what a node has, not that it is out: the jobs of every GPU fleet tolerate them. Every other taint
that keeps pods off counts as out, because only its owner knows its meaning; the setting adds to these."""

_GPUS = "nvidia.com/"  # the resources of NVIDIA's device plugin: gpu, mig-…
_KEEPS_OFF = ("NoSchedule", "NoExecute")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}\Z")
_NOT_A_LABEL = re.compile(r"[^A-Za-z0-9_.-]+")
_TEXT_CHARACTERS = 1000


Stamp = Annotated[int, msgspec.Meta(ge=0, le=99_999_999_999)]
"""Whole seconds since the epoch, up to the year 5138. The controller and other agents read a stamp that one agent
wrote, and a number that is no time must not end them."""


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """One taint. ``timeAdded`` is carried on as it was."""

    key: str
    effect: str
    value: str = ""
    timeAdded: str | None = None  # noqa: N815 - the API's own word


class Condition(msgspec.Struct, frozen=True):
    """One condition of a Node, as far as healthd reads it."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    lastTransitionTime: str | None = None  # noqa: N815 - the API's own word
    lastHeartbeatTime: str | None = None  # noqa: N815 - as above


class _NodeMeta(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's own word
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815 - as above


class _Spec(msgspec.Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None
    providerID: str = ""  # noqa: N815 - the API's own word


class _NodeInfo(msgspec.Struct, frozen=True):
    bootID: str = ""  # noqa: N815 - the API's own word


class _NodeStatus(msgspec.Struct, frozen=True):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: tuple[Condition, ...] | None = None
    nodeInfo: _NodeInfo = _NodeInfo()  # noqa: N815 - the API's own word


class _RawNode(msgspec.Struct, frozen=True):
    metadata: _NodeMeta
    spec: _Spec = _Spec()
    status: _NodeStatus = _NodeStatus()


class _Nodes(msgspec.Struct, frozen=True):
    items: tuple[_RawNode, ...]


# Made here, by one thread: two that meet a type of msgspec (0.22.0) for the first time at once crash the process, and a
# daemon has an engine and a reporter that read the same Node.
_READS_NODES = msgspec.json.Decoder(_Nodes)


class KubeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node as it was read at ``version``. ``lacking``: how many GPUs, by resource, its device plugin counts as
    unhealthy: they are in the capacity, and not allocatable."""

    name: str
    uid: str
    version: str
    labels: dict[str, str]
    annotations: dict[str, str]
    unschedulable: bool
    taints: tuple[Taint, ...]
    conditions: tuple[Condition, ...]
    provider_id: str
    deleting: bool
    boot_id: str = ""
    lacking: Mapping[str, int] = {}

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, or None."""
        return next((each for each in self.conditions if each.type == kind), None)

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet reports Ready; silence is not Ready."""
        ready = self.condition("Ready")
        return ready is not None and ready.status == "True"

    def taint(self, key: str) -> Taint | None:
        """The first taint of this key, or None."""
        return next((each for each in self.taints if each.key == key), None)


class OwnershipAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """The ownership annotation. ``stamp``: whole seconds since the epoch, by the clock of the node's own agent.

    ``cordoned``: this hold set ``unschedulable``, which was not set. ``keeps``: the same of annotations of KEEPS.
    """

    text: str
    by: str
    stamp: Stamp
    cordoned: bool = False
    keeps: tuple[str, ...] = ()

    @property
    def as_hold(self) -> Hold:
        """The hold as the ports have it."""
        return Hold(text=self.text, user=self.by, stamp=self.stamp)


_READS_HELD = msgspec.json.Decoder(OwnershipAnnotation)


def node_of(data: Mapping[str, Any]) -> KubeNode:
    """The Node in an answer of the API server. Raises BackendUnknown for anything else."""
    try:
        node = msgspec.convert(data, _RawNode)
    except msgspec.ValidationError as error:
        raise BackendUnknown(f"the API server's answer is no Node: {error}") from error
    return _made(node)


def nodes_in(page: bytes) -> tuple[KubeNode, ...]:
    """The Nodes in one page of a list, as it came. Raises msgspec.MsgspecError for anything else."""
    return tuple(_made(node) for node in _READS_NODES.decode(page).items)


def _made(node: _RawNode) -> KubeNode:
    return KubeNode(
        name=node.metadata.name,
        uid=node.metadata.uid,
        version=node.metadata.resourceVersion,
        labels=node.metadata.labels or {},
        annotations=node.metadata.annotations or {},
        unschedulable=node.spec.unschedulable,
        taints=node.spec.taints or (),
        conditions=node.status.conditions or (),
        provider_id=node.spec.providerID,
        deleting=node.metadata.deletionTimestamp is not None,
        boot_id=node.status.nodeInfo.bootID,
        lacking=_lacking(node.status.capacity or {}, node.status.allocatable or {}),
    )


def _lacking(capacity: Mapping[str, str], allocatable: Mapping[str, str]) -> dict[str, int]:
    """How many devices each resource lacks; a quantity that is no plain number is no count of devices."""
    gpus = [(name, all_) for name, all_ in capacity.items() if name.startswith(_GPUS) and all_.isdecimal()]
    counts = ((name, int(all_), allocatable.get(name, "0")) for name, all_ in gpus)
    return {name: all_ - int(left) for name, all_, left in counts if left.isdecimal() and all_ > int(left)}


# -- reading ----------------------------------------------------------------------------------------------------------


def instance_id_of(node: KubeNode) -> str:
    """The EC2 instance that the Node's providerID ends with, or "": ``aws:///us-west-2a/i-0abc…``, and HyperPod's
    ``aws:///usw2-az1/sagemaker/cluster/hyperpod-…-i-0abc…``."""
    found = _INSTANCE.search(node.provider_id)
    return found[0] if found is not None else ""


def view_of(node: KubeNode, *, tolerated: Collection[str] = (), jobs: tuple[str, ...] = ()) -> NodeView:
    """The node as the engine reads it. ``tolerated``: globs of further taints that the jobs of this fleet tolerate.

    Our hold, whole, is a drain: DRAINED. The start-up taint is the flag UNVERIFIED and no hold: a node that joins
    broken is taken out and repaired like any other.

    A Node's taints go with it: where it is registered again, under another UID, a drain was lost and not undone.
    """
    held = hold_of(node)
    undone = held is None and was_undone(node) is not None
    away = away_by(node, tolerated) - ({f"TAINTED:{UNHEALTHY}"} if undone else set())
    domain = node.taint(KUBE_TAINT)
    fenced = not away and (undone or node.taint(CLAIMED) is not None or domain is not None)
    away |= {"DRAINED"} if held is not None else set()
    flags = away | ({"UNVERIFIED"} if node.taint(UNVERIFIED) else set()) | ({"FENCED"} if fenced else set())
    return NodeView(
        name=node.name,
        in_service=not away and not fenced,
        flags=frozenset(flags),
        hold=held.as_hold if held is not None else None,
        fenced=fenced,
        jobs=jobs,
        maintenance=f"{KUBE_TAINT}={domain.value}" if domain is not None else "",
        controller=node.uid,
        features=features_of(node),
    )


def features_of(node: KubeNode) -> frozenset[str]:
    """Labels as ``key=value``; and the key alone of each label and annotation whose value is not ``false``: so the
    opt-out label, or an annotation of that name, is a feature like Slurm's."""
    notes = (*node.labels.items(), *node.annotations.items())
    keys = {key for key, value in notes if value.lower() != "false"}
    return frozenset(keys | {f"{key}={value}" for key, value in node.labels.items()})


def away_by(node: KubeNode, tolerated: Collection[str] = ()) -> set[str]:
    """The lasting reasons that keep new pods off, as flags: CORDONED, NOTREADY, DELETING, ``TAINTED:<key>``.

    Not a fence and not the start-up taint, which are ours and pass.
    """
    known = (*JOBS_TOLERATE, *tolerated, CLAIMED, UNVERIFIED, KUBE_TAINT)
    keys = {
        taint.key
        for taint in node.taints
        if taint.effect in _KEEPS_OFF and not any(fnmatch.fnmatchcase(taint.key, glob) for glob in known)
    }
    flags = {f"TAINTED:{key}" for key in keys}
    flags |= {"CORDONED"} if node.unschedulable else set()
    flags |= set() if node.is_ready else {"NOTREADY"}
    return flags | ({"DELETING"} if node.deleting else set())


def hold_of(node: KubeNode) -> OwnershipAnnotation | None:
    """Our hold, if it is there whole: taint and annotation, and the cordon where we set one.

    A taint of our key without the annotation is not ours; a hold of which the operator removed a part is undone.
    """
    held = _annotated(node)
    if held is None or node.taint(UNHEALTHY) is None or (held.cordoned and not node.unschedulable):
        return None
    return held


def was_undone(node: KubeNode) -> OwnershipAnnotation | None:
    """Our hold of which the operator lifted the cordon, and left the taint: the same command as lifting both.

    Where the operator removed the taint and left our cordon, the cordon is the operator's now.
    """
    held = _annotated(node)
    if held is None or not held.cordoned or node.unschedulable or node.taint(UNHEALTHY) is None:
        return None
    return held


def _annotated(node: KubeNode) -> OwnershipAnnotation | None:
    text = node.annotations.get(HOLD, "")
    if not text:
        return None
    try:
        return _READS_HELD.decode(text)
    except NOT_JSON:
        return None  # any client may have written this: it proves nothing


# -- writing ----------------------------------------------------------------------------------------------------------


def quarantine_patch(node: KubeNode, held: OwnershipAnnotation, *, effect: str, cordon: bool) -> dict[str, Any]:
    """The one patch that takes the node out: taint, ownership annotation and, where configured, the cordon.

    A cordon that is there already is not ours, and never lifted; so with an annotation of KEEPS. Raises BackendRefused
    for a text that is not one line, and where another client set a taint of our key.
    """
    if not held.text or not held.text.isprintable() or len(held.text) > _TEXT_CHARACTERS:
        expected = f"one line of at most {_TEXT_CHARACTERS} characters"
        raise BackendRefused(f"Node {node.name} not tainted: the reason is {held.text!r}, expected {expected}")
    if node.taint(UNHEALTHY) is not None:
        problem = f"Node {node.name} already has a taint {UNHEALTHY} that this agent did not set"
        raise BackendRefused(f"{problem}: see kubectl describe node {node.name}")
    taint = Taint(key=UNHEALTHY, effect=effect, value=taint_value(held.text))
    stale = _annotated(node)  # its taint is gone: the rest of it is still ours
    left = stale.keeps if stale is not None else ()
    keeps = tuple(key for key in KEEPS if key not in node.annotations or key in left)
    held = msgspec.structs.replace(held, cordoned=cordon and not node.unschedulable, keeps=keeps)
    spec: dict[str, Any] = {"taints": _plain((*node.taints, taint))}
    if held.cordoned:
        spec["unschedulable"] = True
    return _patch(node, annotations={HOLD: _json(held), **dict.fromkeys(keeps, "true")}, spec=spec)


def release_patch(node: KubeNode) -> dict[str, Any] | None:
    """The one patch that removes what is ours by the annotation; None where nothing is."""
    held = _annotated(node)
    if held is None:
        return None
    spec: dict[str, Any] = {"taints": _plain(taint for taint in node.taints if taint.key != UNHEALTHY)}
    if held.cordoned and node.unschedulable and node.taint(UNHEALTHY) is not None:
        spec["unschedulable"] = None
    return _patch(node, annotations=_without(node, held), spec=spec)


def _without(node: KubeNode, held: OwnershipAnnotation) -> dict[str, str | None]:
    """The annotations that go with a hold; not one that another client has changed since."""
    keeps = [key for key in KEEPS if key in held.keeps and node.annotations.get(key) == "true"]
    return dict.fromkeys((HOLD, *keeps))


def unfence_patch(node: KubeNode) -> dict[str, Any] | None:
    """The one patch that removes what keeps pods off for a slot: the fence, and the rest of a hold of which the
    operator undid a part. None where nothing is there. A hold that is whole is a drain, and a release removes it.
    """
    undone = _annotated(node) if hold_of(node) is None else None
    gone = {CLAIMED, UNHEALTHY} if undone is not None else {CLAIMED}
    kept = tuple(taint for taint in node.taints if taint.key not in gone)
    if kept == node.taints and undone is None:
        return None
    return _patch(
        node, annotations=_without(node, undone) if undone is not None else None, spec={"taints": _plain(kept)}
    )


def fence_patch(node: KubeNode) -> dict[str, Any] | None:
    """The patch that keeps new pods off while the node holds a slot; None where the fence is there."""
    if node.taint(CLAIMED) is not None:
        return None
    return _patch(node, spec={"taints": _plain((*node.taints, Taint(key=CLAIMED, effect="NoSchedule")))})


def without_taint_patch(node: KubeNode, key: str) -> dict[str, Any] | None:
    """The patch that removes a taint of ours; None where it is gone."""
    if node.taint(key) is None:
        return None
    return _patch(node, spec={"taints": _plain(taint for taint in node.taints if taint.key != key)})


def with_taints_patch(node: KubeNode, taints: Iterable[Taint]) -> dict[str, Any]:
    """The patch after which the Node has these taints."""
    return _patch(node, spec={"taints": _plain(taints)})


def without_taints(node: KubeNode, keys: Collection[str]) -> Sequence[dict[str, Any]]:
    """The Node's taints but for those of these keys, as a patch has them."""
    return _plain(taint for taint in node.taints if taint.key not in keys)


def taint_value(text: str) -> str:
    """The finding that a reason names, as a taint's value."""
    return label_value(code_in(text)) or "held"


def label_value(text: str) -> str:
    """A text as the value of a label or a taint: at most 63 letters, digits, ``-``, ``_`` and ``.``, beginning
    and ending with a letter or digit; "" where nothing is left."""
    return _NOT_A_LABEL.sub("-", text)[:63].strip("-_.")


def code_in(text: str) -> str:
    """The finding that a reason of healthd's names, or ""."""
    return text.removeprefix(PREFIX).split(" ")[0] if text.startswith(PREFIX) else ""


def rfc3339(at: datetime) -> str:
    """``2026-11-21T15:00:00Z``: whole seconds, as the API has its times."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def one_line(text: str, characters: int) -> str:
    """Text for a message that others show: printable, in one line, of at most so many characters."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= characters else f"{plain[: characters - 1]}…"


def _patch(node: KubeNode, *, spec: dict[str, Any], annotations: dict[str, str | None] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"resourceVersion": node.version}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec}


def _plain(taints: Iterable[Taint]) -> Sequence[dict[str, Any]]:
    return [msgspec.to_builtins(taint) for taint in taints]


def _json(held: OwnershipAnnotation) -> str:
    return json.dumps(msgspec.to_builtins(held), ensure_ascii=False, sort_keys=True)
