"""What is known of a fault that only a drain names: the tables' word, the boot time, the journal."""

from __future__ import annotations

from datetime import timedelta

import pytest

from healthd.agent.hindsight import ends_by
from healthd.core.model import ClearsBy
from healthd.remediation.decide.adoption import must_be_shown
from healthd.remediation.decide.remediation import End
from healthd.remediation.ports import Hold
from tests.support.judgement import START, a_remediation


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("gpu.xid.79", ClearsBy.REBOOT),
        ("gpu.xid.95", ClearsBy.GPU_RESET),
        ("gpu.xid.54", ClearsBy.REPLACE),
        ("gpu.xid.149", ClearsBy.REPLACE),
        ("gpu.xid.31", None),
        ("gpu.xid.999", ClearsBy.REBOOT),
        ("gpu.xid.later.7", ClearsBy.REBOOT),
        ("nvswitch.sxid.10001", ClearsBy.REBOOT),
        ("efa.admin_queue", ClearsBy.REBOOT),
        ("gpu.xid.repeated_across_jobs.13", None),
        ("efa.missing", None),
        ("of.a.later.version", ClearsBy.REBOOT),
        ("plugin.of_ours", None),
        ("site.of_ours", None),
        ("operator.quarantine", None),
        ("", None),
    ],
)
def test_what_ends_a_fault_is_what_its_table_says(code: str, ends: ClearsBy | None) -> None:
    """A level, an error of a job and an order need no proof; what only a later version knows needs a boot."""
    assert ends_by(code) is ends


HELD = a_remediation(hold=Hold(text="healthd: …", user="root", stamp=int(START.timestamp())))
EARLIER, LATER = START - timedelta(hours=1), START + timedelta(hours=1)


@pytest.mark.parametrize(
    ("ends", "booted", "must"),
    [
        (None, None, False),
        (ClearsBy.GPU_RESET, None, True),
        (ClearsBy.GPU_RESET, EARLIER, True),
        (ClearsBy.GPU_RESET, LATER, False),
        (ClearsBy.REBOOT, EARLIER, True),
        (ClearsBy.REBOOT, LATER, False),
        (ClearsBy.REPLACE, LATER, True),
    ],
)
def test_a_boot_after_the_drain_ends_all_but_wear(ends: ClearsBy | None, booted: object, must: bool) -> None:
    """By the machine's own boot time and the stamp that the cluster gave the drain."""
    assert must_be_shown(HELD, ends, booted) is must  # type: ignore[arg-type]


def test_only_a_drain_that_was_found_must_be_shown_to_be_over() -> None:
    """Not a successor on another machine, and not a case that has ended."""
    for changes in ({"hold": None}, {"attempts": 1}, {"end": End.ABANDONED}):
        assert not must_be_shown(a_remediation(**{"hold": HELD.hold, **changes}), ClearsBy.REBOOT, None)
