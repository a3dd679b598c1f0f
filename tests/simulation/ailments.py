"""What is wrong with a machine, as nature has it: how it shows, what cures it, and after what it shows again.

The daemon never sees this. It sees findings, by the two ways that production has: a line in the kernel log, and a level
that a check reads.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from healthd.core.model import NODE, ClearsBy, Component, Finding, Remedy, Severity


class Act(StrEnum):
    """What may happen to a machine. HAND: a person opened it; OUTSIDE: what it depends on was put right."""

    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"
    HAND = "hand"
    OUTSIDE = "outside"


class Kind(Struct, frozen=True, kw_only=True):
    """One row of the failure law. ``cured_by``: ends it for good. ``hidden_by``: makes it go away for ``returns_s``,
    after which it shows again. ``clears_by`` None: a level, else a line of the kernel log."""

    name: str
    code: str
    remedy: Remedy
    clears_by: ClearsBy | None
    cured_by: frozenset[Act]
    hidden_by: frozenset[Act] = frozenset()
    returns_s: tuple[float, float] = (60.0, 600.0)
    severity: Severity = Severity.CRITICAL
    on: str = "gpu"
    flaps: bool = False
    """Whether it comes and goes by itself, until it is cured."""
    of_the_name: bool = False
    """Whether the next machine of the name has it as well: a slot of the rack, the image, the driver."""


_ALL = frozenset(Act)
_LINE = {ClearsBy.REBOOT: frozenset({Act.REBOOT, Act.REPLACE, Act.HAND}), ClearsBy.GPU_RESET: _ALL - {Act.OUTSIDE}}

OFF_THE_BUS = Kind(
    name="a GPU fell off the bus once",
    code="gpu.xid.79",
    remedy=Remedy.REBOOT_NODE,
    clears_by=ClearsBy.REBOOT,
    cured_by=_LINE[ClearsBy.REBOOT],
)
OFF_THE_BUS_AGAIN = Kind(
    name="a GPU falls off the bus again after each reboot",
    code="gpu.xid.79",
    remedy=Remedy.REBOOT_NODE,
    clears_by=ClearsBy.REBOOT,
    cured_by=frozenset({Act.REPLACE, Act.HAND}),
    hidden_by=frozenset({Act.REBOOT}),
    returns_s=(30.0, 6 * 3600.0),
)
UNCONTAINED = Kind(
    name="an uncontained error, which a reset ends",
    code="gpu.xid.95",
    remedy=Remedy.RESET_GPU,
    clears_by=ClearsBy.GPU_RESET,
    cured_by=_LINE[ClearsBy.GPU_RESET],
)
FIRMWARE = Kind(
    name="GPU firmware that hangs again after a reset",
    code="gpu.xid.119",
    remedy=Remedy.RESET_GPU,
    clears_by=ClearsBy.GPU_RESET,
    cured_by=frozenset({Act.REBOOT, Act.REPLACE, Act.HAND}),
    hidden_by=frozenset({Act.RESET}),
    returns_s=(20.0, 1800.0),
)
WORN_OUT = Kind(
    name="a GPU is worn out",
    code="gpu.remap.failure",
    remedy=Remedy.REPLACE_NODE,
    clears_by=None,
    cured_by=frozenset({Act.REPLACE, Act.HAND}),
)
LOOSE = Kind(
    name="a loose riser: the link comes and goes",
    code="gpu.pcie.degraded",
    remedy=Remedy.REBOOT_NODE,
    clears_by=None,
    cured_by=frozenset({Act.REPLACE, Act.HAND}),
    flaps=True,
)
AGEING = Kind(
    name="corrected errors grow from day to day",
    code="gpu.ecc.accelerating",
    remedy=Remedy.ASK_HUMAN,
    clears_by=None,
    cured_by=frozenset({Act.REPLACE, Act.HAND}),
    severity=Severity.WARNING,
)
NO_EFA = Kind(
    name="an EFA device is missing until the driver is loaded again",
    code="efa.missing",
    remedy=Remedy.REBOOT_NODE,
    clears_by=None,
    cured_by=frozenset({Act.REBOOT, Act.REPLACE, Act.HAND, Act.OUTSIDE}),
    on="node",
)
BAD_IMAGE = Kind(
    name="the image breaks every machine of this name after a while",
    code="gpu.remap.failure",
    remedy=Remedy.REPLACE_NODE,
    clears_by=None,
    cured_by=frozenset({Act.OUTSIDE}),
    hidden_by=frozenset({Act.REPLACE, Act.HAND}),
    returns_s=(90.0, 3600.0),
    of_the_name=True,
)
BAD_SLOT = Kind(
    name="the slot of the rack is bad: a line again after each repair",
    code="gpu.xid.79",
    remedy=Remedy.REBOOT_NODE,
    clears_by=ClearsBy.REBOOT,
    cured_by=frozenset({Act.OUTSIDE}),
    hidden_by=_ALL - {Act.OUTSIDE, Act.RESET},
    returns_s=(120.0, 2400.0),
    of_the_name=True,
)
BAD_DRIVER = Kind(
    name="a driver that is rolled out from node to node: a line that no repair ends",
    code="gpu.xid.120",
    remedy=Remedy.REBOOT_NODE,
    clears_by=ClearsBy.REBOOT,
    cured_by=frozenset({Act.OUTSIDE}),
    hidden_by=_ALL - {Act.OUTSIDE, Act.RESET},
    returns_s=(300.0, 5400.0),
    of_the_name=True,
)
WORN_DRIVER = Kind(
    name="a driver that calls good GPUs worn out, node after node",
    code="gpu.remap.failure",
    remedy=Remedy.REPLACE_NODE,
    clears_by=None,
    cured_by=frozenset({Act.OUTSIDE}),
    hidden_by=frozenset({Act.REPLACE, Act.HAND}),
    returns_s=(600.0, 7200.0),
    of_the_name=True,
)
FILE_SERVER = Kind(
    name="a file server does not answer",
    code="lustre.hung",
    remedy=Remedy.ASK_HUMAN,
    clears_by=None,
    cured_by=frozenset({Act.OUTSIDE}),
    on="mount:/fsx",
    of_the_name=True,
)
MOUNT_LOST = Kind(
    name="a mount is gone after a boot",
    code="mount.missing",
    remedy=Remedy.ASK_HUMAN,
    clears_by=None,
    cured_by=frozenset({Act.OUTSIDE, Act.HAND, Act.REPLACE}),
    on="mount:/fsx",
)
MOUNT_FLAPS = Kind(
    name="a mount comes and goes",
    code="mount.missing",
    remedy=Remedy.ASK_HUMAN,
    clears_by=None,
    cured_by=frozenset({Act.OUTSIDE, Act.HAND, Act.REPLACE}),
    on="mount:/fsx",
    flaps=True,
)
POWER = Kind(
    name="a rack lost a feed: its fabric is down",
    code="fabric.down",
    remedy=Remedy.REBOOT_NODE,
    clears_by=None,
    cured_by=frozenset({Act.OUTSIDE}),
    on="node",
    of_the_name=True,
)

ONE_NODE = (
    (OFF_THE_BUS, 5),
    (OFF_THE_BUS_AGAIN, 2),
    (UNCONTAINED, 5),
    (FIRMWARE, 4),
    (WORN_OUT, 3),
    (LOOSE, 2),
    (AGEING, 1),
    (NO_EFA, 4),
    (BAD_IMAGE, 1),
    (BAD_SLOT, 1),
    (MOUNT_LOST, 2),
)
"""What befalls one node by itself, and how often beside the others."""


class Ailment(Struct, eq=False):
    """One thing that is wrong with one name, from its beginning until it is cured."""

    kind: Kind
    component: Component
    shows: bool = False
    cured: bool = False
    shown: int = 0

    def finding(self) -> Finding:
        kind = self.kind
        return Finding(
            code=kind.code,
            severity=kind.severity,
            component=self.component,
            message=f"{kind.code} on {self.component}: {kind.name}",
            remedy=kind.remedy,
            clears_by=kind.clears_by,
        )


def component_of(kind: Kind, uuid: str) -> Component:
    if kind.on == "gpu":
        return Component(kind="gpu", id=uuid)
    return NODE if kind.on == "node" else Component(kind="mount", id=kind.on.partition(":")[2])
