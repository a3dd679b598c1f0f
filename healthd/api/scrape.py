"""The metrics page on demand: its modules are heavy, and are loaded at the first scrape."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from healthd.agent.agent import Agent

if TYPE_CHECKING:
    from healthd.api.metric_families import Bounded

Metrics = Callable[[], tuple[str, str]]
"""Returns the content type and the text of a page, made for each call. Several threads may call it at once."""


def metrics_of(agent: Agent) -> Metrics:
    """The page of a node, whose process begins now."""
    began_s = time.monotonic()

    def made() -> Bounded:
        from healthd.api.metrics import MetricsPage

        return MetricsPage(agent, began_s=began_s)

    return on_demand(made)


def on_demand(make: Callable[[], Bounded]) -> Metrics:
    """The page that ``make`` creates once, at the first scrape."""
    pages: list[Bounded] = []
    making = threading.Lock()

    def made() -> tuple[str, str]:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        with making:
            if not pages:
                pages.append(make())
            return CONTENT_TYPE_LATEST, pages[0].render()

    return made
