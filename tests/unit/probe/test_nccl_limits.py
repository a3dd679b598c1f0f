"""The table of bandwidths, and what it asks of a node."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from healthd.checklib.nccl import Demand, demand, nccl_limits
from healthd.checklib.tables import instance_types
from healthd.probe.all_reduce import CHUNK_WORDS, pattern
from healthd.sources.active import bus_bandwidth_gb_s
from healthd.testing import FakeNode

GIB = 1 << 30


def asked(instance_type: str | None, **settings: Any) -> Demand:
    wanted: dict[str, Any] = {"size_bytes": None, "min_busbw_gb_s": None, "timeout_s": 1.0, **settings}
    return demand(FakeNode(instance_type=instance_type), "nvlink", "nvlink", **wanted)


def test_every_row_is_a_share_of_a_measured_figure() -> None:
    """Each type exists, has several GPUs, and its limit is 90 % of what was measured, with source and date."""
    assert nccl_limits()
    for row in nccl_limits().values():
        profile = instance_types()[row.type]
        assert profile.gpus == 8
        assert row.min_busbw_gb_s == pytest.approx(0.9 * row.measured_gb_s, abs=1)
        assert len(row.source) > 20
        assert row.date > date(2020, 1, 1)


def test_no_limit_is_one_that_no_node_reaches() -> None:
    """What one node can do is about 230 GB/s with A100 and 480 GB/s with H100: no row asks for more."""
    best = {"A100": 235, "H100": 485, "H200": 485}
    for row in nccl_limits().values():
        assert row.measured_gb_s <= best[instance_types()[row.type].gpu_model]


def test_a_message_fits_the_memory() -> None:
    """Three times the message and 1 GiB, which is what nccl-tests takes, fit each type's GPU."""
    for row in nccl_limits().values():
        assert 3 * row.size_bytes + GIB < instance_types()[row.type].gpu_memory_mib << 20


def test_blackwell_has_no_row() -> None:
    """Nobody has published what B200, B300 and GB200 measure in one node: such a node is compared with itself."""
    for kind in ("p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge", "g5.48xlarge", "x9.metal", None):
        assert (asked(kind).least_gb_s, asked(kind).size_bytes) == (None, GIB)


def test_a_type_brings_its_size_and_its_limit() -> None:
    """A p5 is asked with the message that its figure was measured with; SageMaker's prefix changes nothing."""
    for name in ("p5.48xlarge", "ml.p5.48xlarge"):
        assert (asked(name).size_bytes, asked(name).least_gb_s) == (16 * GIB, 414)
        assert "2025-06-26" in asked(name).source


def test_settings_come_first() -> None:
    """A configured limit holds; a configured size makes the row's limit void, since it was measured with another."""
    assert asked("p5.48xlarge", min_busbw_gb_s=300.0).least_gb_s == 300
    assert "settings" in asked("p5.48xlarge", min_busbw_gb_s=300.0).source
    assert asked("p5.48xlarge", size_bytes=GIB).least_gb_s is None


def test_bus_bandwidth() -> None:
    """nccl-tests' own example: 8 ranks have a factor of 1.75; with one there is none."""
    assert bus_bandwidth_gb_s(16 * 10**9, 0.1, 8) == pytest.approx(160 * 1.75)
    assert bus_bandwidth_gb_s(10**9, 1.0, 2) == pytest.approx(1.0)
    assert bus_bandwidth_gb_s(10**9, 1.0, 1) is None


def test_sums_of_the_pattern_are_exact() -> None:
    """What each rank sends adds up in float32 without rounding, for 72 GPUs, and the pattern does not repeat soon."""
    first, total = pattern(1), pattern(72 * 73 // 2)
    assert max(total) < 2**24
    assert all(number == int(number) for number in first[:1000])
    assert total[12345] == first[12345] * 2628
    assert len(set(first[:CHUNK_WORDS])) == 4096
    assert first[: len(first) // 2] != first[len(first) // 2 :]
