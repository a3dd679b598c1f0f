"""Asks EC2 where instances stand in its network: one call for all of them, page by page.

EC2 describes a tree from the top layer of switches to the one that an instance is connected to, and for an UltraServer
the Capacity Block that is its NVLink domain; instances of other types than it supports are not in the answer (Amazon
EC2 User Guide, "Amazon EC2 topology", 2026). No list of instances is sent, because one that has gone fails a whole
list.
"""

from __future__ import annotations

from msgspec import Struct

from healthd.remediation.provisioners.aws import Aws


class InstancePlace(Struct, frozen=True, kw_only=True):
    """Where an instance stands. ``network``: its network nodes, the top layer first. ``capacity_block``: of an
    UltraServer; "" for none, or not known yet."""

    network: tuple[str, ...] = ()
    capacity_block: str = ""


def read_topology(aws: Aws) -> dict[str, InstancePlace]:
    """The place of each instance that EC2 describes, by instance id. Raises BackendError as ``Aws.call`` does."""
    answer = aws.call("ec2", "DescribeInstanceTopology")
    return {
        str(each["InstanceId"]): InstancePlace(
            network=tuple(map(str, each.get("NetworkNodes") or ())),
            capacity_block=str(each.get("CapacityBlockId") or ""),
        )
        for each in answer.get("Instances", ())
        if each.get("InstanceId")
    }
