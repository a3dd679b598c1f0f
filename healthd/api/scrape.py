"""The metrics page on demand: what makes it is heavy, and loaded when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from healthd.agent import Agent

if TYPE_CHECKING:
    from healthd.api.metrics import Page


def metrics_of(agent: Agent) -> Callable[[], tuple[str, str]]:
    """What gives the content type and the text of the page, anew for each call, whoever calls at once."""
    pages: list[Page] = []
    making = threading.Lock()

    def made() -> tuple[str, str]:
        from healthd.api import metrics

        with making:
            if not pages:
                pages.append(metrics.Page(agent))
            return metrics.CONTENT_TYPE, pages[0].render()

    return made
