"""The blocks of the how-to pages that are for Kubernetes, and which of their commands run against a real API server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.support.pages import Block, blocks

_TOOLS = re.compile(r"(kubectl|helm|aws|eksctl) ")
BLOCKS = [
    each
    for each in blocks()
    if each.page.startswith("docs/how-to/") and any(word in each.text for word in ("kubectl ", "helm "))
]
"""Those with a command of kubectl or Helm."""
NOT_RUN: Mapping[str, str] = {
    " exec ": "needs a kubelet; the test of the chart holds the names in it",
    " logs ": "needs a kubelet; the test of the chart holds the names in it",
    " rollout status ": "waits for pods, which only a kubelet makes ready",
}
"""What cannot run here, by a word of the line, and why. A page that calls AWS or eksctl has to be named here."""


def commands(block: Block) -> list[str]:
    """Its lines of kubectl and of other tools of a cluster."""
    return [line for line in block.text.splitlines() if _TOOLS.match(line)]


def lines_of(block: Block) -> list[str]:
    """Those that ask the API server, by kubectl or Helm."""
    return [line for line in commands(block) if not any(word in line for word in NOT_RUN)]


def has_helm(block: Block) -> bool:
    """Whether it needs a release of the chart."""
    return any(line.startswith("helm ") for line in commands(block))
