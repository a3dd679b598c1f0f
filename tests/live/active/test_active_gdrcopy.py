"""The GDRCopy test with real children: on stand-ins for libcuda and libgdrapi, and with gdrcopy_sanity instead."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.core.errors import SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.node import GdrCopy
from tests.support.limits import limit_s

SIZE = 100_000
pytestmark = pytest.mark.nvml  # needs a C compiler

SANITY = """
import os, sys
# Constructed in the form of gdrcopy's test summary (28 tests); the second GPU's run has a fault where one is asked for.
failed = int(os.environ.get("ACTIVE_SIM_FAULT") == "sanity" and os.environ["CUDA_VISIBLE_DEVICES"] == "1")
if os.environ.get("ACTIVE_SIM_FAULT") == "sanity_torn":
    sys.exit("CUDA error")
print(f"Total: 28, Passed: {28 - failed}, Failed: {failed}, Waived: 0")
sys.exit(failed)
"""


@pytest.fixture
def gdrcopy(rig: Any) -> Any:
    """CUDA and libgdrapi are installed."""
    rig.add_cuda()
    rig.add_gdrcopy()
    return rig


def copies(rig: Any, *, timeout_s: float = limit_s(20.0), **how: Any) -> tuple[GdrCopy, ...]:
    result: tuple[GdrCopy, ...] = rig.source(**how).gdr_copies(size_bytes=SIZE, timeout_s=timeout_s)
    return result


def test_every_gpu_is_copied_to_and_from(gdrcopy: Any) -> None:
    """Each GPU gives back what was written, though its mapping begins before the buffer and the size is no page's."""
    assert copies(gdrcopy, gpus=3) == tuple(
        GdrCopy(index=index, pci=f"0000:{index * 0x11:02x}:00", size_bytes=SIZE) for index in range(3)
    )


def test_one_wrong_byte_is_seen(gdrcopy: Any) -> None:
    """One bit of one byte that the CPU reads back differs, on the second GPU."""
    assert [copy.wrong_bytes for copy in copies(gdrcopy, fault="gdr_byte")] == [0, 1]


def test_bytes_that_never_reach_the_gpu_are_seen(gdrcopy: Any) -> None:
    """A write that is lost on the way is seen in what the GPU has: nearly all bytes."""
    first, second = copies(gdrcopy, fault="gdr_lost")
    assert first.wrong_bytes == 0
    assert second.wrong_bytes > 0.9 * SIZE


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("gdr_open", "gdr_open returned NULL; load gdrdrv, or run as a user who may open /dev/gdrdrv"),
        ("gdr_pin", "gdr_pin_buffer returned 12 (Cannot allocate memory)"),
    ],
)
def test_a_refusal_names_the_call(gdrcopy: Any, fault: str, words: str) -> None:
    """Which call said no, and its code, for each GPU."""
    assert [copy.refused for copy in copies(gdrcopy, fault=fault)] == [words, words]


def test_a_hang_is_a_time_out_of_gdrcopy(gdrcopy: Any) -> None:
    """A copy that never ends is ended at the deadline."""
    with pytest.raises(SourceTimeout, match=r"gdrcopy.py: no end within 1 s"):
        copies(gdrcopy, fault="gdr_hang", timeout_s=1.0)


def test_a_driver_that_refuses_is_unreadable(gdrcopy: Any) -> None:
    """CUDA that cannot be initialised says nothing about GDRCopy."""
    with pytest.raises(SourceUnreadable, match="cuInit"):
        copies(gdrcopy, fault="cuda_init")


@pytest.mark.parametrize("name", ["gdrcopy_sanity", "sanity"])
def test_the_tool_is_the_second_way(rig: Any, name: str) -> None:
    """Without libgdrapi the tool runs once for each GPU, under either name; what failed is said of that one."""
    rig.add_tool(name, SANITY)
    assert [copy.refused for copy in copies(rig)] == ["", ""]
    assert [copy.refused for copy in copies(rig, fault="sanity")] == ["", f"{name}: 1 of 28 tests failed"]


def test_a_tool_without_a_summary_is_unreadable(rig: Any) -> None:
    """Its exit status alone tells nothing."""
    rig.add_tool("gdrcopy_sanity", SANITY)
    with pytest.raises(SourceUnreadable, match="expected one line 'Total: n"):
        copies(rig, fault="sanity_torn")


def test_neither_is_missing(rig: Any) -> None:
    """Without library and tool: missing, and what to install."""
    with pytest.raises(SourceMissing, match=r"libgdrapi\.so\.2: .*nor is gdrcopy_sanity here: install GDRCopy"):
        copies(rig)
