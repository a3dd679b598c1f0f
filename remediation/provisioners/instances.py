"""EC2 instances looked up: by id, or by the address behind a node's name."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from healthd.core.errors import BackendUnknown
from healthd.remediation.provisioners.aws import Aws

REBOOT_SHOWS_S = 600.0
"""How long after RebootInstances a node that still answers from the same boot shows that there was no such request.

EC2 only queues it, and reboots an instance hard that has not shut down within a few minutes (EC2 API Reference,
2016-11-15, RebootInstances); it is not among the idempotent actions (EC2 Developer Guide, "Ensuring idempotency",
2026). A second request that comes too soon could reboot a node which has come back from the first one, and has jobs
again."""

_LIVE = ("pending", "running", "stopping", "stopped")
_NAMED_BY_ADDRESS = re.compile(r"ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})(\..*)?")


class NoInstance(BackendUnknown):
    """EC2 answered that no live instance has this address."""


def by_id(aws: Aws, instance: str) -> Mapping[str, Any]:
    """One instance. Raises as Aws.call: BackendRefused where EC2 has none of that id (InvalidInstanceID.NotFound, from
    about an hour after its end)."""
    found = _instances(aws.call("ec2", "DescribeInstances", InstanceIds=[instance]))
    if len(found) != 1:
        raise BackendUnknown(f"ec2:DescribeInstances: expected one instance {instance}, got {len(found)}")
    return found[0]


def at_address(aws: Aws, address: str, *, tag: tuple[str, str] | None = None, own: str = "") -> Mapping[str, Any]:
    """The one live instance at a private address, or at the address in a name such as ip-10-1-2-3.

    ``own`` wins where several networks have the address. Raises NoInstance where there is none, BackendUnknown where
    there are several, and as Aws.call.
    """
    ip = address_of(address)
    filters = [{"Name": "private-ip-address", "Values": [ip]}, {"Name": "instance-state-name", "Values": list(_LIVE)}]
    if tag:
        filters.append({"Name": f"tag:{tag[0]}", "Values": [tag[1]]})
    found = _instances(aws.call("ec2", "DescribeInstances", Filters=filters))
    if not found:
        raise NoInstance(f"ec2:DescribeInstances: no instance has the address {ip} now")
    if len(found) > 1:
        found = [each for each in found if each["InstanceId"] == own]
    if len(found) != 1:
        raise BackendUnknown(f"ec2:DescribeInstances: no single instance has the address {ip} now")
    return found[0]


def address_of(text: str) -> str:
    """The IP address that is, or is in, ``text``. Raises BackendUnknown."""
    named = _NAMED_BY_ADDRESS.fullmatch(text)
    try:
        return str(ipaddress.ip_address(".".join(named.groups()[:4]) if named else text))
    except ValueError as error:
        wrong = f"{text!r} is neither an address nor a name made of one, such as ip-10-1-2-3"
        raise BackendUnknown(f"cannot look up the node's instance: {wrong}") from error


def id_of(instance: Mapping[str, Any]) -> str:
    """Its id."""
    return str(instance["InstanceId"])


def state_of(instance: Mapping[str, Any]) -> str:
    """``running``, ``stopped``, …"""
    return str((instance.get("State") or {}).get("Name", ""))


def tags_of(instance: Mapping[str, Any]) -> Mapping[str, str]:
    """Its tags."""
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags") or []}


def managed_by(instance: Mapping[str, Any]) -> str:
    """The AWS service that manages this instance, and that healthd must leave it to, or ""."""
    operator = instance.get("Operator") or {}
    return str(operator.get("Principal") or "an AWS service") if operator.get("Managed") else ""


def _instances(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [instance for each in answer.get("Reservations", []) for instance in each.get("Instances", [])]
