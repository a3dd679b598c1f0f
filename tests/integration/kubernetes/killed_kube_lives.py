"""Plays lives of a case on a real API server, with a kill -9 in each: what all share, and a node's agent.

This side starts the processes (``killed_process``), sees how they ended, plays whoever else has a part (the controller,
the agent, HyperPod, Karpenter, the kubelet), and counts from outside: writes at a proxy, calls at AWS's endpoint.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from healthd.model import Remedy
from healthd.remediation.marks import Answer, CaseMark, parse
from healthd.remediation.orchestrators.kubernetes import KubernetesOrchestrator
from healthd.store import Store
from tests.integration.aws.aws_endpoint import REGION
from tests.integration.aws.fake_hyperpod import CLUSTER
from tests.integration.kubernetes.agent_rig import administrator, write_kubeconfig
from tests.integration.kubernetes.control_plane import NAMESPACE, ControlPlane
from tests.integration.kubernetes.fault_proxy import FaultProxy
from tests.integration.platforms.killed_agent import Order, Rest
from tests.integration.platforms.killed_lives import LONGER_THAN_ANY_TIMEOUT_S, MACHINE_TYPE, Nursery

_PROCESSES = 14  # of one life; more than that is a loop
_ORPHAN_ENDS_WITHIN_S = 20.0
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Where a life ended, as it is seen from outside. ``counted``: what must not be done twice, and how often it was.
    ``ends`` and ``open_case``: in the store of the agent that is there now."""

    left: tuple[str, ...]
    counted: tuple[tuple[str, int], ...]
    ends: tuple[str, ...] = ()
    open_case: bool = False


@dataclass
class Stage:
    """One lane: a proxy, an endpoint, a nursery; one life after the other is played on it. ``kubelet``: a socket at
    which no pod holds anything."""

    plane: ControlPlane
    proxy: FaultProxy
    nursery: Nursery
    folder: Path
    kubelet: Path

    def notes(self, lease: str, namespace: str) -> dict[str, str]:
        """The annotations of a Lease; none where it is missing."""
        answer = self.plane.admin.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{lease}")
        return dict(answer.must()["metadata"].get("annotations") or {}) if answer.status != 404 else {}

    def writes(self, since: int, words: str, *, path: str = "") -> int:
        """How many writes the server carried out by way of the proxy, whose body matches."""
        mine = self.proxy.seen[since:]
        return sum(
            1
            for each in mine
            if each.applied and each.method != "GET" and re.search(words, each.body) and re.search(path, each.path)
        )


@dataclass
class Life(ABC):
    """One life. ``folder`` holds ``passed``, ``said``, ``time``, ``rest`` and the machines m1, m2, …

    ``killed_at``: the boundary's name, and which of that name it was.
    """

    stage: Stage
    name: str
    killed_at: tuple[str, int] | None = None
    folder: Path = field(init=False)
    machines: int = 0
    since: int = 0

    def __post_init__(self) -> None:
        number = next(_numbers)
        self.node = f"{self.name}-{number}"
        self.folder = self.stage.folder / f"{number}-{self.name}"
        self.folder.mkdir()
        (self.folder / "time").write_text(str(float(int(time.time()))))
        self.since = len(self.stage.proxy.seen)
        self.begins()

    @property
    def machine(self) -> Path:
        """The folder of the machine, or of the controller's pod, that is there now."""
        return self.folder / f"m{self.machines}"

    def passed(self) -> list[str]:
        """Every boundary so far."""
        path = self.folder / "passed"
        return path.read_text().splitlines() if path.exists() else []

    def told(self) -> str:
        """What was said, for whoever reads a failure."""
        lines = (self.folder / "said").read_text().splitlines() if (self.folder / "said").exists() else []
        return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line != before)

    def play(self, *, die_at: str = "", occurrence: int = 1, empty_store: bool = False) -> Ending:
        """To the end, with a kill at a boundary of this name. ``empty_store``: then another machine goes on."""
        for _ in range(_PROCESSES):
            rest = self._live("" if self.killed_at else die_at, occurrence)
            if rest is None:
                if empty_store:
                    self.is_followed()
            elif not self.goes_on(rest):
                break
        return self.ending()

    def _live(self, die_at: str, occurrence: int) -> Rest | None:
        order = Order(story=str(self.folder), machine=str(self.machine), die_at=die_at, occurrence=occurrence)
        ended = self.stage.nursery.live(order)
        if ended["code"]:
            raise AssertionError(f"the process broke:\n{(self.folder / 'broke').read_text()}\n{self.told()}")
        if ended["signal"]:
            last = self.passed()[-1]
            self.killed_at = (last, self.passed().count(last))
            if last.startswith("during "):
                ended_file = self.folder / "orphan-ended"
                self.stage.plane.wait(ended_file.exists, _ORPHAN_ENDS_WITHIN_S, "the orphan's end")
            return None
        return Rest(**json.loads((self.folder / "rest").read_text()))

    @abstractmethod
    def begins(self) -> None:
        """What is there before the first process."""

    @abstractmethod
    def is_followed(self) -> None:
        """Another machine, or another controller, with nothing on its disk."""

    @abstractmethod
    def goes_on(self, rest: Rest) -> bool:
        """The others play their parts; False at the end of the life."""

    @abstractmethod
    def ending(self) -> Ending:
        """Where it ended."""

    @abstractmethod
    def close(self) -> None:
        """Nothing of it is left for the next."""


# ---------------------------------------------------------------------------------------------------------------------
# the agent


