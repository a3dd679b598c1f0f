"""What is played, and where it enters: a copy of the machine that differs in one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.config.load import load
from healthd.config.schema.config import Config
from healthd.core.check import discover
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout, UsageError
from healthd.core.node import KernelLogState, NvmlFailure
from healthd.drill.chain import IN_THE_LINE, KINDS, DrillRequest
from healthd.drill.injection import Injection, Overlay, prepare
from healthd.sim import tree
from healthd.sim.machine import SimulatedMachine
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state, with_line
from healthd.sources.machine import Machine, open_machine
from healthd.testing import FakeTree
from tests.support.nvml_states import with_library_fault

ROWS = "nvmlDeviceGetRemappedRows"


# ---------------------------------------------------------------------------------------------------------------------
# the overlay


def test_what_is_hidden_is_gone_with_all_below_it() -> None:
    """A device that is hidden is in no listing, and nothing of it can be read; its neighbour is as it was."""
    under = FakeTree({"bus/a/vendor": "1", "bus/ab/vendor": "2", "bus/a/x/y": "3"})
    over = Overlay(under, hidden=["bus/a"])
    assert over.names("bus") == ("ab",)
    assert (over.exists("bus/a/vendor"), over.exists("bus/ab/vendor"), over.read("bus/ab/vendor")) == (False, True, "2")
    for ask in (lambda: over.read("bus/a/vendor"), lambda: over.names("bus/a"), lambda: over.target("bus/a/x")):
        with pytest.raises(SourceMissing, match="missing in this drill"):
            ask()


def test_a_file_may_read_otherwise_and_the_tree_below_does_not() -> None:
    """The text is the drill's for whoever is given the overlay, and for nobody else."""
    under = FakeTree({"self/mountinfo": "as it is", "uptime": "1 2"})
    over = Overlay(under, texts={"self/mountinfo": "as it is played"})
    assert (over.read("self/mountinfo"), over.read("uptime")) == ("as it is played", "1 2")
    assert under.read("self/mountinfo") == "as it is"


# ---------------------------------------------------------------------------------------------------------------------
# the kinds, on a simulated machine


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedMachine:
    return SimulatedMachine(tmp_path / "machine")


@pytest.fixture
def config(simulated: SimulatedMachine) -> Config:
    checks = {name: check.settings for name, check in discover().items()}
    return load(simulated.config, checks=checks, environ={}).config


@pytest.fixture
def machine(config: Config) -> Iterator[Machine]:
    made = open_machine(config, lambda: KernelLogState(source="kmsg", alive=True))
    yield made
    made.close()


@pytest.fixture
def play(machine: Machine, config: Config) -> Iterator[Any]:
    """Prepares a kind, with whatever it needs ended afterwards."""
    made: list[Injection] = []

    def prepared(name: str, **asked: Any) -> Injection:
        kind = KINDS[name]
        order = DrillRequest(kind=kind, who="uid 0", number=asked.pop("number", kind.number), **asked)
        made.append(prepare(order, machine, config.checks[kind.check].settings))
        return made[-1]

    yield prepared
    for each in made:
        each.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("gpu", "what"),
    [
        ("", "XID 79 on GPU 0 (0000:53:00)"),
        ("3", "XID 79 on GPU 3 (0000:86:00)"),
        ("00000000:86:00.0", "XID 79 on GPU 3 (0000:86:00)"),
    ],
)
def test_a_gpu_is_named_by_its_index_or_its_address(play: Any, gpu: str, what: str) -> None:
    """And by neither, it is the first; the line names its address, as the driver does."""
    injection = play("xid", gpu=gpu)
    assert injection.what == what
    assert f"(PCI:{what.partition('(')[2]}: 79," in injection.line
    assert IN_THE_LINE in injection.line
    assert "pauses NVML" in injection.note
    assert play("xid", gpu=gpu, number=13).note == ""


@pytest.mark.process
@pytest.mark.parametrize("gpu", ["8", "0000:05:00", "third"])
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(play: Any, gpu: str) -> None:
    """A drill of the wrong part would prove nothing."""
    with pytest.raises(UsageError, match=rf"no GPU '{gpu}'; expected one of: 0 \(0000:53:00\), 1"):
        play("xid", gpu=gpu)


@pytest.mark.process
def test_gpus_are_found_without_nvml(play: Any, simulated: SimulatedMachine) -> None:
    """Where NVML does not tell, the bus does: a driver that is gone is no reason not to play a line of its log."""
    write_state(simulated.nvml, with_library_fault(healthy_state(), "driver_not_loaded"))
    assert play("xid", gpu="3").what == "XID 79 on GPU 3 (0000:86:00)"


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xid", "no NVIDIA GPU on its PCI bus"),
        ("nvml-hang", "no NVIDIA GPU on its PCI bus"),
        ("remap-pending", "no NVIDIA GPU on its PCI bus"),
        ("sxid", "no NVSwitch on its PCI bus"),
        ("efa-loss", "no EFA device on its PCI bus"),
        ("lustre-hang", "no mount of type lustre, nfs, nfs4 that lustre.io asks"),
    ],
)
def test_what_a_node_does_not_have_cannot_fail(machine: Machine, config: Config, name: str, words: str) -> None:
    """It is refused in words, not found missing at the end."""
    write_state(Path(config.sources.nvml_library), {"lib.count": "0"})
    bare = replace(machine, sys=FakeTree({"bus/pci/devices/0000:00:00.0/vendor": "0x8086"}), proc=_without_mounts())
    with pytest.raises(UsageError, match=words):
        prepare(DrillRequest(kind=KINDS[name], who="uid 0"), bare, config.checks[KINDS[name].check].settings)


