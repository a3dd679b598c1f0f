"""Who owns the machine behind a name, one class a platform and repair: what it was asked for, what it does to the node.

What each platform does is as in ``players``, with the sources there. These do it on demand, so that the boundaries of
a life are the same each time: a life is a line, and not a race.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from tests.live.aws.aws_endpoint import REGION, AwsEndpoint
from tests.live.platforms.platform_lab import Account
from tests.live.slurm.slurm_lab import LabError, SlurmLab
from tests.support.limits import limit_s, pauses

_NEVER_S = 1e9
_PASSING = ("MAINTENANCE", "RESERVED", "NOT_RESPONDING")  # the last one shows for seconds after every undrain
_numbers = itertools.count(1)


class Record(Struct, frozen=True, kw_only=True):
    """A node as slurmctld shows it: state without marks that come and go, and the reason without its stamp."""

    state: str
    reason: str


class Site(Struct, frozen=True, kw_only=True):
    """The cluster and the account that all lives share. ``tools``: Slurm's clients, with a scontrol that is counted."""

    lab: SlurmLab
    tools: Path
    moto: tuple[str, int]
    account: Account

    def wait(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait without keeping slurmctld busy. Raises LabError."""
        end_s, pause_s = time.monotonic() + limit_s(within_s), pauses()
        while not condition():
            if time.monotonic() > end_s:
                raise LabError(f"waited {limit_s(within_s):g} s for {what}\n{self.lab.log_tail()}")
            time.sleep(max(0.1, next(pause_s)))

    def line(self, node: str) -> str:
        """The node's record in one line."""
        return self.lab.scontrol("-o", "show", "node", node).stdout

    def record(self, node: str) -> Record:
        """State and reason of a node."""
        line = self.line(node)
        flags = [word.rstrip("*~#!%$@^-") for word in line.partition(" State=")[2].partition(" ")[0].split("+")]
        reason = re.search(r" Reason=(.*?) \[[^\[\]]*\]", line)
        state = "+".join(flag for flag in flags if flag not in _PASSING)
        stands = {"IDLE", "MIXED", "ALLOCATED"}.issuperset(state.split("+"))
        return Record(
            state=state, reason=reason[1] if reason and not stands else ""
        )  # 24.11 keeps that of one that is back

    def slots_of(self, node: str) -> tuple[str, ...]:
        """The reservations of healthd on a node."""
        lines = self.lab.scontrol("-o", "show", "reservation").stdout.splitlines()
        names = [line.split()[0].partition("=")[2] for line in lines if f" Nodes={node} " in line]
        return tuple(name for name in names if name.startswith("healthd-"))

    def resumes(self, node: str) -> None:
        """The platform puts the node back."""
        self.lab.update(node, "state=resume")
        self.wait(lambda: self.record(node).state == "IDLE", 30, f"{node} to be idle")

    def sweep(self, node: str) -> None:
        """Nothing of the life before is left on a node, whatever became of it."""
        for slot in self.slots_of(node):
            self.lab.scontrol("delete", "reservation", slot)
        self.lab.scontrol("cancel_reboot", node)
        self.lab.update(node, "state=idle", "comment=")
        self.wait(lambda: self.record(node).state == "IDLE", 60, f"{node} to be clean")


class Owner:
    """The platform behind one node's name, for one life of it. By itself it owns nothing: a machine in a cellar.

    ``asks``: what stands for one request of a reboot or a replacement, in the endpoint's operations or in the words of
    a scontrol. ``replaces``: whether it is another machine that is asked for. ``in_full``: slurmd is started anew also
    where Slurm shows the same afterwards, because the platform resumes the node.
    """

    kind: ClassVar[str] = "none"
    more: ClassVar[str] = ""
    asks: ClassVar[str] = ""
    replaces: ClassVar[bool] = False

    def __init__(self, site: Site, node: str, folder: Path, *, in_full: bool) -> None:
        self.site, self.node, self._folder, self._in_full = site, node, folder, in_full
        self.endpoint = AwsEndpoint(moto=site.moto)
        self._stack = ExitStack()
        self._stack.enter_context(self.endpoint.serving())
        self.instance = ""

    def close(self) -> None:
        """Serve no more."""
        self._stack.close()

    def provisioner(self) -> str:
        """The configuration's ``[provisioner]``."""
        where = f'region = "{REGION}"\nendpoint_url = "{self.endpoint.url}"'
        # No call of these lives hangs: each is answered, however busy moto is with the lives beside it.
        aws = f"[provisioner.aws]\n{where}\npoll_s = 0.1\ntimeout_s = {limit_s(6.0)}\n"
        return f'kind = "{self.kind}"\n{aws}{self.more}'

    def launches(self) -> str:
        """Another instance is behind the name, and the one before is gone; returns its id."""
        self.instance = f"i-{next(_numbers):017x}"
        return self.instance

    def asked(self) -> int:
        """How many requests for it came, whether they were carried out or not."""
        operations = [operation for operation, _ in list(self.endpoint.requests)]
        return operations.count(self.asks) + sum(self.asks in call for call in self.scontrol_calls())

    def acts(self) -> None:
        """What becomes of the node in Slurm. The machine itself has changed by now; its slurmd has not."""
        self.site.lab.reboot(self.node)

    def _boots_and_is_resumed(self) -> None:
        if self._in_full:
            self.site.lab.reboot(self.node)
        self.site.resumes(self.node)

    def scontrol_calls(self) -> list[str]:
        """Every scontrol of this life's agents, as it was really run."""
        path = self._folder / "scontrol"
        return path.read_text().splitlines() if path.exists() else []


class Nobody(Owner):
    """No platform: the GPUs are reset on the node itself, and that is what is counted."""

    def asked(self) -> int:
        path = self._folder / "resets"
        return len(path.read_text().splitlines()) if path.exists() else 0


class HyperPod(Owner):
    """By Slurm's reasons: it acts upon the exact text, and puts the node back."""

    kind = "hyperpod"
    more = '[provisioner.hyperpod]\ncluster = "demo"\n'
    asks = "state=fail reason=Action:Reboot"

    def launches(self) -> str:
        hyperpod = self.endpoint.hyperpod
        hyperpod.delay_s = _NEVER_S  # a new instance comes when this class says so
        hyperpod.nodes.clear()
        self.instance = hyperpod.add(self.node)
        return self.instance

    def acts(self) -> None:
        record = self.site.record(self.node)
        assert "FAIL" in record.state, record
        assert record.reason == self.asks.partition("reason=")[2], record
        self._boots_and_is_resumed()


class HyperPodReplaces(HyperPod):
    asks = "state=fail reason=Action:Replace"
    replaces = True


class HyperPodByApi(HyperPod):
    """By the Batch calls: in Slurm it does nothing."""

    more = '[provisioner.hyperpod]\ncluster = "demo"\nhow = "api"\n'
    asks = "BatchRebootClusterNodes"

    def acts(self) -> None:
        self.site.lab.reboot(self.node)


class HyperPodReplacesByApi(HyperPodByApi):
    asks = "BatchReplaceClusterNodes"
    replaces = True


class _InEc2(Owner):
    def launches(self) -> str:
        if self.instance:
            self.site.account.terminate(self.instance)
        self.instance = self.site.account.launch()
        return self.instance


class ParallelCluster(_InEc2):
    """slurmctld reboots the node and puts it back; clustermgtd keeps out of it."""

    kind = "parallelcluster"
    asks = "reboot ASAP"

    def acts(self) -> None:
        self.site.wait(lambda: "REBOOT_ISSUED" in self.site.record(self.node).state, 30, "the reboot to be issued")
        self.site.lab.reboot(self.node)
        self.site.wait(lambda: self.site.record(self.node).state == "IDLE", 60, f"{self.node} to be idle")


class ParallelClusterReplaces(_InEc2):
    """What is drained is set down by clustermgtd, replaced, and put back."""

    kind = "parallelcluster"
    asks = "state=drain reason=healthd: to be replaced"
    replaces = True
    managers_reason: ClassVar[str] = "Static node maintenance: unhealthy node is being replaced"

    def acts(self) -> None:
        assert "DRAIN" in self.site.record(self.node).state, self.site.record(self.node)
        if self.managers_reason:
            self.site.lab.update(self.node, "state=down", f"reason={self.managers_reason}")
        self._boots_and_is_resumed()


class Pcs(ParallelCluster):
    kind = "pcs"


class PcsReplaces(ParallelClusterReplaces):
    """As clustermgtd, but it leaves the reason alone."""

    kind = "pcs"
    managers_reason = ""


class Ec2(_InEc2):
    """EC2's own reboot: our drain stays as it is, and Slurm sees a boot that it did not expect."""

    kind = "ec2"
    asks = "RebootInstances"


class AutoScalingReplaces(Owner):
    """A group of one: what is ended gets a substitute, which takes the node's name. In Slurm it does nothing."""

    kind = "autoscaling"
    asks = "TerminateInstanceInAutoScalingGroup"
    replaces = True

    def launches(self) -> str:
        account = self.site.account
        if not self.instance:
            self._group = f"group-{next(_numbers)}"
            self.instance = account.group(self._group)
            return self.instance
        (member,) = (each["InstanceId"] for each in account.members(self._group))
        if member == self.instance:  # nobody has asked: it is ended by somebody else
            account.autoscaling.terminate_instance_in_auto_scaling_group(
                InstanceId=member, ShouldDecrementDesiredCapacity=False
            )
            (member,) = (each["InstanceId"] for each in account.members(self._group))
        self.instance = member
        return self.instance
