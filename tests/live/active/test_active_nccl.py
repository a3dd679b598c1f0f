"""The all-reduce test from end to end, with real children: nccl4py's and nccl-tests' ways, on constructed stand-ins."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from healthd.core.errors import SourceBusy, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.node import AllReduce
from healthd.sources.active import ActiveTestsSource
from healthd.testing import FakeTree
from tests.support.limits import limit_s

MIB = 1 << 20
pytestmark = pytest.mark.nvml  # needs a C compiler


@pytest.fixture
def nccl4py(rig: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """CUDA and nccl4py are installed."""
    rig.add_cuda()
    rig.add_nccl4py(monkeypatch)
    return rig


@pytest.fixture
def perf(rig: Any) -> Any:
    """nccl-tests is installed, nccl4py is not."""
    rig.add_perf()
    return rig


def reduce(rig: Any, *, size: int = MIB, timeout_s: float = limit_s(30.0), **how: Any) -> AllReduce:
    result: AllReduce = rig.source(**how).all_reduce("nvlink", size_bytes=size, timeout_s=timeout_s)
    return result


# ---------------------------------------------------------------------------------------------------------------------
# nccl4py


def test_every_element_is_compared(nccl4py: Any) -> None:
    """Right sums over two GPUs, in a buffer of more than one chunk, are measured and named."""
    result = reduce(nccl4py, size=5 * MIB + 12)
    assert (result.gpus, result.size_bytes, result.wrong, result.way) == (2, 5 * MIB + 12, 0, "nccl4py")
    assert (result.nccl_version, result.network, result.failed) == ("2.27.5+cuda12.9", "Libfabric", "")
    assert result.busbw_gb_s is not None
    assert result.busbw_gb_s > 0


def test_wrong_elements_are_counted(nccl4py: Any) -> None:
    """Two wrong elements on the last of three GPUs, the first and the last ones, are two."""
    assert reduce(nccl4py, gpus=3, fault="nccl_wrong").wrong == 2


def test_blocks_in_the_wrong_place_are_seen(nccl4py: Any) -> None:
    """Two blocks of 4 MiB that change places, each right in itself, are wrong nearly everywhere."""
    assert reduce(nccl4py, gpus=1, size=8 * MIB, fault="nccl_swapped").wrong > 1.9 * MIB


def test_one_gpu_has_no_bandwidth(nccl4py: Any) -> None:
    """With one GPU the elements are compared, and there is no bus."""
    result = reduce(nccl4py, gpus=1)
    assert (result.gpus, result.wrong, result.busbw_gb_s) == (1, 0, None)


def test_the_time_is_that_of_one_iteration(nccl4py: Any) -> None:
    """Ten milliseconds an iteration with two GPUs are size / 10 ms at most, in 10^9 bytes per second."""
    bandwidth = reduce(nccl4py, fault="nccl_slow").busbw_gb_s
    assert bandwidth is not None
    assert MIB / 0.05 / 1e9 < bandwidth <= MIB / 0.01 / 1e9


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nccl_init", r"NCCLError: SystemError \(2\).*NCCL's log: no transport between rank 0 and rank 1"),
        ("nccl_async", r"rank 0: remote process exited or there was a network error \(6\)"),
        ("cuda_init", r"^cuInit: CUDA_ERROR_UNKNOWN \(999\)"),
    ],
)
def test_a_refusal_is_told_in_its_own_words(nccl4py: Any, fault: str, words: str) -> None:
    """An error of NCCL or CUDA is an answer, with the library's words, and no measurement."""
    result = reduce(nccl4py, fault=fault)
    assert (result.wrong, result.busbw_gb_s) == (0, None)
    assert re.search(words, result.failed)


def test_memory_that_others_hold(nccl4py: Any) -> None:
    """Too little free memory is no error of the GPU: the test was not run, and the text says what would help."""
    with pytest.raises(
        SourceBusy, match=r"GPU 0 \(0000:00:00\.0\) has 64 MiB free and needs 1026 MiB: end the processes"
    ):
        reduce(nccl4py, fault="memory_full")


