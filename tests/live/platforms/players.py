"""The platforms' own hands, played: each looks at the cluster and at AWS, and does to a node what the platform would.

A player never looks at healthd, nor at what a test expects. What a platform does is told in its class with the source;
what no source tells is marked as played. Each has the same few ways to go wrong: ``capacity`` (no new machine comes
while it is False), ``reboots`` (``ignored``: a reboot that was asked for does not happen; ``hangs``: the machine goes
down and stays down), ``brings_fault`` (a new machine has the same fault), and ``delay_s`` before each act.
"""

from __future__ import annotations

import json
import subprocess
import threading
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from tests.live.aws.aws_endpoint import DENIED_JSON
from tests.live.aws.fake_hyperpod import CLUSTER
from tests.live.platforms.platform_lab import NodeMachine, Platform
from tests.support.limits import pauses

LOOKS_EVERY_S = 0.5
NO_CAPACITY = "(Code:InsufficientInstanceCapacity)Failure when resuming nodes"
PCS_CLUSTER = "pcs_0123456789"


class Player(ABC):
    """One platform's hand on one node. ``did``: what it did, in order. ``failed``: what ended it, if anything did."""

    def __init__(self, node: NodeMachine) -> None:
        self.node, self.slurm = node, node.lab.slurm
        self.delay_s = 0.5
        self.capacity = True
        self.reboots: Literal["yes", "ignored", "hangs"] = "yes"
        self.brings_fault = False
        self.did: list[str] = []
        self.failed: Exception | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"player of {node.name}")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; what is being done is done to its end."""
        self._ending.set()
        self._thread.join()

    @abstractmethod
    def first_instance(self) -> str:
        """Make the node's first instance; returns its id."""

    @abstractmethod
    def look(self) -> None:
        """Look once, and act."""

    def _run(self) -> None:
        pause_s = pauses()
        while not self._ending.wait(max(LOOKS_EVERY_S, next(pause_s))):
            try:
                self.look()
            except subprocess.TimeoutExpired:
                continue  # slurmctld does not answer: the platform waits as everybody does
            except Exception as error:  # noqa: BLE001  told by NodeMachine.wait, in the test's own thread
                self.failed = error
                return

    # -- what platforms have in common --------------------------------------------------------------------------------

    def _reboot(self) -> None:
        """The machine boots anew, or goes wrong as it was told to."""
        self._pause()
        match self.reboots:
            case "ignored":
                self.did.append("ignored a reboot")
            case "hangs":
                self.did.append("hung in a reboot")
                self.node.power_off()
            case "yes":
                self.did.append("reboot")
                self.node.reboot()

    def _await_capacity(self) -> bool:
        """Wait until a machine can be had; False if the test ends before."""
        while not self.capacity:
            if self._ending.wait(LOOKS_EVERY_S):
                return False
        return True

    def _become(self, instance: str) -> None:
        self.did.append("another machine")
        self.node.become(instance, broken=self.brings_fault)

    def _resume(self) -> None:
        """As an administrator does; slurmctld may be away for a while."""
        while self.slurm.scontrol("update", f"nodename={self.node.name}", "state=resume").returncode:
            if self._ending.wait(LOOKS_EVERY_S):
                return
        self.did.append("resume")

    def _pause(self) -> None:
        self._ending.wait(self.delay_s)

    def _is_idle(self) -> bool:
        """No job runs on the node, and none is completing."""
        queue = self.slurm.client("squeue", "-h", "-a", "-w", self.node.name)
        return queue.returncode == 0 and not queue.stdout.strip()


class HyperPodByReason(Player):
    """HyperPod with Slurm: FAIL and the exact reason ``Action:Reboot`` or ``Action:Replace``, once no job is left.

    The node comes back under its name, put back by HyperPod (SageMaker AI Developer Guide, "Replace a faulty instance",
    2026). It needs no right of the node's, so that here the node has none.
    """

    def __init__(self, node: NodeMachine) -> None:
        super().__init__(node)
        self._seen = ""

    def first_instance(self) -> str:
        _write_resource_config(self.node)
        self.node.endpoint.always["*"] = DENIED_JSON
        return self.node.endpoint.hyperpod.add(self.node.name)

    def look(self) -> None:
        flags, reason = self.node.state()
        action = reason if "FAIL" in flags and reason in ("Action:Reboot", "Action:Replace") else ""
        if not action:
            self._seen = ""
            return
        if action == self._seen or not self._is_idle():
            return
        self._seen = action
        if action == "Action:Reboot":
            self._reboot()
            if self.reboots == "yes":
                self._resume()
        else:
            self._replace()

    def _replace(self) -> None:
        hyperpod = self.node.endpoint.hyperpod
        self._pause()
        self.node.power_off()
        self.did.append("terminate")
        hyperpod.nodes.clear()
        if self._await_capacity():
            self._become(hyperpod.add(self.node.name))
            self._resume()


