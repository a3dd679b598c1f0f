"""Every parser of text that healthd did not write itself, by where it comes from."""

from __future__ import annotations

from tests.fuzz import targets_cluster, targets_kernel, targets_logs, targets_node, targets_setup, targets_sockets
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    each.name: each
    for each in (
        *targets_kernel.TARGETS,
        *targets_logs.TARGETS,
        *targets_node.TARGETS,
        *targets_cluster.TARGETS,
        *targets_sockets.TARGETS,
        *targets_setup.TARGETS,
    )
}
"""By name, in that order."""