def _without_mounts() -> FakeTree:
    return FakeTree({"self/mountinfo": "26 1 259:1 / / rw shared:4 - ext4 /dev/nvme0n1p1 rw"})


@pytest.mark.process
def test_a_lost_efa_device_is_lost_in_the_copy_alone(play: Any, machine: Machine) -> None:
    """The copy lists one less, by its function and by its RDMA device; the machine itself has all."""
    injection = play("efa-loss")
    assert injection.what == "EFA device rdmap201s0 0000:c9:00.0 is missing, 31 of 32 are left"
    assert "0000:c9:00.0" not in injection.machine.sys.names("bus/pci/devices")
    assert "rdmap201s0" not in injection.machine.sys.names("class/infiniband")
    assert "0000:c9:00.0" in machine.sys.names("bus/pci/devices")


@pytest.mark.process
def test_a_pending_remap_is_one_number_of_one_gpu(play: Any, machine: Machine, simulated: SimulatedMachine) -> None:
    """What else the GPU answers is real, and so is all that the others answer."""
    write_state(simulated.nvml, with_line(healthy_state(), f"gpu3.{ROWS}", "2 1 0 0"))
    told = {answer.index: answer.values[ROWS] for answer in play("remap-pending", gpu="3").machine.nvml.ask(ROWS)}
    assert (list(told[3]), list(told[2])) == ([2, 1, 1, 0], [0, 0, 0, 0])
    assert [list(answer.values[ROWS]) for answer in machine.nvml.ask(ROWS)][3] == [2, 1, 0, 0]


@pytest.mark.process
def test_a_gpu_without_rows_is_left_as_it_is(play: Any, simulated: SimulatedMachine) -> None:
    """A GPU that does not answer about rows has none that could be pending: the chain will say so."""
    write_state(simulated.nvml, with_line(healthy_state(), f"gpu0.{ROWS}", "error 3"))
    (first, *_) = play("remap-pending").machine.nvml.ask(ROWS)
    assert isinstance(first.values[ROWS], NvmlFailure)


@pytest.mark.process
def test_a_hang_is_a_worker_of_the_drills_own(play: Any, machine: Machine) -> None:
    """The mount that is asked for answers nothing, no other is listed, and the node's own workers are not asked."""
    injection = play("lustre-hang", mount="/fsx")
    assert [mount.point for mount in injection.machine.mounts()] == ["/fsx"]
    assert injection.machine.file_systems is not machine.file_systems
    injection.machine.file_systems._deadline_s = 0.3  # five seconds are the real one's
    with pytest.raises(SourceTimeout, match="no answer to 'statvfs'"):
        injection.machine.space("/fsx")
    assert machine.file_systems.states() == {}
    assert len(machine.mounts()) > 1


@pytest.mark.process
def test_a_closed_injection_starts_no_worker(play: Any) -> None:
    """Of a daemon that stops just before the drill's check asks: it would wait for a worker that never answers."""
    library, mounts = play("nvml-hang"), play("lustre-hang")
    for each in (library, mounts):
        each.close()
    asks: tuple[Callable[[], object], ...] = (
        lambda: library.machine.nvml.ask(ROWS),
        lambda: mounts.machine.space("/fsx"),
    )
    for ask in asks:
        with pytest.raises(SourceError) as caught:
            ask()
        assert not isinstance(caught.value, SourceTimeout)


@pytest.mark.process
def test_the_mount_that_programs_see_is_played(play: Any) -> None:
    """Of an automount and what it mounted, the latter; a point that nobody asks is refused with those that are."""
    assert play("lustre-hang").what.startswith("/fsx (lustre, 192.168.50.246@tcp:/6cz4zbev) ")
    with pytest.raises(UsageError, match=r"'/data' is not a mount of type lustre.*; expected one of: /fsx"):
        play("lustre-hang", mount="/data")


@pytest.mark.process
def test_a_file_system_stops_in_the_copy_alone(play: Any, machine: Machine, simulated: SimulatedMachine) -> None:
    """The word of newer kernels stands behind the options of that mount, and the table of the machine is as it was."""
    tree.mount(simulated.root, "95 26 259:2 / /scratch rw - ext4 /dev/nvme1n1 rw")
    (mount,) = play("read-only", mount="/scratch").machine.mounts()
    assert (mount.point, mount.options) == ("/scratch", frozenset({"rw", "emergency_ro"}))
    assert play("read-only").what.startswith("/ (ext4, /dev/nvme0n1p1) takes no writes")
    assert not any("emergency_ro" in mount.options for mount in machine.mounts())


def test_a_mount_with_an_odd_name_keeps_no_other_from_being_played(play: Any, simulated: SimulatedMachine) -> None:
    """Any user may mount a file system of their own, at a folder whose name has the line ends of Unicode in it."""
    table = simulated.root / "proc/self/mountinfo"
    odd = "96 26 0:60 / /home/a\u2028b\x85c rw - fuse.sshfs x rw\n"
    table.write_text(f"{table.read_text()}{odd}", encoding="utf-8")
    (mount,) = play("read-only").machine.mounts()
    assert (mount.point, "emergency_ro" in mount.options) == ("/", True)
