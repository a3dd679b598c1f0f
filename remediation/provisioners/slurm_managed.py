"""AWS ParallelCluster and AWS PCS: their node manager replaces every node that is drained or down.

So a drain is never a quarantine here: the slot's reservation alone fences the node, and the drain is the replacement.
For the same cause a reboot returns with ``nextstate=RESUME``: the manager would replace a node that is DOWN even for a
moment after the boot (aws-parallelcluster-node, slurm_resources.py, is_state_healthy: only REBOOT_REQUESTED and
REBOOT_ISSUED are spared), and while our reservation is there no job can start on the node that came back. It must not
reboot by EC2, which PCS takes for an unhealthy node (AWS PCS User Guide, 2026).
"""

from __future__ import annotations

import re

from healthd.core.errors import BackendDenied, BackendError, BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.instances import at_address, id_of
from healthd.remediation.provisioners.platform_reads import before_acting
from healthd.remediation.provisioners.slurm_node import (
    REBOOT_TEXT,
    REPLACE_TEXT,
    Scontrol,
    SlurmNode,
    is_ours,
    our_slot,
    read_node,
)
from healthd.remediation.provisioners.target_node import TargetNode

_POWER = ("POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWERING_UP")
_GONE = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING"})
# How clustermgtd begins its own reasons (aws-parallelcluster-node, clustermgtd.py, 2024-10).
_MANAGERS_TEXT = "Node failing "
_NO_CAPACITY = "(Code:"
# ParallelCluster's names of nodes that exist only while a job needs them (aws-parallelcluster-node, parse_nodename).
_DYNAMIC = re.compile(r"[a-z0-9-]+-dy-[a-z0-9-]+-\d+")


class SlurmManagedProvisioner:
    """One compute node of ParallelCluster or PCS. ``manager``: the name of the node manager in messages.

    ``tag``: key and value that all instances of this cluster have, so that another network's same address is not taken
    for ours. ``fixed``: why no remedy is possible for this node, such as a head node, or "".
    """

    state_owner = StateOwner.PLATFORM
    delegates = acts_late = False

    def __init__(
        self,
        *,
        kind: str,
        manager: str,
        subject: TargetNode,
        aws: Aws,
        scontrol: Scontrol,
        tag: tuple[str, str] | None = None,
        fixed: str = "",
    ) -> None:
        self.kind, self._manager, self._subject, self._aws = kind, manager, subject, aws
        self._scontrol, self._tag, self._fixed = scontrol, tag, fixed

    def reason_against(self, remedy: Remedy) -> str:
        if remedy is Remedy.REPLACE_NODE and self.kind == "parallelcluster" and _DYNAMIC.fullmatch(self._subject.node):
            why = "is a dynamic node: another machine comes only for a job, which our reservation keeps off"
            command = f"scontrol update nodename={self._subject.node} state=power_down_force"
            return f"{self._subject.node} {why}; end it yourself: {command}"
        return self._fixed or self._subject.reason_against(remedy)

    def stands_down(self) -> str:
        """Why the manager acts on this node already, or ""."""
        try:
            node = self._node()
        except BackendError as error:
            return f"unknown whether {self._manager} acts on this node already: {error}"
        if node.flags.intersection(_POWER) or node.reason.startswith(_MANAGERS_TEXT):
            return f"{self._manager} acts on {self._subject.node} already: {_shown(node)}"
        return ""

    def machine(self) -> str:
        """The instance at the node's address in Slurm; without rights at EC2, the node's own."""
        own = self._subject.instance_id if self._subject.here else ""
        try:
            return id_of(at_address(self._aws, self._node().address or self._subject.node, tag=self._tag, own=own))
        except BackendDenied:
            if own:
                return own
            raise

    def reboot(self) -> None:
        """``scontrol reboot ASAP nextstate=RESUME``, behind our reservation only; a reboot in progress is not requested
        again."""
        node, fenced = self._last_look()
        if node.rebooting:
            return
        if node.flags & _GONE:
            whose = (
                "it is being replaced"
                if is_ours(node.reason)
                else "a reboot would wipe a state that healthd did not set"
            )
            raise BackendRefused(f"no reboot of {self._subject.node}: {_shown(node)}: {whose}")
        if not fenced:
            wrong = "no reservation of healthd fences it, and jobs would start on it before it is verified"
            raise BackendRefused(f"no reboot of {self._subject.node}: {wrong}")
        self._scontrol("reboot", "ASAP", "nextstate=RESUME", f"reason={REBOOT_TEXT}", self._subject.node)

    def replace(self) -> None:
        """Drain the node, behind our reservation only: the drain is the end of the machine, and without our slot the
        budget does not count it. A drain of ours that is there already serves; another drain is not touched.
        """
        node, fenced = self._last_look()
        if node.flags & _GONE:
            if is_ours(node.reason):
                return
            raise BackendRefused(
                f"no drain of {self._subject.node}: a drain that is not healthd's is in place: {_shown(node)}"
            )
        if not fenced:
            wrong = "no reservation of healthd fences it, and it would be replaced without a slot in the budget"
            raise BackendRefused(f"no drain of {self._subject.node}: {wrong}")
        self._scontrol("update", f"nodename={self._subject.node}", "state=drain", f"reason={REPLACE_TEXT}")

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """At once: slurmctld shows a reboot and a drain that it has accepted, and either act reads the state first."""
        return 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """The drain is the request, and the engine undoes it."""
        return False

    def progress(self) -> str:
        """Slurm's state of the node; its reason shows a lack of capacity."""
        node = self._node()
        if node.reason.startswith(_NO_CAPACITY):
            return f"{self._manager} has no capacity yet: {node.reason}"
        return f"Slurm shows {_shown(node)}"

    def dry_run(self, remedy: Remedy) -> str:
        """The command that would be run. Slurm has no dry run."""
        name = self._subject.node
        command = {
            Remedy.REBOOT_NODE: f'scontrol reboot ASAP nextstate=RESUME reason="{REBOOT_TEXT}" {name}',
            Remedy.REPLACE_NODE: f'scontrol update nodename={name} state=drain reason="{REPLACE_TEXT}"',
        }[remedy]
        return f"{command}; Slurm has no dry run"

    def _last_look(self) -> tuple[SlurmNode, str]:
        """The node right before an act, and our slot that fences it, or "". Raises BackendBusy, BackendRefused."""
        with before_acting():
            return self._node(), our_slot(self._scontrol, self._subject.node)

    def _node(self) -> SlurmNode:
        return read_node(self._scontrol, self._subject.node)


def _shown(node: SlurmNode) -> str:
    return node.state + (f' "{node.reason}"' if node.reason else "")
