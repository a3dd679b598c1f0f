"""Who may say that healthd only observes on a node: a label of its configuration, or one of its cluster. Pure.

The third way, a file on the node, is looked for by whoever puts the rules together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def by_label(labels: Iterable[str], key: str) -> str:
    """The ``key=value`` that opts the node out, in words, or "". Any value does but ``false``."""
    for label in labels:
        name, _, value = label.partition("=")
        if key and name == key and value.lower() != "false":
            return f"[node] labels has {label}"
    return ""


def by_feature(features: Collection[str], feature: str) -> str:
    """The same of a feature that the cluster shows at the node."""
    return f"the node has the feature {feature}" if feature and feature in features else ""
