"""The titles of findings: each of a code that exists, and readable for one device, for many and for none."""

from __future__ import annotations

import pytest

from healthd.checklib import titles
from healthd.checklib.runbooks import steps


def test_every_title_is_of_a_code_that_exists() -> None:
    """A code has a runbook; a title has no full stop, and begins as the rest of a sentence."""
    for code, title in titles.titles().items():
        assert steps(code), code
        assert not title.endswith("."), title
        assert title[0].islower() or title.startswith((titles.WHERE, "EC2", "EFA", "I/O")), title


@pytest.mark.parametrize(
    ("code", "where", "title"),
    [
        ("gpu.xid.79", "GPU 3", "GPU 3 fell off the bus (XID 79)"),
        ("gpu.lost", "8 GPUs (0-7)", "8 GPUs (0-7) went missing"),
        ("gpu.lost", "", "a GPU went missing"),
        ("efa.missing", "", "EFA devices are missing"),
        ("site.anything", "GPU 3", ""),
        ("gpu.count.driver_lost", "GPU 3", "the NVIDIA driver does not list GPU 3"),
        ("efa.driver_lost", "rdmap79s0", "the EFA driver gave up on rdmap79s0"),
        ("efa.counters.keep_alive", "rdmap79s0", "rdmap79s0 shows no sign of life"),
        ("gpu.xid.64", "GPU 3", "GPU 3 could not take a bad row of its memory out of use (XID 64)"),
        ("gpu.xid.154", "GPU 3", "the driver asked for a recovery of GPU 3 (XID 154)"),
        ("gpu.xid.74", "GPU 3", "GPU 3 had an NVLink error (XID 74)"),
        ("lustre.io.hung", "", "a network file system does not answer"),
    ],
)
def test_a_title_names_its_device(code: str, where: str, title: str) -> None:
    """An XID its number; a code without a title has none. A driver that lost one device is loaded, not every XID 154
    asks for a reset, and NFS hangs as well as Lustre."""
    assert titles.title_of(code, where) == title
