"""The check ``efa.devices``: the Elastic Fabric Adapters of the node, from the PCI bus to user space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from healthd.check import FindingCode, check, judged, not_applicable, unknown
from healthd.efa import EfaFunction, efa_functions
from healthd.model import NODE, Finding, Reading, Remedy, Result, Severity
from healthd.node import Node
from healthd.tables import instance_profile
