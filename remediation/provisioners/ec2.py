"""An EC2 instance that nobody else manages: RebootInstances, and by setting a move to another host by stop and start.

A moved instance keeps its id, so what ``machine`` says has the time of its launch behind it: only a start changes it.
It must not stop what could not be started again: see ``stopping``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from healthd.core.errors import BackendBusy, BackendDenied, BackendError, BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.instances import REBOOT_SHOWS_S, at_address, by_id, id_of, managed_by, state_of
from healthd.remediation.provisioners.looking import before_acting
from healthd.remediation.provisioners.stopping import why_not_stop
from healthd.remediation.provisioners.subject import Subject

StopAndStart = Literal["never", "reserved", "always"]


class Ec2Provisioner:
    """One instance. ``address``: where Slurm has the node, for a look from elsewhere; raises BackendUnknown. None: the
    node's own name must say, where no instance id is known."""

    kind = "ec2"
    state_owner = StateOwner.ENGINE
    delegates = False

    def __init__(
        self,
        *,
        subject: Subject,
        aws: Aws,
        stop_and_start: StopAndStart = "never",
        address: Callable[[], str] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._subject, self._aws, self._stop_and_start = subject, aws, stop_and_start
        self._address, self._clock = address, clock

    def why_not(self, remedy: Remedy) -> str:
        """Why this remedy cannot be carried out here, or ""."""
        if why := self._subject.why_not(remedy):
            return why
        if remedy is Remedy.REPLACE_NODE and self._stop_and_start == "never":
            return "a move to another host loses the instance store: see [provisioner.ec2] stop_and_start"
        if remedy is Remedy.REPLACE_NODE and self._subject.here:
            return "a stopped node cannot start itself: `healthd controller` can"
        return ""

    def stands_down(self) -> str:
        """Instances that AWS manages are left to it; so is one that is on its way to another state."""
        try:
            instance = self._instance()
        except BackendError as error:
            return f"it cannot be told whether somebody else manages this instance: {error}"
        if manager := managed_by(instance):
            return f"{id_of(instance)} is managed by {manager}, and is left to it"
        state = state_of(instance)
        return "" if state == "running" else f"{id_of(instance)} is {state} already"

    def machine(self) -> str:
        """The instance id; where it may be moved, with the time of its launch. Our own where EC2 may not be asked.

        From elsewhere it is looked up where Slurm has the node: another one may be there than was asked about.
        """
        try:
            instance = self._instance() if self._subject.here else self._at_its_address()
        except BackendDenied:
            if self._subject.here:
                return self._subject.instance_id
            raise
        return f"{id_of(instance)}@{instance['LaunchTime']}" if self.moves else id_of(instance)

    def reboot(self) -> None:
        """Asynchronous; after a few minutes without a shutdown EC2 does it the hard way."""
        self._aws.call("ec2", "RebootInstances", InstanceIds=[self._target()])

    def replace(self) -> None:
        """Stop it, if it can be started again. ``progress`` starts it."""
        if why := self.why_not(Remedy.REPLACE_NODE):
            raise BackendRefused(f"no move to another host: {why}")
        with before_acting():
            instance = self._instance()
            if state_of(instance) in ("stopping", "stopped"):
                return
            self._must_start_again(instance)
        self._aws.call("ec2", "StopInstances", InstanceIds=[id_of(instance)])

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """A stop at once: ``replace`` looks at the state first, and whoever has moved has another launch time. A reboot
        is queued by EC2 and shows in no state: see ``REBOOT_SHOWS_S``."""
        return REBOOT_SHOWS_S if remedy is Remedy.REBOOT_NODE else 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """A call to AWS cannot be taken back."""
        return False

    def progress(self) -> str:
        """What EC2 says; and the second half of a move, which is safe to ask for as often as it is looked at.

        Raises BackendBusy for an instance that is stopped and may not be started: a person has to.
        """
        try:
            instance = self._instance()
        except BackendDenied:
            return ""
        if state_of(instance) in ("terminated", "shutting-down"):
            raise BackendRefused(f"{id_of(instance)} is {state_of(instance)}: it will not come back")
        if self.moves and state_of(instance) == "stopped":
            return self._start(id_of(instance))
        return f"EC2: {id_of(instance)} {state_of(instance)}{self._checks(id_of(instance))}"

    def dry_run(self, remedy: Remedy) -> str:
        """What EC2 itself says to a dry run. Raises as the act would."""
        if why := self.why_not(remedy):
            raise BackendRefused(why)
        if remedy is Remedy.REBOOT_NODE:
            return self._aws.would("ec2", "RebootInstances", InstanceIds=[self._target()])
        instance = self._instance()
        self._must_start_again(instance)
        return self._aws.would("ec2", "StopInstances", InstanceIds=[id_of(instance)])

    @property
    def moves(self) -> bool:
        """Whether it may be moved to another host, and keeps its id then."""
        return not self.why_not(Remedy.REPLACE_NODE)

    def _must_start_again(self, instance: Mapping[str, Any]) -> None:
        """What could not be started again, or not by us, must not be stopped. Raises BackendError."""
        if why := why_not_stop(instance, self._reservation(instance), self._stop_and_start == "always", self._clock()):
            raise BackendRefused(f"{id_of(instance)} is not stopped: {why}")
        self._aws.would("ec2", "StartInstances", InstanceIds=[id_of(instance)])

    def _start(self, instance: str) -> str:
        try:
            self._aws.call("ec2", "StartInstances", InstanceIds=[instance])
        except BackendDenied as error:
            raise BackendBusy(f"{instance} is stopped, and may not be started: {error}") from error
        except BackendBusy as error:
            return f"EC2: {instance} is stopped and could not be started yet, it is tried again: {error}"
        return f"EC2: {instance} was stopped, and its start is asked for"

    def _checks(self, instance: str) -> str:
        try:
            answer = self._aws.call("ec2", "DescribeInstanceStatus", InstanceIds=[instance])
        except BackendDenied:
            return ""
        for each in answer.get("InstanceStatuses", []):
            system, own = (each.get(name, {}).get("Status", "") for name in ("SystemStatus", "InstanceStatus"))
            return f", system check {system}, instance check {own}"
        return ""

    def _instance(self) -> Mapping[str, Any]:
        """The one that is acted upon."""
        if self._subject.instance_id:
            return by_id(self._aws, self._subject.instance_id)
        return self._at_its_address()

    def _at_its_address(self) -> Mapping[str, Any]:
        """The one behind the node's name now. Where nobody but a Node knows, that is for whoever reads the Node."""
        if self._address is None and self._subject.instance_id:
            return by_id(self._aws, self._subject.instance_id)
        return at_address(self._aws, self._address() if self._address else self._subject.node)

    def _target(self) -> str:
        return self._subject.instance_id or id_of(self._instance())

    def _reservation(self, instance: Mapping[str, Any]) -> Mapping[str, Any] | None:
        reservation = instance.get("CapacityReservationId")
        if not reservation:
            return None
        answer = self._aws.call("ec2", "DescribeCapacityReservations", CapacityReservationIds=[reservation])
        found = answer.get("CapacityReservations", [])
        return found[0] if found else {"CapacityReservationId": reservation, "State": "not to be found"}
