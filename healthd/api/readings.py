"""The recent readings of a node by which the nodes of one job are compared: ``/readings``.

The JSON is ``healthd.readings/v1``; fields are added to it, never renamed or removed. Ages, not times: two nodes need
not have the same clock.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from healthd.agent.agent import Agent
from healthd.core.model import Component
from healthd.judge.history import canonical

READINGS_SCHEMA = "healthd.readings/v1"
_DIGITS = 6


def readings_json(agent: Agent) -> str:
    """One JSON object: of each component and reading its samples, [age in seconds, value], the oldest first. It runs no
    check."""
    monitor, now = agent.monitor, datetime.now(UTC)
    data = {
        "schema": READINGS_SCHEMA,
        "node": agent.machine.name,
        "generated_at": now.isoformat(),
        "series": [
            {
                "component": str(canonical(monitor.history, each.component)),
                "index": _index(each.component),
                "name": each.name,
                "samples": [[round(age_s), float(f"{value:.{_DIGITS}g}")] for age_s, value in each.samples],
            }
            for each in (monitor.recent.series(now) if monitor.recent is not None else ())
        ],
    }
    return json.dumps(data, separators=(",", ":"))


def _index(component: Component) -> int | None:
    """The index of a GPU in NVML, by which an operator and Slurm name it."""
    found = [each for each in component.aliases if each.isdecimal()]
    return int(found[0]) if component.kind == "gpu" and found else None
