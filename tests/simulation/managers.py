"""The node managers of a simulated Slurm cluster: clustermgtd of AWS ParallelCluster, PCS, and HyperPod's agent.

Production's provisioners ask them, by scontrol's own words. clustermgtd and PCS replace every node that is drained or
down, also under an administrator's drain (aws-parallelcluster-node, clustermgtd.py and slurm_resources.py, 2024-10):
a loop of a minute that reads, and acts on what it read a while later; a static node whose machine could not be launched
is down, and launched again in the next loop; one that did not come up within half an hour is replaced once more.
HyperPod acts on its own two reasons alone (SageMaker AI Developer Guide, "Replace a faulty instance", 2026).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, Literal

from healthd.config.schema.provisioner import AwsSection
from healthd.core.errors import BackendRefused
from healthd.core.model import Remedy
from healthd.core.node import CommandResult
from healthd.remediation.ports import Hold, Provisioner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.hyperpod import HyperPodProvisioner
from healthd.remediation.provisioners.platform_reads import Paced
from healthd.remediation.provisioners.slurm_managed import SlurmManagedProvisioner
from healthd.remediation.provisioners.slurm_node import ACTION_REBOOT, ACTION_REPLACE, MANAGERS_TEXTS, OUR_TEXTS
from healthd.remediation.provisioners.target_node import TargetNode
from tests.simulation.node import Node
from tests.simulation.slurm import US, Slurm
from tests.simulation.timeline import Timeline

Kind = Literal["parallelcluster", "pcs", "hyperpod"]
KINDS: tuple[Kind, ...] = ("parallelcluster", "pcs", "hyperpod")
HOUR = 3600.0
LOOP_S, REPLACEMENT_TIMEOUT_S, RESUME_TIMEOUT_S = 60.0, 1800.0, 1800.0
(_TEXT,) = MANAGERS_TEXTS
_REBOOT_FLAGS = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED"})


class NodeManager:
    """``random`` is its own. A node of its cluster never powers down by itself."""

    def __init__(self, kind: Kind, slurm: Slurm, timeline: Timeline, nodes: Mapping[str, Node], random: Random) -> None:
        self.kind, self._slurm, self._timeline, self._nodes, self._random = kind, slurm, timeline, nodes, random
        self._launched_s: dict[str, float] = {}
        """When another machine was launched for a name that is not up yet."""
        self._rebooting: set[str] = set()
        self._requested: set[str] = set()
        """The nodes whose reboot slurmctld still has to issue."""
        self._no_capacity_until_s = 0.0

    @property
    def drain_replaces(self) -> bool:
        """Whether every drain costs the machine."""
        return self.kind != "hyperpod"

    def begin(self) -> None:
        self._timeline.after(LOOP_S, self._loop)

    # -- what healthd has of it ---------------------------------------------------------------------------------------

    def provisioner(self, name: str, instance: str, made_by_us: Callable[[str], bool]) -> Provisioner:
        """Of the node's own daemon, as ``open_provisioner`` makes it."""
        subject = TargetNode(node=name, instance_id=instance)
        return Paced(self._of(subject, made_by_us), every_s=AwsSection().poll_s, monotonic_s=self._timeline)

    def elsewhere(self, name: str) -> Provisioner:
        """Of the controller, as ``open_elsewhere`` makes it: HyperPod is asked by its API there."""
        subject = TargetNode(node=name, here=False, instance_id=self._nodes[name].instance)
        return self._of(subject, OUR_TEXTS.__contains__)

    def _of(self, subject: TargetNode, made_by_us: Callable[[str], bool]) -> Provisioner:
        aws, scontrol = Aws(region="us-west-2", run=self._aws), partial(self._scontrol, subject.node)
        if self.kind == "hyperpod":
            return HyperPodProvisioner(
                subject=subject,
                aws=aws,
                cluster="c1",
                scontrol=scontrol,
                by_api=not subject.here,
                made_by_us=made_by_us,
            )
        return SlurmManagedProvisioner(
            kind=self.kind, manager="its manager", subject=subject, aws=aws, scontrol=scontrol
        )

    def _scontrol(self, asker: str, *args: str) -> str:
        words = dict(each.partition("=")[::2] for each in args if "=" in each)
        match args:
            case ("-o", "show", "node", name):
                self._slurm.ask()
                return self._shown(name)
            case ("-o", "show", "reservation"):
                self._slurm.ask()
                return "\n".join(
                    f"ReservationName=healthd-{scope}-{index} StartTime=1 Nodes={node} NodeCnt=1 "
                    for (scope, index), node in sorted(self._slurm.slots.items())
                )
            case ("reboot", "ASAP", "nextstate=RESUME", _, name) if name == asker:
                self._nodes[name].asked(Remedy.REBOOT_NODE)
                self._slurm.or_later(partial(self._requests_reboot, name, words["reason"]))
                self._requests_reboot(name, words["reason"])
            case ("update", _, _, _) if words["nodename"] == asker:
                is_reboot = words["reason"] == ACTION_REBOOT
                self._nodes[asker].asked(Remedy.REBOOT_NODE if is_reboot else Remedy.REPLACE_NODE)
                self._slurm.update(asker, words["state"], words["reason"], user=US)
            case _:
                raise BackendRefused(f"scontrol {' '.join(args)}: not simulated")
        return ""

    def _shown(self, name: str) -> str:
        node = self._slurm.nodes[name]
        base = "DOWN" if "DOWN" in node.flags else "ALLOCATED" if node.jobs else "IDLE"
        is_fenced = name in self._slurm.slots.values() or name in self._slurm.maintenance
        state = "+".join([base, *sorted(node.flags - {"DOWN"}), *(["MAINTENANCE", "RESERVED"] if is_fenced else [])])
        hold = node.hold
        reason = f" Reason={hold.text} [{hold.user}@2026-01-01T00:00:00]" if hold is not None else ""
        booted = int(self._slurm.boots[name].timestamp())
        return (
            f"NodeName={name} Arch=x86_64 State={state} ActiveFeatures=(null) "
            f"NodeAddr={self._nodes[name].address} BootTime={booted}{reason}"
        )

    def _aws(self, argv: tuple[str, ...], *, timeout_s: float, **more: Any) -> CommandResult:
        question = json.loads(more["input"])
        answer = self._described(question["operation"], question["parameters"])
        return CommandResult(
            argv=argv, code=0, stdout=json.dumps({"answer": answer}), stderr="", duration_s=timeout_s / 100
        )

    def _described(self, operation: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        match operation:
            case "DescribeInstances":
                (address,) = asked["Filters"][0]["Values"]
                found = [each.instance for each in self._living() if each.address == address]
                shown = [{"InstanceId": instance, "State": {"Name": "running"}} for instance in found]
                return {"Reservations": [{"Instances": shown}]}
            case "DescribeClusterNode":
                details = [_summary(each) for each in self._living() if each.instance == asked["NodeId"]]
                return {"NodeDetails": details[0] if details else {"InstanceStatus": {"Status": "NotFound"}}}
            case "BatchRebootClusterNodes" | "BatchReplaceClusterNodes":
                (instance,) = asked["NodeIds"]
                found_here = [each for each in self._living() if each.instance == instance]
                if not found_here:
                    return {"Failed": [{"NodeId": instance, "ErrorCode": "InstanceIdNotFound", "Message": ""}]}
                self._acts_by_api(found_here[0].name, operation)
                return {"Successful": [instance]}
            case _:  # ListClusterNodes
                return {"ClusterNodeSummaries": [_summary(each) for each in self._living()]}

    def _acts_by_api(self, name: str, operation: str) -> None:
        is_reboot = operation == "BatchRebootClusterNodes"
        self._nodes[name].asked(Remedy.REBOOT_NODE if is_reboot else Remedy.REPLACE_NODE)
        act = partial(self._hyperpod_reboots if is_reboot else self._replaces, name)
        self._timeline.after(self._random.uniform(5.0, 45.0), act)

    def _living(self) -> Iterator[Node]:
        return (each for each in self._nodes.values() if each.has_instance)

    # -- a reboot by Slurm --------------------------------------------------------------------------------------------

    def _requests_reboot(self, name: str, reason: str) -> None:
        """``scontrol reboot ASAP``: no job starts any more, and the node reboots once those that run have ended."""
        node = self._slurm.nodes[name]
        node.flags |= {"DRAIN", "REBOOT_REQUESTED"}
        node.hold = node.hold or Hold(text=reason, user=US, stamp=int(self._slurm.wall.seconds()))
        self._nodes[name].note("slurmctld: reboot requested")
        self._slurm.touched(name)
        self._will_issue(name, 5.0)

    def _will_issue(self, name: str, after_s: float) -> None:
        self._requested.add(name)
        self._timeline.after(after_s, lambda: self._issues_reboot(name))

    def _issues_reboot(self, name: str) -> None:
        node, slurm = self._nodes[name], self._slurm
        shown = slurm.nodes[name]
        self._requested.discard(name)
        if "REBOOT_REQUESTED" not in shown.flags:
            return
        if slurm.hung or shown.jobs or not node.up:  # asked of a machine that went down before: it stays asked
            self._will_issue(name, 30.0)
            return
        shown.flags.discard("REBOOT_REQUESTED")
        shown.flags |= {"DRAIN", "REBOOT_ISSUED"}
        slurm.touched(name)
        self._reboots(name, until_s=self._timeline.s + RESUME_TIMEOUT_S)

    def _reboots(self, name: str, *, until_s: float) -> None:
        node, boot = self._nodes[name], self._nodes[name].boots
        self._rebooting.add(name)
        node.reboots()

        def looks() -> None:
            if node.boots != boot and node.up:
                self._rebooting.discard(name)
                self._is_back(name)
            elif self._timeline.s < until_s:
                self._timeline.after(10.0, looks)
            else:
                self._rebooting.discard(name)
                self._timed_out(name)

        self._timeline.after(10.0, looks)

    def _goes_on_with_reboot(self, name: str) -> None:
        """What a slurmctld that was killed knows of a reboot from its saved state: one that was asked for is issued,
        and one that is over by now ends."""
        flags = self._slurm.nodes[name].flags
        if "REBOOT_REQUESTED" in flags and name not in self._requested:
            self._will_issue(name, 5.0)
        if "REBOOT_ISSUED" in flags and name not in self._rebooting and self._nodes[name].up:
            self._is_back(name)

    def _is_back(self, name: str) -> None:
        """``nextstate=RESUME``: whatever drain there is by now is wiped."""
        self._slurm.people(name, "resume", user="slurm")

    def _timed_out(self, name: str) -> None:
        shown = self._slurm.nodes[name]
        if "REBOOT_ISSUED" in shown.flags:
            shown.flags -= _REBOOT_FLAGS
            shown.flags.add("DOWN")
            text = f"{shown.hold.text} : reboot timed out" if shown.hold is not None else "reboot timed out"
            shown.hold = Hold(text=text, user="slurm", stamp=int(self._slurm.wall.seconds()))
            self._slurm.touched(name)

    # -- its loop -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        self._timeline.after(LOOP_S, self._loop)
        if self._slurm.hung or self._random.random() < 0.01:  # neither slurmctld nor EC2 may be silent
            return
        for name in sorted(self._nodes):
            self._goes_on_with_reboot(name)
            if (act := self._due(name)) is not None:
                self._timeline.after(self._random.uniform(5.0, 45.0), act)

    def _due(self, name: str) -> Callable[[], None] | None:
        """What it does about a node as Slurm shows it now; it acts on that later, without another look."""
        shown, launched_s = self._slurm.nodes[name], self._launched_s.get(name)
        is_late = launched_s is not None and self._timeline.s - launched_s >= REPLACEMENT_TIMEOUT_S
        if launched_s is not None and (self.kind == "hyperpod" or not is_late):
            return None
        if self.kind == "hyperpod" and name in self._rebooting:
            return None
        if self.kind == "hyperpod":
            text = shown.hold.text if shown.hold is not None and shown.flags & {"FAIL", "DOWN"} else ""
            acts = {ACTION_REBOOT: lambda: self._hyperpod_reboots(name), ACTION_REPLACE: lambda: self._replaces(name)}
            return acts.get(text)
        is_drained = "DRAIN" in shown.flags and not shown.jobs
        is_down = bool(shown.flags & {"DOWN", "FAIL"})
        return partial(self._replaces, name) if (is_drained or is_down) and not shown.flags & _REBOOT_FLAGS else None

    def _hyperpod_reboots(self, name: str) -> None:
        if self._nodes[name].up and name not in self._rebooting:
            self._reboots(name, until_s=self._timeline.s + HOUR)

    def _replaces(self, name: str) -> None:
        """The node is set down and its machine ends; another is launched, unless there is no capacity."""
        if self.drain_replaces:
            self._slurm.people(name, "down", _TEXT, user="root")
        node, s = self._nodes[name], self._timeline.s
        if node.has_instance and self._random.random() < 0.05:
            self._no_capacity_until_s = s + self._random.uniform(0.2 * HOUR, 5 * HOUR)
        node.loses_instance()
        wait_s = max(0.0, self._no_capacity_until_s - s) if self.kind == "hyperpod" else 0.0
        if not wait_s and s < self._no_capacity_until_s:
            return  # down, and seen again in the next loop
        self._launched_s[name] = s
        takes_s = wait_s + self._random.uniform(120.0, 900.0)
        if self.kind == "hyperpod" or self._random.random() > 0.03:  # else it fails while it boots
            self._timeline.after(takes_s, lambda: self._comes_up(name, s))

    def _comes_up(self, name: str, launched_s: float) -> None:
        if self._launched_s.get(name) == launched_s:
            del self._launched_s[name]
            self._nodes[name].another_comes()
            self._is_back(name)


def _summary(node: Node) -> dict[str, Any]:
    return {
        "InstanceId": node.instance,
        "PrivateDnsHostname": node.name,
        "InstanceStatus": {"Status": "Running"},
        "LaunchTime": "2026-01-01T00:00:00+00:00",
    }
