"""An EC2 instance without another manager: RebootInstances, and, where set, a move to another host by stop and start.

A moved instance keeps its id, so ``machine`` appends the time of its launch: only a start changes it. It must not stop
an instance that could not be started again, or that would lose its capacity meanwhile.

Amazon EC2 User Guide, "Stop and start", "Capacity Reservations", "Capacity Blocks for ML" (2026): a Capacity Block
returns freed capacity after minutes of cleaning, and no launch into it succeeds near its end; any matching launch of
the account may take freed capacity of an open reservation; Spot and Dedicated Hosts have rules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from healthd.core.errors import BackendBusy, BackendDenied, BackendError, BackendHalfDone, BackendRefused
from healthd.core.model import Remedy
from healthd.remediation.ports import StateOwner
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.instances import (
    REBOOT_SHOWS_S,
    at_address,
    by_id,
    id_of,
    managed_by,
    state_of,
    tags_of,
)
from healthd.remediation.provisioners.platform_reads import before_acting
from healthd.remediation.provisioners.target_node import TargetNode

StopAndStart = Literal["never", "reserved", "always"]


class Ec2Provisioner:
    """One instance. ``address``: the node's address in Slurm, for the controller; raises BackendUnknown. None: the
    node's own name must contain it, where no instance id is known."""

    kind = "ec2"
    state_owner = StateOwner.ENGINE
    delegates = acts_late = False

    def __init__(
        self,
        *,
        subject: TargetNode,
        aws: Aws,
        stop_and_start: StopAndStart = "never",
        address: Callable[[], str] | None = None,
    ) -> None:
        self._subject, self._aws, self._stop_and_start, self._address = subject, aws, stop_and_start, address

    def reason_against(self, remedy: Remedy) -> str:
        if why := self._subject.reason_against(remedy):
            return why
        if remedy is Remedy.REPLACE_NODE and self._stop_and_start == "never":
            return "a move to another host loses the instance store: see [provisioner.ec2] stop_and_start"
        if remedy is Remedy.REPLACE_NODE and self._subject.here:
            return "a stopped node cannot start itself: set [provisioner] act_from = controller"
        return ""

    def stands_down(self) -> str:
        """Why healthd leaves the instance alone, or "": AWS manages it, or it is changing its state."""
        try:
            instance = self._instance()
        except BackendError as error:
            return f"unknown whether an AWS service manages this instance: {error}"
        if manager := managed_by(instance):
            return f"{manager} manages {id_of(instance)}, and healthd leaves it alone"
        state = state_of(instance)
        return "" if state == "running" else f"{id_of(instance)} is {state} already"

    def machine(self) -> str:
        """The instance id; where it may be moved, with the time of its launch. Without rights at EC2, the node's own.

        The controller looks it up by the node's address in Slurm, where another instance may be by now.
        """
        try:
            instance = self._instance() if self._subject.here else self._at_its_address()
        except BackendDenied:
            if self._subject.here:
                return self._subject.instance_id
            raise
        return f"{id_of(instance)}@{instance['LaunchTime']}" if self.moves else id_of(instance)

    def reboot(self) -> None:
        """Asynchronous; after a few minutes without a shutdown EC2 reboots the instance hard."""
        self._aws.call("ec2", "RebootInstances", InstanceIds=[self._target()])

    def replace(self) -> None:
        """Stop the instance, if it can be started again. ``progress`` starts it."""
        if why := self.reason_against(Remedy.REPLACE_NODE):
            raise BackendRefused(f"no move to another host: {why}")
        with before_acting():
            instance = self._instance()
            if state_of(instance) in ("stopping", "stopped"):
                return
            self._must_start_again(instance)
        self._aws.call("ec2", "StopInstances", InstanceIds=[id_of(instance)])

    def repeats_after_s(self, remedy: Remedy) -> float | None:
        """A stop at once: ``replace`` reads the state first, and a moved instance has another launch time. A reboot is
        queued by EC2 and shows in no state: see ``REBOOT_SHOWS_S``."""
        return REBOOT_SHOWS_S if remedy is Remedy.REBOOT_NODE else 0.0

    def take_back(self, *, carried_out: bool) -> bool:
        """A call to AWS cannot be taken back."""
        return False

    def progress(self) -> str:
        """The state of the instance at EC2; and the second half of a move, which is safe to repeat at every poll.

        Raises BackendHalfDone for an instance that healthd stopped and that could not be started.
        """
        try:
            instance = self._instance()
        except BackendDenied:
            return ""
        if state_of(instance) in ("terminated", "shutting-down"):
            raise BackendRefused(f"{id_of(instance)} is {state_of(instance)}: it will not come back")
        if self.moves and state_of(instance) == "stopped":
            return self._start(id_of(instance), failed_launch(instance))
        return f"EC2: {id_of(instance)} {state_of(instance)}{self._checks(id_of(instance))}"

    def dry_run(self, remedy: Remedy) -> str:
        """EC2's own answer to a dry run. Raises as the act would."""
        if why := self.reason_against(remedy):
            raise BackendRefused(why)
        if remedy is Remedy.REBOOT_NODE:
            return self._aws.would("ec2", "RebootInstances", InstanceIds=[self._target()])
        instance = self._instance()
        self._must_start_again(instance)
        return self._aws.would("ec2", "StopInstances", InstanceIds=[id_of(instance)])

    @property
    def moves(self) -> bool:
        """Whether the instance may be moved to another host; it keeps its id then."""
        return not self.reason_against(Remedy.REPLACE_NODE)

    def _must_start_again(self, instance: Mapping[str, Any]) -> None:
        """Raise BackendError for an instance that could not be started again, or not by healthd: it must not stop."""
        if why := no_stop_reason(
            instance, self._reservation(instance), self._stop_and_start == "always", datetime.now(UTC)
        ):
            raise BackendRefused(f"{id_of(instance)} not stopped: {why}")
        self._aws.would("ec2", "StartInstances", InstanceIds=[id_of(instance)])

    def _start(self, instance: str, failed: str) -> str:
        try:
            self._aws.call("ec2", "StartInstances", InstanceIds=[instance])
        except BackendRefused as error:
            match error:
                case BackendDenied():
                    message = "healthd may not start it: start it yourself"
                case BackendBusy():
                    message = "it could not be started yet, healthd tries again"
                case _:
                    message = "EC2 refuses to start it, healthd tries again: remove the cause, or start it yourself"
            raise BackendHalfDone(f"{instance} is stopped, and {message}: {error}") from error
        if failed:
            message = "its last start failed, healthd tries again: remove the cause, or start it yourself"
            raise BackendHalfDone(f"{instance} is stopped, and {message}: {failed}")
        return f"EC2: {instance} is stopped, start requested"

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
        """The instance that is acted upon."""
        if self._subject.instance_id:
            return by_id(self._aws, self._subject.instance_id)
        return self._at_its_address()

    def _at_its_address(self) -> Mapping[str, Any]:
        """The instance behind the node's name now. On Kubernetes the caller reads it from the Node instead."""
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


