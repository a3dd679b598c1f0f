"""NCCL and GDRCopy on the real GPUs, through the source that the checks use."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from healthd.core.errors import SourceMissing
from healthd.sources.machine import Machine

SIZE = 256 << 20


@pytest.fixture
def nccl4py(machine: Machine) -> None:
    """nccl4py is installed."""
    if importlib.util.find_spec("nccl") is None:
        pytest.skip("needs nccl4py, libnccl and the CUDA bindings: install healthd's extra `nccl`")


@pytest.mark.usefixtures("nccl4py")
def test_nccl_is_right_in_every_element(machine: Machine) -> None:
    """An all-reduce over all GPUs through nccl4py is right; bandwidth is there where there are two GPUs."""
    result = machine.active.all_reduce("nvlink", size_bytes=SIZE, timeout_s=240.0)
    assert (result.failed, result.wrong, result.way) == ("", 0, "nccl4py")
    assert result.gpus == len(machine.nvml.ask())
    assert result.nccl_version
    assert (result.busbw_gb_s is None) == (result.gpus == 1)


@pytest.mark.usefixtures("nccl4py")
def test_nccl_is_right_with_peer_to_peer_off(machine: Machine) -> None:
    """The environment of the network path keeps NCCL from nothing that one GPU, or a node with EFA, needs."""
    result = machine.active.all_reduce("network", size_bytes=SIZE, timeout_s=240.0)
    assert (result.failed, result.wrong) == ("", 0)
    assert result.network, "NCCL's log did not name its network"


@pytest.mark.usefixtures("nccl4py")
def test_nothing_is_left_on_the_gpu(machine: Machine) -> None:
    """After a test no process of this machine holds a GPU that did not before."""
    call = "nvmlDeviceGetComputeRunningProcesses"
    before = [answer.values[call] for answer in machine.nvml.ask(call)]
    machine.active.all_reduce("nvlink", size_bytes=1 << 20, timeout_s=240.0)
    assert [answer.values[call] for answer in machine.nvml.ask(call)] == before


def test_gdrcopy_gives_back_what_was_written(machine: Machine) -> None:
    """Every GPU, through libgdrapi or gdrcopy_sanity."""
    if not Path("/dev/gdrdrv").exists():
        pytest.skip("needs GDRCopy's driver: /dev/gdrdrv is not there")
    try:
        copies = machine.active.gdr_copies(size_bytes=1 << 18, timeout_s=120.0)
    except SourceMissing as error:
        pytest.skip(f"needs libgdrapi or gdrcopy_sanity: {error}")
    assert [(copy.refused, copy.wrong_bytes) for copy in copies] == [("", 0)] * len(machine.nvml.ask())