class HyperPodByApi(Player):
    """HyperPod's Batch calls: a reboot keeps the instance, a replacement ends it and brings another under the name.

    In Slurm it does nothing (played: no source tells of anything; the node's state stays as it was left).
    """

    def __init__(self, node: NodeMachine) -> None:
        super().__init__(node)
        self._hyperpod = node.endpoint.hyperpod
        self._hyperpod.delay_s = self.delay_s
        self._reboots_wanted = threading.Semaphore(0)
        self._hyperpod.rebooted = lambda host: self._reboots_wanted.release()

    def first_instance(self) -> str:
        _write_resource_config(self.node)
        return self._hyperpod.add(self.node.name)

    def look(self) -> None:
        self._hyperpod.capacity = self.capacity
        self._hyperpod.answer("ListClusterNodes", {"ClusterName": CLUSTER})  # its clock goes on by being asked
        if self._reboots_wanted.acquire(blocking=False):
            self._reboot()
        now = {node.id: node.status for node in self._hyperpod.nodes}
        if now.get(self.node.instance_id) != "Running" and self.node.daemon.process is not None:
            self.did.append("terminate")
            self.node.power_off()
        for instance, status in now.items():
            if status == "Running" and instance != self.node.instance_id:
                self._become(instance)


class SlurmManaged(Player):
    """What clustermgtd does: a node that is drained, or DOWN and not in a reboot that was asked for, is replaced.

    It sets the node DOWN with a reason of its own, terminates the instance, launches another and waits
    (aws-parallelcluster-node, clustermgtd.py, ``_handle_unhealthy_static_nodes``, 2024-10). A reboot is slurmd's own.
    Played: the node is resumed when its new slurmd has registered.
    """

    manager_says = "Static node maintenance: unhealthy node is being replaced"
    tags: ClassVar[dict[str, str]] = {}

    def __init__(self, node: NodeMachine) -> None:
        super().__init__(node)
        self._rebooting = self._returns = False
        node.imds.items.update({f"tags/instance/{key}": value for key, value in self.tags.items()})

    def first_instance(self) -> str:
        return self.node.lab.account.launch(self.tags)

    def look(self) -> None:
        flags = self.node.flags()
        if "REBOOT_ISSUED" in flags:
            if not self._rebooting:
                self._rebooting = True
                self._reboot()
            return
        self._rebooting = False
        if self._returns and "DRAIN" not in flags:  # a node in replacement has its time, and slurmctld may find it late
            self._returns = "DOWN" in flags
            if self._returns:
                self._resume()
            return
        drained = "DRAIN" in flags and flags & {"IDLE", "DOWN"} and "COMPLETING" not in flags
        if (drained or "DOWN" in flags) and "REBOOT_REQUESTED" not in flags and self._is_idle():
            self._replace()

    def _replace(self) -> None:
        self._pause()
        if self.manager_says:
            self._set_down(self.manager_says)
        self.node.lab.account.terminate(self.node.instance_id)
        self.did.append("terminate")
        self.node.power_off()
        if not self.capacity and self.manager_says:
            self._set_down(NO_CAPACITY)
        if self._await_capacity():
            if self.manager_says:
                self._set_down(self.manager_says)  # with each new try
            self._become(self.node.lab.account.launch(self.tags))
            self._resume()
            self._returns = True

    def _set_down(self, reason: str) -> None:
        self.slurm.scontrol("update", f"nodename={self.node.name}", "state=down", f"reason={reason}")


class Pcs(SlurmManaged):
    """AWS PCS: a node that was drained is replaced, so is one that is DOWN (AWS PCS User Guide, 2026: log reasons
    REPLACEMENT_REQUESTED and UNHEALTHY_NODE). Played: it leaves the reason alone until the new node has registered."""

    manager_says = ""
    tags: ClassVar[dict[str, str]] = {"aws:pcs:cluster-id": PCS_CLUSTER}


