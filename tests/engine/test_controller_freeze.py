"""The controller begins nothing in a window of its own configuration: [[remediation.freeze]]."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from healthd.config.schema.config import Config, FreezeWindow
from healthd.controller.dependencies import controller_rules
from healthd.core.model import Mode, Refusal, Remedy
from tests.support.controller_rig import AskedWorld


@pytest.mark.parametrize(("remedy", "asks"), [(Remedy.REPLACE_NODE, True), (Remedy.REBOOT_NODE, False)])
def test_nothing_is_begun_in_a_window_and_the_wait_is_told(remedy: Remedy, asks: bool, tmp_path: Path) -> None:
    """Neither what a node asks for, nor another machine for one that does not come back; after it both are."""
    world = AskedWorld(tmp_path, remedy, asks=asks)
    now = world.clock.now()
    window = FreezeWindow(
        reason="rollout",
        start=(now - timedelta(hours=1)).isoformat(),
        end=(now + timedelta(days=1)).isoformat(),
    )
    config = Config()
    config = replace(config, remediation=replace(config.remediation, mode=Mode.REPAIR, freeze=(window,)))
    if not asks:
        world.goes_silent()
    world.rules = controller_rules(config, "", now=now)
    world.run(80)
    assert world.acts == 0
    assert [each.refusal for each in world.standings] == [Refusal.FROZEN]
    assert "rollout" in world.standings[0].message
    world.rules = controller_rules(config, "", now=now + timedelta(days=2))
    world.run(10)
    assert world.acts == 1
