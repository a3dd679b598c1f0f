"""The two happy paths as the sentences that a person reads, compared with recorded texts in ``golden/``.

A text that changes on purpose is changed there by hand: it is what the log, the audit and ``healthd history`` show.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engine_rig import STORIES, World

GOLDEN = Path(__file__).parent / "golden"


def transcript(world: World) -> str:
    """What the engine said whenever that changed, and the whole audit trail."""
    lines = ["# what the engine said", *world.transcript(), "", "# the audit trail"]
    lines += [f"{event.at:%H:%M:%S} {event.kind:<8} {event.text}" for event in world.store.events()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", sorted(STORIES))
def test_a_happy_path_reads_as_recorded(name: str, tmp_path: Path) -> None:
    """Every sentence of a whole remediation, in order and in time, is the recorded one."""
    world = STORIES[name](tmp_path).run_to_end()
    assert transcript(world) == (GOLDEN / f"{name}.txt").read_text()
