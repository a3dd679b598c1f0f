"""Every fault of the simulated NVML, as a check would meet it: the real pynvml on the C library, and the Python one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from healthd.core.errors import SourceBusy, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.node import GpuAnswer, Nvml, NvmlFailure
from healthd.sim import nvml_state as sim
from healthd.sources.nvml import NvmlSource
from healthd.testing import GPU_IS_LOST as LOST
from healthd.testing import NOT_SUPPORTED, RESET_REQUIRED
from tests.support.limits import limit_s
from tests.support.nvml_states import with_library_fault, without_last_gpus

pytestmark = pytest.mark.nvml

REMAPPED = "nvmlDeviceGetRemappedRows"
HEALTHY = sim.healthy_state()
HAS_DRIVER = Path("/proc/driver/nvidia").exists()


def others(answers: tuple[GpuAnswer, ...], index: int) -> list[GpuAnswer]:
    return [answer for answer in answers if answer.index != index]


def test_a_healthy_node_answers_in_one_round_trip(machine: Any) -> None:
    """Eight GPUs with identity, calls and fields come from one question to one worker."""
    source: Nvml = machine.source()
    answers = source.ask(REMAPPED, "nvmlDeviceGetTotalEccErrors(1, 0)", fields=[230])
    assert [answer.pci for answer in answers][:2] == ["0000:53:00", "0000:64:00"]
    assert answers[7].uuid == sim.uuid(7)
    assert answers[5].values == {REMAPPED: [0, 0, 0, 0], "nvmlDeviceGetTotalEccErrors(1, 0)": 0, "field:230": 0}
    assert all(answer.failure is None for answer in answers)


def test_the_system_says_its_versions_and_counts(machine: Any) -> None:
    """Driver, library, GPUs and excluded GPUs; excluded is None where the driver does not tell."""
    source = machine.source()
    expected = {"driver_version": "580.95.05", "nvml_version": "13.580.95.05", "gpu_count": 8, "excluded_count": 0}
    assert source.system() == expected
    machine.becomes({key: value for key, value in HEALTHY.items() if key != "lib.excluded_count"})
    assert source.system() == {**expected, "excluded_count": None}


def test_a_lost_gpu_hides_no_other_and_keeps_its_name(machine: Any) -> None:
    """GPU_IS_LOST at the handle: that GPU's answers are failures under the name it had; seven others are as ever."""
    source = machine.source()
    before = source.ask(REMAPPED, fields=[230])
    machine.becomes(sim.with_gpu_fault(HEALTHY, 3, "lost"))
    after = source.ask(REMAPPED, fields=[230])
    assert after[3].failure == LOST
    assert (after[3].uuid, after[3].pci) == (sim.uuid(3), "0000:86:00")
    assert after[3].values == {REMAPPED: LOST, "field:230": LOST}
    assert others(after, 3) == others(before, 3)
    machine.becomes(HEALTHY)
    assert source.ask(REMAPPED, fields=[230]) == before


def test_a_gpu_lost_before_it_was_ever_seen_has_no_name(machine: Any) -> None:
    """Without an earlier answer there is only the index: nothing is invented."""
    machine.becomes(sim.with_gpu_fault(HEALTHY, 0, "lost"))
    answer = machine.source().ask(REMAPPED)[0]
    assert (answer.uuid, answer.pci, answer.failure) == (None, None, LOST)


def test_reset_required_is_named_on_its_gpu(machine: Any) -> None:
    """RESET_REQUIRED leaves the identity readable and refuses the rest, field by field."""
    machine.becomes(sim.with_gpu_fault(HEALTHY, 2, "reset_required"))
    answers = machine.source().ask(REMAPPED, fields=[230])
    assert answers[2].uuid == sim.uuid(2)
    assert answers[2].values == {REMAPPED: RESET_REQUIRED, "field:230": RESET_REQUIRED}
    assert [answer.failure for answer in others(answers, 2)] == [None] * 7


def test_an_unknown_error_is_a_failure_of_that_gpu(machine: Any) -> None:
    """999 at the handle, as nvidia-smi's "Unable to determine the device handle", is neither silence nor a crash."""
    machine.becomes(sim.with_gpu_fault(HEALTHY, 6, "unknown_error"))
    answers = machine.source().ask(REMAPPED)
    assert answers[6].failure == NvmlFailure(code=999, name="UNKNOWN")
    assert all(answer.values[REMAPPED] == [0, 0, 0, 0] for answer in others(answers, 6))


def test_an_unsupported_field_is_never_zero(machine: Any) -> None:
    """Field 230 on an older driver answers nvmlReturn 3 with value 0, and 0 would mean healthy: it is a failure."""
    machine.becomes({key: value for key, value in HEALTHY.items() if not key.endswith("field.230")})
    answers = machine.source().ask(fields=[230, 142])
    assert [answer.values["field:230"] for answer in answers] == [NOT_SUPPORTED] * 8
    assert [answer.values["field:142"] for answer in answers] == [0] * 8