NEAR_END = timedelta(hours=2)
"""How long a reservation must still last. A move takes minutes; the rest of the reservation must be worth the move."""

_GROUP = "aws:autoscaling:groupName"
_FAILED_LAUNCH = frozenset(  # EC2 API Reference, 2016-11-15, StateReason: those of a launch
    {
        "Client.InternalError",
        "Client.InvalidSnapshot.NotFound",
        "Client.VolumeLimitExceeded",
        "Server.InsufficientInstanceCapacity",
        "Server.InternalError",
    }
)


def no_stop_reason(
    instance: Mapping[str, Any], reservation: Mapping[str, Any] | None, at_any_risk: bool, now: datetime
) -> str:
    """Why the instance must not be stopped to be started elsewhere, or "". ``at_any_risk``: capacity may be lost."""
    return _of_its_kind(instance) or (
        ("" if at_any_risk else "it has no capacity reservation, and its capacity could be lost")
        if reservation is None
        else _of_its_reservation(reservation, at_any_risk, now)
    )


def failed_launch(instance: Mapping[str, Any]) -> str:
    """Why EC2 stopped this instance again after it had accepted its start, or "": a key of KMS that the caller has no
    right to shows in no other way."""
    reason = instance.get("StateReason") or {}
    return str(reason.get("Message", "")) if reason.get("Code") in _FAILED_LAUNCH else ""


def _of_its_kind(instance: Mapping[str, Any]) -> str:
    if manager := managed_by(instance):
        return f"{manager} manages it"
    if lifecycle := instance.get("InstanceLifecycle"):
        return f"its lifecycle is {lifecycle}, and only an On-Demand instance can always be started again"
    if group := tags_of(instance).get(_GROUP):
        return f"the Auto Scaling group {group} would take it for broken: set [provisioner] kind = autoscaling"
    if instance.get("RootDeviceType", "ebs") != "ebs":
        return f"its root device is {instance['RootDeviceType']}: it can be terminated only"
    if (instance.get("Placement") or {}).get("Tenancy") == "host":
        return "it is on a Dedicated Host, and would start on the same one"
    return ""


def _of_its_reservation(reservation: Mapping[str, Any], at_any_risk: bool, now: datetime) -> str:
    name, state = reservation["CapacityReservationId"], reservation.get("State")
    if reservation.get("ReservationType") == "capacity-block":
        return f"{name} is a Capacity Block, which returns freed capacity late: stop and start the instance yourself"
    if state != "active":
        return f"its reservation {name} is {state}"
    end = reservation.get("EndDate")
    if end and datetime.fromisoformat(str(end)) - now < NEAR_END:
        return f"its reservation {name} ends at {end}, within {NEAR_END.total_seconds() / 3600:g} hours"
    is_open = reservation.get("InstanceMatchCriteria") == "open"
    if is_open and not reservation.get("AvailableInstanceCount") and not at_any_risk:
        return f"its reservation {name} is open and full: any launch of the account could take its capacity"
    return ""
