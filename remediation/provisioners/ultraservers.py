"""Asks SageMaker for the account's UltraServers: their health, and the instances that are in use, unhealthy or spare.

Only a reserved capacity of a training plan lists its UltraServers (Amazon SageMaker API Reference,
ListUltraServersByReservedCapacity, 2026); those that run on demand are in no answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from healthd.core.errors import BackendUnknown
from healthd.remediation.provisioners.aws import Aws

_ACTIVE = "Active"


class UltraServerHealth(StrEnum):
    """SageMaker's own words, in lower case: with ``-`` as ``_``."""

    OK = "ok"
    IMPAIRED = "impaired"
    INSUFFICIENT_DATA = "insufficient_data"


class UltraServer(Struct, frozen=True, kw_only=True):
    """One UltraServer. ``instances``: all of them; ``available``: not in use, the spare ones left out. ``spares`` of
    the ``configured`` ones are left to take the place of an instance."""

    id: str
    health: UltraServerHealth
    instances: int
    in_use: int
    available: int
    unhealthy: int
    spares: int
    configured: int

    @property
    def text(self) -> str:
        """``impaired: 17 of 18 instances in use, 1 unhealthy, 0 of 1 spare left``."""
        use = f"{self.in_use} of {self.instances} instances in use"
        return f"{self.health.value}: {use}, {self.unhealthy} unhealthy, {self.spares} of {self.configured} spare left"


def read_ultraservers(aws: Aws) -> tuple[UltraServer, ...]:
    """Every UltraServer of the active training plans, by its id. Raises BackendError as ``Aws.call`` does, and
    BackendUnknown for a health that is not known here."""
    found = {
        server.id: server
        for arn in _capacities(aws)
        for server in _in(aws.call("sagemaker", "ListUltraServersByReservedCapacity", ReservedCapacityArn=arn))
    }
    return tuple(found[each] for each in sorted(found))


def _capacities(aws: Aws) -> Iterator[str]:
    plans = aws.call("sagemaker", "ListTrainingPlans", Filters=[{"Name": "Status", "Value": _ACTIVE}])
    for plan in plans.get("TrainingPlanSummaries", ()):
        for each in plan.get("ReservedCapacitySummaries", ()):
            if each.get("ReservedCapacityType") == "UltraServer" and each.get("Status") == _ACTIVE:
                yield str(each["ReservedCapacityArn"])


def _in(answer: Mapping[str, Any]) -> Iterator[UltraServer]:
    for each in answer.get("UltraServers", ()):
        word = str(each.get("HealthStatus", "Insufficient-Data"))
        try:
            health = UltraServerHealth(word.lower().replace("-", "_"))
        except ValueError as error:
            raise BackendUnknown(f"{each['UltraServerId']}: HealthStatus {word!r} is not known to healthd") from error
        yield UltraServer(
            id=str(each["UltraServerId"]),
            health=health,
            instances=int(each["TotalInstanceCount"]),
            in_use=int(each.get("InUseInstanceCount", 0)),
            available=int(each.get("AvailableInstanceCount", 0)),
            unhealthy=int(each.get("UnhealthyInstanceCount", 0)),
            spares=int(each.get("AvailableSpareInstanceCount", 0)),
            configured=int(each.get("ConfiguredSpareInstanceCount", 0)),
        )
