"""When a controller may fence NVLink domains, by its configuration."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from healthd.config.schema.config import Config, FreezeWindow
from healthd.controller.dependencies import fence_rules
from healthd.core.model import Mode
from healthd.fleet.fences import FenceRules

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def configured(mode: Mode, *freezes: FreezeWindow, most: int = 1) -> Config:
    config = Config()
    return replace(
        config,
        remediation=replace(config.remediation, mode=mode, freeze=freezes),
        budget=replace(config.budget, max_domains_out=most),
    )


NO_DRAIN = FreezeWindow(start="2026-11-24T00:00:00Z", end="2026-11-25T00:00:00Z", reason="rollout", allow=())


def test_no_domain_is_fenced_in_observe_mode_with_zero_or_in_a_freeze_without_drains() -> None:
    """In each other mode one is, also in a freeze that allows drains."""
    assert fence_rules(Config(), NOW) == FenceRules(most=1, objection="in observe mode")
    for mode in (Mode.QUARANTINE, Mode.APPROVE, Mode.REPAIR):
        assert fence_rules(configured(mode), NOW) == FenceRules(most=1)
    assert fence_rules(configured(Mode.REPAIR, most=0), NOW).objection == "[budget] max_domains_out = 0"
    assert fence_rules(configured(Mode.REPAIR, replace(NO_DRAIN, allow=("drain",))), NOW).objection == ""
    assert "rollout" in fence_rules(configured(Mode.REPAIR, NO_DRAIN), NOW).objection