def test_without_a_driver_it_is_the_driver_that_is_missing(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA beside nccl4py: the driver is named, and nothing of nccl4py, which need not be installed again."""
    rig.add_nccl4py(monkeypatch)
    words = (
        r"no way to run NCCL: NVIDIA's driver is not installed: libcuda.*; nor by nccl-tests: all_reduce_perf: not f"
    )
    with pytest.raises(SourceMissing, match=words) as raised:
        reduce(rig)
    assert "nccl4py" not in str(raised.value)


def test_without_nccl4py_its_package_is_named(rig: Any) -> None:
    """No nccl4py, no nccl-tests: missing, with what to install."""
    rig.add_cuda()
    with pytest.raises(SourceMissing, match=r"no way to run NCCL: nccl4py: No module named 'nccl'; install .*-nccl"):
        reduce(rig)


def test_no_gpu_is_missing(nccl4py: Any) -> None:
    """A driver without a GPU is nothing to test."""
    with pytest.raises(SourceMissing, match="CUDA_ERROR_NO_DEVICE"):
        reduce(nccl4py, fault="no_device")


def test_the_environment_of_a_test_is_not_the_users(nccl4py: Any) -> None:
    """No setting of NCCL or libfabric is inherited; both paths differ in what makes them, and in nothing else."""
    users = {"NCCL_ALGO": "Tree", "FI_PROVIDER": "tcp", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "1", "KEPT": "yes"}
    source = nccl4py.source(ACTIVE_SIM_NOTE=str(nccl4py.note), **users)
    source.all_reduce("network", size_bytes=MIB, timeout_s=limit_s(30.0))
    got = nccl4py.noted()["environ"]
    assert not {"NCCL_ALGO", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"} & got.keys()
    wanted = {
        "KEPT": "yes",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "FI_EFA_ENABLE_SHM_TRANSFER": "0",
        "FI_PROVIDER": "efa",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_CONF_FILE": "/dev/null",
    }
    assert {name: got.get(name) for name in wanted} == wanted
    over_nvlink = source.environment("nvlink")
    assert not any(name.startswith("FI_") or name.endswith(("_DISABLE", "_ENABLE")) for name in over_nvlink)
    assert "FI_PROVIDER" not in nccl4py.source(efa=False).environment("network")


def test_a_traceback_is_unreadable(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that answers nothing is no verdict on NCCL; its last words are in the message."""
    rig.add_cuda()
    rig.add_nccl4py(monkeypatch)
    (Path(rig.folder) / "python/nccl/core/__init__.py").write_text("class NcclInvalid(Exception): ...\n")
    with pytest.raises(SourceUnreadable, match=r"all_reduce: no answer, exit status 1: .*AttributeError"):
        reduce(rig)


# ---------------------------------------------------------------------------------------------------------------------
# nccl-tests


def test_nccl_tests_are_the_second_way(perf: Any) -> None:
    """Where nccl4py is not installed, all_reduce_perf from PATH measures, and its figures come back."""
    result = reduce(perf)
    assert result == AllReduce(
        gpus=2,
        size_bytes=MIB,
        busbw_gb_s=478.12,
        wrong=0,
        way="all_reduce_perf",
        nccl_version="2.27.5+cuda12.9",
        network="Libfabric",
    )


def test_nccl_tests_with_one_gpu(perf: Any) -> None:
    """Whatever it prints for a bandwidth, one GPU has none."""
    assert reduce(perf, gpus=1).busbw_gb_s is None


def test_nccl_tests_find_wrong_elements(perf: Any) -> None:
    """Both columns of wrong elements are counted, and exit status 1 is no failure to run."""
    assert reduce(perf, fault="perf_wrong").wrong == 6


def test_nccl_tests_are_slow(perf: Any) -> None:
    """A low bandwidth is told as it is: it is not judged here."""
    assert reduce(perf, fault="perf_slow").busbw_gb_s == 93.21


def test_nccl_tests_fail(perf: Any) -> None:
    """An error of NCCL comes with nccl-tests' line and the first warning of NCCL's log."""
    failed = reduce(perf, fault="perf_nccl").failed
    assert failed.startswith("sim: Test NCCL failure common.cu:1279 'unhandled system error")
    assert failed.endswith("NCCL's log: no transport between rank 0 and rank 1")


def test_nccl_tests_run_out_of_memory(perf: Any) -> None:
    """CUDA's out of memory means that others hold it: not run."""
    with pytest.raises(SourceBusy, match="out of memory.*smaller size_bytes"):
        reduce(perf, fault="perf_memory")


@pytest.mark.parametrize(("fault", "words"), [("perf_crash", r"ended with 134: "), ("perf_torn", "cannot be read")])
def test_nccl_tests_end_without_an_answer(perf: Any, fault: str, words: str) -> None:
    """A crash or half an output is unreadable, never good, and never an error of NCCL."""
    with pytest.raises(SourceUnreadable, match=words):
        reduce(perf, fault=fault)


def test_the_tool_can_be_set(perf: Any) -> None:
    """sources.all_reduce_perf is used as it stands, wherever PATH leads; one that is not there is missing."""

    def source(tool: str) -> ActiveTestsSource:
        environ = {**os.environ, "PATH": "/usr/bin:/bin"}
        return ActiveTestsSource(gpus=lambda: ["", ""], sys_tree=FakeTree(), all_reduce_perf=tool, environ=environ)

    tool = Path(perf.folder) / "bin" / "all_reduce_perf"
    assert source(str(tool)).all_reduce("nvlink", size_bytes=MIB, timeout_s=limit_s(30.0)).wrong == 0
    with pytest.raises(SourceMissing, match="/no/such/tool: could not be started"):
        source("/no/such/tool").all_reduce("nvlink", size_bytes=MIB, timeout_s=limit_s(30.0))


def test_a_hang_is_a_time_out(perf: Any) -> None:
    """At the deadline the test is ended, and the error says which and what it last said."""
    with pytest.raises(SourceTimeout, match=r"all_reduce_perf: no end within \d.* s, ended: .*Using devices"):
        reduce(perf, fault="perf_hang", timeout_s=1.5)