def test_a_call_that_is_refused_leaves_the_rest(machine: Any) -> None:
    """One call not supported on one GPU is one failure, with NVML's own code."""
    machine.becomes(sim.with_line(HEALTHY, "gpu1.nvmlDeviceGetEccMode", "error 13"))
    answer = machine.source().ask("nvmlDeviceGetEccMode", REMAPPED)[1]
    assert answer.values["nvmlDeviceGetEccMode"] == NvmlFailure(code=13, name="FUNCTION_NOT_FOUND")
    assert answer.values[REMAPPED] == [0, 0, 0, 0]
    assert answer.failure is None


def test_a_hang_on_one_gpu_ends_at_the_deadline(machine: Any, clock: Any, workers: Callable[[], list[int]]) -> None:
    """60 s inside one call: SourceTimeout at the deadline, no worker left, a growing stall, and back afterwards."""
    source: NvmlSource = machine.source(deadline_s=1.5, clock=clock)
    source.ask(REMAPPED)
    machine.becomes(sim.with_gpu_fault(HEALTHY, 4, "hang 60"))
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(SourceTimeout):
            source.ask(REMAPPED)
        assert time.monotonic() - began < limit_s(3.0)
        assert len(workers()) == 0
        clock.advance(5)
    assert source.state().stalled_s == 10.0
    machine.becomes(HEALTHY)
    assert len(source.ask(REMAPPED)) == 8
    assert source.state().stalled_s == 0.0


def test_a_hang_never_has_two_workers(real_pynvml: Any, workers: Callable[[], list[int]]) -> None:
    """Three threads against a hanging GPU: /proc never shows two workers, and each question ends in an answer."""
    source = real_pynvml.source(deadline_s=0.6)
    real_pynvml.becomes(sim.with_gpu_fault(HEALTHY, 4, "hang 60"))
    outcomes: list[str] = []

    def use() -> None:
        for _ in range(3):
            try:
                source.ask(REMAPPED)
            except (SourceTimeout, SourceBusy) as error:
                outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen = []
    while any(thread.is_alive() for thread in threads):
        seen.append(len(workers()))
        time.sleep(0.02)
    assert max(seen) == 1
    assert len(outcomes) == 9
    assert "SourceTimeout" in outcomes


@pytest.mark.parametrize("fault", [("lib.fault", "crash"), ("gpu5.fault", "crash")])
def test_a_crash_is_unreadable_and_it_comes_back(machine: Any, clock: Any, fault: tuple[str, str]) -> None:
    """SIGSEGV inside the library, wherever it strikes, costs one answer and the back-off, never the daemon."""
    source = machine.source(clock=clock)
    source.ask(REMAPPED)
    machine.becomes(sim.with_line(HEALTHY, *fault))
    with pytest.raises(SourceUnreadable, match="died of signal 11"):
        source.ask(REMAPPED)
    with pytest.raises(SourceBusy, match="restarting in 1 s"):
        source.ask(REMAPPED)
    machine.becomes(HEALTHY)
    clock.advance(1)
    assert len(source.ask(REMAPPED)) == 8


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("version_mismatch", r"LIB_RM_VERSION_MISMATCH \(18\).*reload the driver or reboot"),
        ("driver_not_loaded", r"DRIVER_NOT_LOADED \(9\).*kernel module"),
    ],
)
@pytest.mark.parametrize("asked_before", [True, False])
def test_a_library_without_its_driver_is_unreadable(machine: Any, fault: str, words: str, asked_before: bool) -> None:
    """The text has the code's name and the next step; the worker with the stale library ends; then it comes back."""
    source = machine.source()
    if asked_before:
        source.ask(REMAPPED)
    machine.becomes(with_library_fault(HEALTHY, fault))
    for question in (source.system, source.ask):
        with pytest.raises(SourceUnreadable, match=words):
            question()
        assert source.worker_pid() is None
    machine.becomes(HEALTHY)
    assert len(source.ask(REMAPPED)) == 8


def test_a_library_that_hangs_while_it_starts_is_left_its_grace(machine: Any, clock: Any) -> None:
    """nvmlInit that does not return: time-outs at the deadline, and the worker is killed only after its grace."""
    machine.becomes(with_library_fault(HEALTHY, "hang 60"))
    source = machine.source(deadline_s=1.0, start_grace_s=20, clock=clock)
    with pytest.raises(SourceTimeout, match="still starting"):
        source.ask(REMAPPED)
    clock.advance(21)
    with pytest.raises(SourceTimeout, match="was killed"):
        source.ask(REMAPPED)
    machine.becomes(HEALTHY)
    clock.advance(1)
    assert len(source.ask(REMAPPED)) == 8


