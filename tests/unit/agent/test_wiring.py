"""What acts on a node, put together: its values are those of the configuration."""

from __future__ import annotations

from healthd.agent.wiring import bounds_of
from healthd.config.schema.config import PolicySection


def test_the_limits_are_the_settings() -> None:
    """Every setting of the section reaches the decision."""
    section = PolicySection(lemon_repairs=9, lemon_days=3, repairs_per_fault=7, repairs_per_remedy=3, relapse_days=2)
    bounds = bounds_of(section)
    assert (bounds.lemon_repairs, bounds.lemon_days, bounds.repairs_per_fault) == (9, 3, 7)
    assert (bounds.repairs_per_remedy, bounds.relapse_days) == (3, 2)
    assert (bounds.same_fault_nodes, bounds.same_fault_minutes) == (4, 10)
