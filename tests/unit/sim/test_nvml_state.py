"""The state files of the simulated NVML and the builders of faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.core.errors import SourceMissing
from healthd.core.model import pci_address
from healthd.probe.nvml_library import NvmlError
from healthd.sim import nvml_state as sim
from healthd.sim.nvml import SimNvml, parse_state, render_state, write_state
from tests.support.nvml_states import with_ecc, with_library_fault, with_recovery_action, with_remap, without_last_gpus

KEYS = st.from_regex(r"(lib|gpu[0-9])\.[A-Za-z0-9.(),/]{1,20}", fullmatch=True)
VALUES = st.from_regex(r"([!-~]( ?[!-~]){0,20})?", fullmatch=True)


@given(st.dictionaries(KEYS, VALUES))
def test_a_state_survives_its_file(state: dict[str, str]) -> None:
    """What is rendered is parsed again, line for line."""
    assert parse_state(render_state(state)) == state


def test_comments_and_torn_lines_are_skipped() -> None:
    """Blank lines, comments and lines without = say nothing; the first line of a key counts."""
    assert parse_state("# a = 1\n\n  # b = 2\nno equals\na = 1\na = 2\n b=  x y  \n") == {"a": "1", "b": "x y"}


def test_the_machine_is_a_p5() -> None:
    """Eight H100 with the PCI addresses of the type, distinct constructed UUIDs, and a 580 driver."""
    state = sim.healthy_state("p5.48xlarge")
    pci = [pci_address(state[f"gpu{index}.pci"]) for index in range(8)]
    assert pci == [f"0000:{bus}:00" for bus in ("53", "64", "75", "86", "97", "a8", "b9", "ca")]
    assert len({state[f"gpu{index}.uuid"] for index in range(8)}) == 8
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", state[f"gpu{i}.uuid"]) for i in range(8))
    assert state["gpu7.nvmlDeviceGetName"] == "NVIDIA H100 80GB HBM3"
    assert state["lib.driver_version"].startswith("580.")


def library(tmp_path: Path, state: dict[str, str]) -> SimNvml:
    write_state(tmp_path / "node.sim", state)
    found = SimNvml(str(tmp_path / "node.sim"))
    found.initialise()
    return found


def test_builders_show_in_calls_and_fields_alike(tmp_path: Path) -> None:
    """A fault is told the same by the call and by the field of the same signal, and on its GPU only."""
    state = with_ecc(sim.healthy_state(), 1, corrected=2, uncorrected=3)
    state = with_ecc(state, 1, corrected=20, uncorrected=30, aggregate=True)
    state = with_remap(state, 1, correctable=4, uncorrectable=5, pending=True, failure=True)
    nvml = library(tmp_path, with_recovery_action(state, 1, 2))
    totals = [nvml.call(1, "nvmlDeviceGetTotalEccErrors", pair) for pair in ((0, 0), (1, 0), (0, 1), (1, 1))]
    assert totals == nvml.fields(1, [(3, 0), (4, 0), (5, 0), (6, 0)]) == [2, 3, 20, 30]
    assert nvml.call(1, "nvmlDeviceGetRemappedRows", ()) == [4, 5, 1, 1]
    assert nvml.fields(1, [(142, 0), (143, 0), (144, 0), (145, 0), (230, 0)]) == [4, 5, 1, 1, 2]
    assert nvml.fields(2, [(4, 0), (145, 0), (230, 0)]) == [0, 0, 0]


def test_a_misspelt_fault_is_refused(tmp_path: Path) -> None:
    """A fault that does not exist is INVALID_ARGUMENT, not a healthy machine."""
    with pytest.raises(NvmlError, match="INVALID_ARGUMENT"):
        library(tmp_path, with_library_fault(sim.healthy_state(), "hung"))


def test_a_state_file_that_vanishes_is_missing(tmp_path: Path) -> None:
    """Without its file the simulated library is not there, at the start and later."""
    nvml = library(tmp_path, sim.healthy_state())
    assert nvml.count() == 8
    (tmp_path / "node.sim").unlink()
    with pytest.raises(SourceMissing, match=r"node\.sim"):
        nvml.count()
    with pytest.raises(SourceMissing, match=r"node\.sim"):
        SimNvml(str(tmp_path / "node.sim")).initialise()


def test_calls_before_init_are_refused(tmp_path: Path) -> None:
    """As in the real library, nothing answers before nvmlInit and after nvmlShutdown."""
    nvml = library(tmp_path, sim.healthy_state())
    nvml.shutdown()
    with pytest.raises(NvmlError, match="UNINITIALIZED"):
        nvml.handle(0)


def test_an_index_beyond_the_count_is_refused(tmp_path: Path) -> None:
    """INVALID_ARGUMENT, as NVML answers for an index that is not there."""
    with pytest.raises(NvmlError, match="INVALID_ARGUMENT"):
        library(tmp_path, without_last_gpus(sim.healthy_state(), 1)).handle(7)


def test_no_reader_sees_half_a_state(tmp_path: Path) -> None:
    """A state file is replaced in one step and leaves nothing beside it."""
    write_state(tmp_path / "node.sim", {"a": "1"})
    write_state(tmp_path / "node.sim", {"a": "2"})
    assert [path.name for path in tmp_path.iterdir()] == ["node.sim"]