class AutoScaling(Player):
    """An EC2 Auto Scaling group of one: what is terminated or unhealthy gets a substitute, which takes the node's name.

    In Slurm it does nothing. RebootInstances is EC2's.
    """

    def __init__(self, node: NodeMachine) -> None:
        super().__init__(node)
        self.group = f"group-{node.name}-{node.lab.slurm.root.name}"
        self._reboots_seen = 0
        node.imds.items["tags/instance/aws:autoscaling:groupName"] = self.group

    def first_instance(self) -> str:
        return self.node.lab.account.group(self.group)

    def look(self) -> None:
        if self._reboot_is_new():
            self._reboot()
        account, present = self.node.lab.account, self.node.instance_id
        members = {each["InstanceId"]: each["HealthStatus"] for each in account.members(self.group)}
        if members.get(present) == "Unhealthy":
            self._pause()
            account.autoscaling.terminate_instance_in_auto_scaling_group(
                InstanceId=present, ShouldDecrementDesiredCapacity=False
            )
            return
        if present in members or not members:
            return  # moto ends the one before it launches the other
        self.did.append("terminate")
        self.node.power_off()
        if self._await_capacity():
            self._pause()
            self._become(next(iter(members)))

    def _reboot_is_new(self) -> bool:
        """moto's RebootInstances leaves no trace, so the requests that were carried out are counted."""
        applied = [operation for operation, _ in list(self.node.endpoint.applied)].count("RebootInstances")
        is_new, self._reboots_seen = applied > self._reboots_seen, applied
        return is_new


class Ec2Alone(AutoScaling):
    """An instance that nobody manages: it can be rebooted. A stop and a start elsewhere are not the node's to do."""

    def __init__(self, node: NodeMachine) -> None:
        super().__init__(node)
        del node.imds.items["tags/instance/aws:autoscaling:groupName"]

    def first_instance(self) -> str:
        return self.node.lab.account.launch()

    def look(self) -> None:
        if self._reboot_is_new():
            self._reboot()


def _write_resource_config(node: NodeMachine) -> None:
    """What HyperPod leaves on its nodes (awsome-distributed-training, detect_node.sh, 2026-06)."""
    config = {"ClusterConfig": {"ClusterName": "demo", "ClusterArn": CLUSTER}, "InstanceGroups": []}
    (node.folder / "resource_config.json").write_text(json.dumps(config))


HYPERPOD_BY_REASON = Platform(
    name="hyperpod by reason",
    player=HyperPodByReason,
    settings={"provisioner.kind": "auto", "provisioner.hyperpod.resource_config": "{folder}/resource_config.json"},
    reboot="Action:Reboot",
    replace="Action:Replace",
    drains=True,
)
HYPERPOD_BY_API = Platform(
    name="hyperpod by api",
    player=HyperPodByApi,
    settings={**HYPERPOD_BY_REASON.settings, "provisioner.hyperpod.how": "api"},
    reboot="BatchRebootClusterNodes",
    replace="BatchReplaceClusterNodes",
    drains=True,
)
PARALLELCLUSTER = Platform(
    name="parallelcluster",
    player=SlurmManaged,
    settings={"provisioner.kind": "parallelcluster"},
    reboot="scontrol reboot",
    replace="drain that replaces",
    drains=False,
)
PCS = Platform(
    name="pcs",
    player=Pcs,
    settings={"provisioner.kind": "auto"},
    reboot="scontrol reboot",
    replace="drain that replaces",
    drains=False,
)
AUTOSCALING = Platform(
    name="autoscaling",
    player=AutoScaling,
    settings={"provisioner.kind": "auto"},
    reboot="RebootInstances",
    replace="TerminateInstanceInAutoScalingGroup",
    drains=True,
)
AUTOSCALING_SOFTLY = Platform(
    name="autoscaling softly",
    player=AutoScaling,
    settings={"provisioner.kind": "auto", "provisioner.autoscaling.replace": "unhealthy"},
    reboot="RebootInstances",
    replace="SetInstanceHealth",
    drains=True,
)
EC2 = Platform(
    name="ec2",
    player=Ec2Alone,
    settings={"provisioner.kind": "auto"},
    reboot="RebootInstances",
    replace="",
    drains=True,
)
PLATFORMS = (HYPERPOD_BY_REASON, HYPERPOD_BY_API, PARALLELCLUSTER, PCS, AUTOSCALING, AUTOSCALING_SOFTLY, EC2)
