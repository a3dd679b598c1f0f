"""Plays lives of a remediation on a real API server, with a kill -9 in each: what all share, and a node's agent.

This side (``killing``) starts the processes (``killed_process``), plays whoever else has a part (the controller, the
agent, HyperPod, Karpenter, the kubelet), and counts from outside: writes at a proxy, calls at AWS's endpoint.
"""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.records.handoff import HandoffRecord, RequestAnswer, parse
from tests.live.aws.aws_endpoint import REGION
from tests.live.aws.fake_hyperpod import CLUSTER
from tests.live.kubernetes.agent_rig import administrator, write_kubeconfig
from tests.live.kubernetes.control_plane import LEASES, NAMESPACE, ControlPlane
from tests.live.kubernetes.fault_proxy import FaultProxy
from tests.live.platforms.killed_agent import Rest
from tests.support.killing import Life, Nursery

_numbers = itertools.count(1)


class Ending(Struct, frozen=True, kw_only=True):
    """Where a life ended, as it is seen from outside. ``counted``: what must not be done twice, and how often it was.
    ``ends`` and ``open_remediation``: in the store of the agent that is there now."""

    left: tuple[str, ...]
    counted: tuple[tuple[str, int], ...]
    ends: tuple[str, ...] = ()
    open_remediation: bool = False


class Stage(Struct):
    """One lane: a proxy, an endpoint; one life after the other is played on it. ``kubelet``: a socket at
    which no pod holds anything. ``nursery``: None where nobody is killed. ``moto``: where moto's server is, for who
    needs EC2."""

    plane: ControlPlane
    proxy: FaultProxy
    folder: Path
    nursery: Nursery | None = None
    kubelet: Path = Path("/nonexistent")
    moto: tuple[str, int] = ("127.0.0.1", 9)

    def writes(self, since: int, words: str, *, path: str = "") -> int:
        """How many writes the server carried out by way of the proxy, whose body matches."""
        mine = self.proxy.seen[since:]
        return sum(
            1
            for each in mine
            if each.applied and each.method != "GET" and re.search(words, each.body) and re.search(path, each.path)
        )


class KubeLife(Life[Ending]):
    """One life on a stage, on a node of its own."""

    def __init__(self, stage: Stage, name: str) -> None:
        number = next(_numbers)
        super().__init__(f"{name}-{number}", stage.folder / f"{number}-{name}", stage.nursery)
        self.stage, self.since = stage, len(stage.proxy.seen)
        self.begins()

    @abstractmethod
    def begins(self) -> None:
        """What is there before the first process."""


# ---------------------------------------------------------------------------------------------------------------------
# the agent


class AgentLife(KubeLife):
    """A node breaks, is drained, repaired, proves itself and returns to service. ``code`` and ``remedy``: of
    what it has; ``provisioner``: the kind, which asks the controller."""

    code: ClassVar[str] = "gpu.xid.79"
    remedy: ClassVar[str] = "reboot_node"
    provisioner: ClassVar[str] = "hyperpod"
    answered = 0

    def begins(self) -> None:
        self.stage.plane.add_node(self.node)
        account = self.folder / "account"
        ca_file = self.stage.proxy.certs / "apiserver.crt"
        url = self.stage.proxy.url
        self._kubeconfig = write_kubeconfig(self.stage.plane, self.node, account, url=url, ca_file=ca_file)
        self.is_followed()
        self.breaks(self.code, self.remedy)

    def is_followed(self) -> None:
        self.new_machine(f"i-{next(_numbers):017x}")

    def goes_on(self, rest: Rest) -> bool:
        """Whoever mends the node does so when it was asked, and not before; without anybody to ask, somebody does."""
        record = self.record()
        if record is not None and record.asks and record.answer is None:
            self.is_answered(record)
        elif rest.phase == "intended" and rest.step in ("reboot", "replace"):
            self.waits_in_vain()
        elif not rest.step and not rest.calling:
            return False
        elif self.provisioner == "none" and rest.step == "verify":
            self.is_repaired()
        return True

    def is_answered(self, record: HandoffRecord) -> None:
        """As ``healthd controller`` answers, and HyperPod does what it was asked for."""
        self.answered += 1
        is_new = record.remedy is Remedy.REPLACE_NODE
        record = self.as_begun(record)
        done = replace(record, answer=RequestAnswer.TAKEN, answered=datetime.now(UTC), replaced=datetime.now(UTC))
        afar = with_rights(self.stage.plane, self.node)
        afar.write_record((done if is_new else replace(done, replaced=None)).text)
        afar.close()
        if is_new:
            self.is_followed()
        else:
            self.boots()
            self.is_repaired()

    def as_begun(self, record: HandoffRecord) -> HandoffRecord:
        """The record with the entry in its history that the controller makes, where a life depends on it."""
        return record

    def asks(self) -> bool:
        """Whether the node asks for something that has no answer yet."""
        record = self.record()
        return record is not None and record.asks and record.answer is None

    def record(self) -> HandoffRecord | None:
        """The node's handoff record."""
        return parse(self.stage.plane.records().get(self.node, ""))

    def ending(self) -> Ending:
        node = self.stage.plane.admin.get(f"/api/v1/nodes/{self.node}").must()
        claim = self.node in self.stage.plane.claims()
        record, (ends, is_open) = self.record(), self.in_store()
        here = f"^/api/v1/nodes/{self.node}($|[?])"
        return Ending(
            left=(
                *(taint["key"] for taint in node["spec"].get("taints", ())),
                *node["metadata"].get("annotations", {}),
                *(["claim"] if claim else []),
                *(["request"] if record is not None and record.asks and record.answer is None else []),
            ),
            counted=(
                ("answered", self.answered),
                ("taint", self.stage.writes(self.since, r'healthd\.io/hold": ?"', path=here)),
                ("release", self.stage.writes(self.since, r'healthd\.io/hold": ?null', path=here)),
            ),
            ends=ends,
            open_remediation=is_open,
        )

    def close(self) -> None:
        """A life that went wrong must not hold a place that the next ones need."""
        key = {"metadata": {"annotations": {f"claim.healthd.io/{self.node}": None}}}
        self.stage.plane.admin.patch(f"{LEASES}/healthd-budget", key, kind="merge").must()
        self.stage.plane.admin.delete(f"/api/v1/nodes/{self.node}").must()

    def configuration(self) -> str:
        return f"""{self.sections()}
[orchestrator]
kind = "kubernetes"
[orchestrator.kubernetes]
kubeconfig = "{self._kubeconfig}"
pod_resources = "{self.stage.kubelet}"
[provisioner]
kind = "{self.provisioner}"
act_from = "controller"
[provisioner.aws]
region = "{REGION}"
[provisioner.hyperpod]
cluster = "{CLUSTER}"
how = "api"
"""


class QuarantineLife(AgentLife):
    """No repair is possible from here: the node is out until an operator has made one."""

    provisioner = "none"


class ReplaceLife(AgentLife):
    """Another machine comes behind the name."""

    code, remedy = "gpu.remap.failure", "replace_node"


def with_rights(plane: ControlPlane, node: str, namespace: str = NAMESPACE) -> KubernetesOrchestrator:
    """A node's Orchestrator with the administrator's rights, which asks anew each time."""
    return administrator(plane, node, namespace=namespace, timeout_s=10.0, lately_s=0.0)