@dataclass
class AgentLife(Life):
    """A node breaks, is taken out, mended by whoever it is, proves itself and is let in. ``code`` and ``remedy``: of
    what it has; ``provisioner``: the kind, which asks the controller."""

    code: ClassVar[str] = "gpu.xid.79"
    remedy: ClassVar[str] = "reboot_node"
    provisioner: ClassVar[str] = "hyperpod"
    answered: int = 0

    def begins(self) -> None:
        self.stage.plane.add_node(self.node)
        account = self.folder / "account"
        ca_file = self.stage.proxy.certs / "apiserver.crt"
        url = self.stage.proxy.url
        self._kubeconfig = write_kubeconfig(self.stage.plane, self.node, account, url=url, ca_file=ca_file)
        self.another_machine()
        (self.machine / "fault").write_text(f"{self.code} {self.remedy}\n")

    def another_machine(self) -> None:
        """A healthy one with an empty disk."""
        self.machines += 1
        dmi = self.machine / "sys/devices/virtual/dmi/id"
        for folder in (dmi, self.machine / "proc/sys/kernel/random", self.machine / "dev", self.machine / "bin"):
            folder.mkdir(parents=True)
        instance = f"i-{next(_numbers):017x}"
        for name, text in (("sys_vendor", "Amazon EC2"), ("product_name", MACHINE_TYPE), ("board_asset_tag", instance)):
            (dmi / name).write_text(f"{text}\n")
        self._boots()
        (self.machine / "config.toml").write_text(self._configuration())

    def _boots(self) -> None:
        (self.machine / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")

    def is_followed(self) -> None:
        self.another_machine()

    def goes_on(self, rest: Rest) -> bool:
        """Whoever mends the node does so when it was asked, and not before; without anybody to ask, somebody does."""
        mark = self._mark()
        if mark is not None and mark.asks and mark.answer is None:
            self._is_answered(mark)
        elif rest.phase == "intended" and rest.step in ("reboot", "replace"):
            now = float((self.folder / "time").read_text())
            (self.folder / "time").write_text(str(now + LONGER_THAN_ANY_TIMEOUT_S))
        elif not rest.step and not rest.calling:
            return False
        elif self.provisioner == "none" and rest.step == "verify":
            (self.machine / "fault").unlink(missing_ok=True)
        return True

    def _is_answered(self, mark: CaseMark) -> None:
        """As ``healthd controller`` answers, and HyperPod does what it was asked for."""
        self.answered += 1
        is_new = mark.remedy is Remedy.REPLACE_NODE
        done = replace(mark, answer=Answer.TAKEN, answered=datetime.now(UTC), replaced=datetime.now(UTC))
        afar = with_rights(self.stage.plane, self.node)
        afar.mark((done if is_new else replace(done, replaced=None)).text)
        afar.close()
        if is_new:
            self.another_machine()
        else:
            self._boots()
            (self.machine / "fault").unlink(missing_ok=True)

    def _mark(self) -> CaseMark | None:
        noted = self.stage.notes("healthd-marks", NAMESPACE).get(f"mark.healthd.io/{self.node}")
        return parse(json.loads(noted)["text"]) if noted else None

    def ending(self) -> Ending:
        node = self.stage.plane.admin.get(f"/api/v1/nodes/{self.node}").must()
        claim = f"claim.healthd.io/{self.node}" in self.stage.notes("healthd-budget", NAMESPACE)
        mark = self._mark()
        store = Store(self.machine / "state/healthd.db", now=datetime.now(UTC))
        try:
            cases, still_open = store.cases(), store.open_case()
        finally:
            store.close()
        here = f"^/api/v1/nodes/{self.node}($|[?])"
        return Ending(
            left=(
                *(taint["key"] for taint in node["spec"].get("taints", ())),
                *node["metadata"].get("annotations", {}),
                *(["claim"] if claim else []),
                *(["request"] if mark is not None and mark.asks and mark.answer is None else []),
            ),
            counted=(
                ("answered", self.answered),
                ("taint", self.stage.writes(self.since, r'healthd\.io/hold": ?"', path=here)),
                ("release", self.stage.writes(self.since, r'healthd\.io/hold": ?null', path=here)),
            ),
            ends=tuple(str(case.end) for case in cases),
            open_case=still_open is not None,
        )

    def close(self) -> None:
        """A life that went wrong must not hold a place that the next ones need."""
        key = {"metadata": {"annotations": {f"claim.healthd.io/{self.node}": None}}}
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
        self.stage.plane.admin.patch(f"{leases}/healthd-budget", key, kind="merge").must()
        self.stage.plane.admin.delete(f"/api/v1/nodes/{self.node}").must()

    def _configuration(self) -> str:
        return f"""
[node]
name = "{self.node}"
[daemon]
state_dir = "{self.machine}/state"
[sources]
sys_root = "{self.machine}/sys"
proc_root = "{self.machine}/proc"
dev_root = "{self.machine}/dev"
[orchestrator]
kind = "kubernetes"
[orchestrator.kubernetes]
kubeconfig = "{self._kubeconfig}"
pod_resources = "{self.stage.kubelet}"
[budget]
max_out = "100%"
settle_s = 0.01
replacements_per_hour = 100_000
[policy]
same_fault_nodes = 100_000
[remediation]
mode = "repair"
opt_out_file = ""
settle_s = 5.0
verify_timeout_s = 10_000.0
reboot_timeout_s = 10_000.0
replace_timeout_s = 10_000.0
reset_services = []
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
    """Nobody can mend the node from here: it is out until somebody has."""

    provisioner = "none"


class ReplaceLife(AgentLife):
    """Another machine comes behind the name."""

    code, remedy = "gpu.remap.failure", "replace_node"


def with_rights(plane: ControlPlane, node: str, namespace: str = NAMESPACE) -> KubernetesOrchestrator:
    """A node's Orchestrator with the administrator's rights, which asks anew each time."""
    return administrator(plane, node, namespace=namespace, timeout_s=10.0, lately_s=0.0)
