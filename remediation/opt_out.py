"""Who may say that healthd only observes on a node: a label of its configuration, or one of its cluster. Pure.

The third way, a file on the node, is looked for by whoever puts the rules together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

FEATURE, LABEL = "feature", "label or annotation"
"""What the cluster's word on a node is called: on Slurm, and on Kubernetes, where either will do."""


def by_label(labels: Iterable[str], key: str) -> str:
    """The ``key=value`` that opts the node out, in words, or "". Any value does but ``false``."""
    for label in labels:
        name, _, value = label.partition("=")
        if key and name == key and value.lower() != "false":
            return f"[node] labels has {label}"
    return ""


def by_feature(features: Collection[str], feature: str, called: str = FEATURE) -> str:
    """The same of a feature that the cluster shows at the node. ``called``: what its people call it there."""
    return f"the node has the {called} {feature}" if feature and feature in features else ""
