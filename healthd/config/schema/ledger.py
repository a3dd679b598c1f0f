"""The memory of the fleet: ``[ledger]``.

As ``schema``: a docstring under every field, and nothing here reads a file or the machine.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

LedgerInterval = Annotated[float, Meta(ge=10, le=3_600, description="seconds, from 10 to 3600")]
RetentionDays = Annotated[float, Meta(ge=1, le=36_500, description="days, from 1 to 36500")]
InventoryUrl = Annotated[
    str,
    Meta(
        pattern=r"^(http://[^\s/]*\{node\}[^\s/]*/inventory)?\Z",
        description='a URL such as "http://{node}:9809/inventory", or ""',
    ),
]


class LedgerSection(Struct, frozen=True, kw_only=True):
    """The ledger that ``healthd controller`` keeps: faults, repairs, returns, replacements and exposure, for ``healthd
    fleet history`` and ``healthd fleet report``. The file is ``ledger.db`` in ``[controller] state_dir``; losing it
    loses statistics and nothing else. Only the controller and these verbs read this section."""

    enabled: bool = True
    """Whether the controller that leads keeps a ledger."""

    interval_s: LedgerInterval = 60.0
    """How often, in seconds, it takes a reading of the fleet. The controller lists the nodes every 20 s for all that
    need it, or as often as this says; on Kubernetes once a minute. After three intervals without a reading the time
    between is a gap, and counts as exposure of no node."""

    retention_days: RetentionDays = 730.0
    """How long, in days, entries are kept. Two years: so long a GPU that comes back under another name is known."""

    aws_topology: bool = False
    """Whether EC2 is asked where instances stand in its network (DescribeInstanceTopology): the rack of a node of which
    Slurm's topology says nothing is then its Capacity Block, for an UltraServer, or the network node that it is
    connected to. One call with all pages, at most once an hour, and only when an instance is new; the answer is kept in
    the ledger. The controller's role needs packaging/iam/topology-controller.json, and the instances' ids come from
    ``inventory_url``. EC2 does not describe instances of HyperPod."""

    inventory_url: InventoryUrl = ""
    """Where a node tells its instance, its GPUs' UUIDs and serial numbers, and every open fault that no other
    explains: the ``/inventory`` of its ``[daemon] http``, with ``{node}`` for the node's name. It is read when a node
    changes, and once a day. Empty: nodes are not asked; the ledger then knows only the worst fault of a node at a
    time, and its GPU by index alone. Set it if the controller can reach that port, which is on loopback by default.
    ``healthd fleet NODE`` asks the same server for the node's verdict."""