def test_gpus_that_nobody_keeps_initialised_have_their_time(machine: Any, clock: Any) -> None:
    """Eight times a second, with five for an answer: unknown until they are there, and never a stall."""
    machine.becomes({**HEALTHY, **{f"gpu{index}.starts_s": "1" for index in range(8)}})
    source = machine.source(deadline_s=5.0, clock=clock)
    with pytest.raises(SourceTimeout, match="still starting"):
        source.ask(REMAPPED)
    pid, until = source.worker_pid(), time.monotonic() + limit_s(30)
    while time.monotonic() < until:
        with contextlib.suppress(SourceTimeout):
            assert len(source.ask(REMAPPED)) == 8
            break
    assert (source.worker_pid(), source.state().stalled_s) == (pid, 0.0)


def test_a_driver_that_lost_its_state_is_initialised_again(machine: Any) -> None:
    """UNINITIALIZED from one call: the next question initialises NVML again in the same worker."""
    source = machine.source()
    machine.becomes(sim.with_line(HEALTHY, f"gpu0.{REMAPPED}", "error 1"))
    assert source.ask(REMAPPED)[0].values[REMAPPED] == NvmlFailure(code=1, name="UNINITIALIZED")
    pid = source.worker_pid()
    machine.becomes(HEALTHY)
    assert source.ask(REMAPPED)[0].values[REMAPPED] == [0, 0, 0, 0]
    assert source.worker_pid() == pid


def test_a_name_does_not_stick_to_another_gpu(machine: Any) -> None:
    """After a reload that renumbered the GPUs, a lost index is not given the UUID of a GPU that answers elsewhere."""
    source = machine.source()
    source.ask()
    moved = {**HEALTHY, "gpu0.uuid": sim.uuid(1), "gpu1.fault": "lost", "gpu1.uuid": sim.uuid(0)}
    machine.becomes(moved)
    answers = source.ask()
    assert answers[0].uuid == sim.uuid(1)
    assert (answers[1].uuid, answers[1].failure) == (None, LOST)


def test_a_gpu_that_is_not_counted_any_more_is_not_answered_for(machine: Any) -> None:
    """After a driver reload without one GPU, there are seven answers: the count is the finding."""
    source = machine.source()
    source.ask()
    machine.becomes(without_last_gpus(HEALTHY, 1))
    assert [answer.index for answer in source.ask()] == list(range(7))


def test_a_missing_library_is_missing(machine: Any, tmp_path: Any) -> None:
    """A path without a library is SourceMissing and says which path; it is no time-out and no crash."""
    missing = tmp_path / ("none.sim" if machine.library.endswith(".sim") else "none.so")
    source = NvmlSource(library=str(missing))
    machine.sources.append(source)
    with pytest.raises(SourceMissing, match=str(missing)):
        source.ask(REMAPPED)


@pytest.mark.skipif(HAS_DRIVER, reason="this machine has an NVIDIA driver: a missing library cannot be shown here")
def test_no_driver_on_the_machine_is_missing(real_pynvml: Any) -> None:
    """Left to find libnvidia-ml.so.1 itself where there is none, the source says that it comes with the driver."""
    source = NvmlSource()
    real_pynvml.sources.append(source)
    with pytest.raises(SourceMissing, match=r"libnvidia-ml\.so\.1 is not there"):
        source.system()


def test_a_file_that_is_no_library_is_unreadable(real_pynvml: Any, tmp_path: Any) -> None:
    """A shared object that cannot be loaded is told apart from one that is not there."""
    (tmp_path / "bad.so").write_bytes(b"not an ELF file")
    source = NvmlSource(library=str(tmp_path / "bad.so"))
    real_pynvml.sources.append(source)
    with pytest.raises(SourceUnreadable, match="cannot load"):
        source.ask()


@pytest.mark.parametrize(
    "call", ["nvmlDeviceSetEccMode(1)", "nvmlDeviceGetHandleByIndex(0)", "nvmlShutdown", "os.system"]
)
def test_only_calls_that_read_are_let_through(machine: Any, call: str) -> None:
    """A name that is not a reading call is refused before anything is asked, and the worker lives on."""
    source = machine.source()
    with pytest.raises(SourceUnreadable, match="expected nvmlDeviceGet"):
        source.ask(REMAPPED, call)
    assert source.worker_pid() is not None


def test_wrong_arguments_are_a_message_not_a_crash(real_pynvml: Any) -> None:
    """A call that pynvml wants more arguments for says so; the worker lives on."""
    source = real_pynvml.source()
    with pytest.raises(SourceUnreadable, match=r"nvmlDeviceGetTotalEccErrors.*missing 2 required"):
        source.ask("nvmlDeviceGetTotalEccErrors")
    assert source.worker_pid() is not None


def test_a_pause_reaches_the_worker_s_owner(machine: Any, clock: Any) -> None:
    """Paused, the source refuses with the reason and starts nothing."""
    source = machine.source(clock=clock)
    source.pause(30, "XID 119")
    with pytest.raises(SourceBusy, match="XID 119"):
        source.system()
    assert source.state().paused_s == 30.0
    assert source.worker_pid() is None
