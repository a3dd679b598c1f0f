"""Laws over whole nodes: health is silent, silence is not health, and no answer of a machine breaks a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from healthd.checklib.tables import InstanceProfile, instance_types
from healthd.core.check import Check, discover
from healthd.core.errors import SourceBusy, SourceError, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import Outcome, Result, Status, pci_address
from healthd.core.node import (
    GpuAnswer,
    KernelLogState,
    Mount,
    NvmlFailure,
    Space,
)
from healthd.observe.runner import run_check
from healthd.sim import tree
from healthd.sim.host import IMPORTS_IN
from healthd.sources.mounts import parse_mountinfo
from healthd.sources.trees import FileTree
from healthd.testing import HEALTHY_GPU, OLDER_DRIVER, FakeNode, FakeNvml, failed_gpu, fake_pci, gpu_with, pci_tree
from tests.support.healthy_node import CLOCK, QUICK, ROOM, Tools
from tests.support.sampling import examples
from tests.support.sim_devices import remove_efa, remove_gpu, unbind_efa, unmount

CHECKS = {name: check for name, check in discover().items() if check.on == "interval"}
ERRORS = (
    SourceMissing("not there"),
    SourceTimeout("no answer in 5 s"),
    SourceBusy("an earlier question is still out"),
    SourceUnreadable("EIO"),
)
HEALTHY_CALLS = tuple(key for key in HEALTHY_GPU if not key.startswith("field:"))
HEALTHY_FIELDS = tuple(
    (int(field), int(scope or "0"))
    for field, _, scope in (
        key.removeprefix("field:").partition("/") for key in HEALTHY_GPU if key.startswith("field:")
    )
)
# A part of an answer that these checks do without, when it is certain that it is not there.
SOURCES = ("sys", "proc", "dev", "nvml", "mounts", "space", "file_probe", "clock", "metadata", "command")
DOES_WITHOUT = {
    ("gpu.ecc", "sys"),
    ("host.filesystems", "sys"),
    ("host.kernel", "sys"),  # a kernel without pstore
    ("host.cpu", "proc"),  # a kernel without pressure stall information
    ("host.clock", "command"),  # no chronyd: the kernel is asked
    ("cloud.events", "metadata"),  # not EC2
    *((check, "sys") for check in ("gpu.nvlink", "gpu.pcie", "gpu.sram", "gpu.throttle")),  # no version: as gpu.ecc
    ("gpu.peermem", "proc"),  # there are two other ways
    ("gpu.processes", "proc"),  # a kernel without pid namespaces: no GPU that is free ends a fault
    ("stack.versions", "command"),  # parts that are not installed
    ("efa.provider", "command"),  # jobs bring libfabric in their containers
    ("ebs.allowances", "command"),  # an nvme-cli that cannot read them, or none
    ("ena.allowances", "command"),  # no ethtool
    ("storage.nvme", "command"),  # no nvme-cli: the disks and their states are in sysfs
}
# What a site configures; and an NVL72 domain and its C2C links, and an XFS file system, which this type has not.
NEEDS_CONFIGURATION = {"gpu.c2c", "gpu.imex", "host.expect", "host.reach", "plugin.run", "storage.xfs"}


def build(
    root: Path, profile: InstanceProfile, *, lustre: str = "2.15", past: Mapping[str, Any] | None = None
) -> FakeNode:
    """A healthy node of this type: a constructed file tree, and GPUs at its addresses with nothing wrong since."""
    layout = tree.build(root, profile.type, lustre=lustre)
    gpus = [gpu_with(index, past or {}, pci=pci_address(address)) for index, address in enumerate(layout.gpus)]
    proc = FileTree(root / "proc")
    return FakeNode(
        boot=proc.read("sys/kernel/random/boot_id"),
        instance_type=profile.type,
        sys=FileTree(root / "sys"),
        proc=proc,
        dev=FileTree(root / "dev"),
        nvml=FakeNvml(*gpus),
        mount_table=parse_mountinfo(proc.read("self/mountinfo")),
        spaces={"/": ROOM, "/fsx": ROOM},
        file_probes={"/fsx": QUICK},
        kernel_clock=CLOCK,
        metadata_items={},
        commands=Tools(profile),
        kernel_log=KernelLogState(source="/dev/kmsg", alive=True),
    )


@pytest.fixture(scope="module")
def whole_p5(tmp_path_factory: pytest.TempPathFactory) -> FakeNode:
    return build(tmp_path_factory.mktemp("whole") / "p5", instance_types()["p5.48xlarge"])


@pytest.fixture
def p5(whole_p5: FakeNode) -> FakeNode:
    """A copy whose sources a test may cut off; the files behind it are everybody's, and stay as they are."""
    return replace(whole_p5)


def outcomes(node: FakeNode) -> dict[str, Outcome]:
    return {name: run_check(check, node, check.settings()) for name, check in CHECKS.items()}


# ---------------------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(sorted(instance_types().values(), key=lambda p: p.type)),
    st.sampled_from(["", *IMPORTS_IN]),
    st.integers(0, 10**9),
    st.sampled_from([{}, OLDER_DRIVER]),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_healthy_node_of_any_type_is_silent(
    profile: InstanceProfile, lustre: str, old_errors: int, driver: Mapping[str, Any]
) -> None:
    """No check finds anything, or is unsure, on a healthy node of any type, whatever its GPUs went through before, and
    whether or not its driver knows the newest questions."""
    with TemporaryDirectory() as folder:
        past = {"nvmlDeviceGetTotalEccErrors(1, 1)": old_errors, "nvmlDeviceGetTotalEccErrors(0, 0)": old_errors}
        past = {**past, **driver}
        node = build(Path(folder), profile, lustre=lustre, past=past)
        for name, outcome in outcomes(node).items():
            assert outcome.result.status in (Status.OK, Status.NOT_APPLICABLE), (name, outcome.result)


def test_nothing_is_left_out_on_a_p5(p5: FakeNode) -> None:
    """On a healthy p5.48xlarge every check applies and is ok, but for those that a site must configure first."""
    found = {name: outcome.result.status for name, outcome in outcomes(p5).items()}
    assert {name for name, status in found.items() if status is not Status.OK} == NEEDS_CONFIGURATION
    assert {found[name] for name in NEEDS_CONFIGURATION} == {Status.NOT_APPLICABLE}


def off_the_bus(root: Path) -> None:
    remove_gpu(root, "0000:ca:00")


def last_efa_gone(root: Path) -> None:
    assert remove_efa(root) == "rdmap201s0"


def last_efa_unbound(root: Path) -> None:
    assert unbind_efa(root) == "0000:c9:00.0"


def fsx_gone(root: Path) -> None:
    unmount(root, "/fsx")


def root_in_error(root: Path) -> None:
    unmount(root, "/")
    tree.mount(root, "26 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw,errors=remount-ro,emergency_ro")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (off_the_bus, {"gpu.count.off_bus"}),
        (last_efa_gone, {"efa.below_usual"}),
        (last_efa_unbound, {"efa.driver_lost"}),
        (fsx_gone, set()),
        (root_in_error, {"host.filesystem.read_only"}),
    ],
)
def test_one_fault_of_the_tree_is_one_finding(tmp_path: Path, fault: Callable[[Path], None], found: set[str]) -> None:
    """Each change of the constructed machine shows in the check that it is about, and in no other."""
    root = tmp_path / "p5"
    node = build(root, instance_types()["p5.48xlarge"])
    fault(root)
    node.mount_table = parse_mountinfo(node.proc.read("self/mountinfo"))
    on_bus = node.sys.names("bus/pci/devices")
    gpus = node.nvml.ask(*HEALTHY_CALLS, fields=HEALTHY_FIELDS)
    node.nvml = FakeNvml(*(gpu for gpu in gpus if f"{gpu.pci}.0" in on_bus))
    results = [outcome.result for outcome in outcomes(node).values()]
    assert {finding.code for result in results for finding in result.findings} == found
    assert not any(result.status is Status.UNKNOWN for result in results)


def test_a_new_boot_is_a_new_epoch(tmp_path: Path) -> None:
    """A reboot of the constructed machine changes its boot id, and with it what volatile counters belong to."""
    node = build(tmp_path / "p5", instance_types()["p5.48xlarge"])
    before = {reading.epoch for reading in outcomes(node)["gpu.ecc"].result.readings}
    node.boot = tree.new_boot(tmp_path / "p5")
    assert node.boot == node.proc.read("sys/kernel/random/boot_id") != tree.BOOT_ID
    after = {reading.epoch for reading in outcomes(node)["gpu.ecc"].result.readings}
    assert before & after == {"inforom"}


def test_a_type_that_the_table_does_not_know_is_not_built(tmp_path: Path) -> None:
    """No hardware is invented for an unknown type."""
    with pytest.raises(KeyError, match=r"p99\.metal"):
        tree.build(tmp_path, "p99.metal")


class Unreachable(Struct, dict=True):
    """A source that answers every question, of whatever name, with the same error, and remembers being asked."""

    error: SourceError
    asked: bool = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*_: Any, **__: Any) -> Any:
            self.asked = True
            raise self.error

        return answer


class Spaces(Mapping[str, Space]):
    """Disks that all answer with one error, remembered as asked by the source behind them."""

    def __init__(self, source: Unreachable) -> None:
        self._source = source

    def get(self, key: str, default: Any = None) -> Any:
        self._source.asked = True
        return self._source.error

    def __getitem__(self, key: str) -> Space:
        raise self._source.error

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Table:
    """A mount table that cannot be read."""

    def __init__(self, source: Unreachable) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Mount]:
        self._source.asked = True
        raise self._source.error


def cut_off(node: FakeNode, source: str, error: SourceError) -> Unreachable:
    """The node with one of its sources unreachable."""
    broken = Unreachable(error)
    match source:
        case "mounts":
            node.mount_table = Table(broken)  # type: ignore[assignment]  # iterated, and no more
        case "space":
            node.spaces = Spaces(broken)
        case "file_probe" | "clock" | "metadata" | "command":
            setattr(node, source, broken.answer)
        case _:
            setattr(node, source, broken)
    return broken


def test_a_source_that_fails_is_never_ok(whole_p5: FakeNode) -> None:
    """On a node that has everything, a source that fails in any way makes every check that asks it unknown.

    Not ok, because nothing was seen; not *not applicable*, because the node does have it; no finding, because a
    source's failure is evidence of nothing.
    """
    wrong = [
        f"{check.name}, {source}: {type(error).__name__}: {result}"
        for check, error, source in product(CHECKS.values(), ERRORS, SOURCES)
        if (result := mistaken(replace(whole_p5), check, error, source)) is not None
    ]
    assert not wrong, "\n".join(wrong)


def mistaken(node: FakeNode, check: Check, error: SourceError, source: str) -> Result | None:
    """What the check makes of a source that fails, where it is not what it should be."""
    broken = cut_off(node, source, error)
    if source == "nvml":
        broken.state = lambda: FakeNvml().state()  # type: ignore[attr-defined]  # the one question that never fails
    result = run_check(check, node, check.settings()).result
    if not broken.asked:
        expected = Status.NOT_APPLICABLE if check.name in NEEDS_CONFIGURATION else Status.OK
        return None if result.status is expected else result
    if isinstance(error, SourceMissing) and (check.name, source) in DOES_WITHOUT:
        return None
    return None if result.status is Status.UNKNOWN and "defect" not in result.reason else result


def test_the_matrix_is_not_empty(p5: FakeNode) -> None:
    """Every source is asked by some check, so no column of the matrix above passes by asking nothing."""
    for source in SOURCES:
        node = replace(p5)
        if source == "clock":  # asked where no chronyd answers
            node.commands = {}
        broken = cut_off(node, source, ERRORS[1])
        if source == "nvml":
            broken.state = lambda: FakeNvml().state()  # type: ignore[attr-defined]  # as above
        outcomes(node)
        assert broken.asked, source


# ---------------------------------------------------------------------------------------------------------------------

FAILURES = st.sampled_from([1, 3, 9, 13, 15, 16, 17, 27, 999]).map(lambda code: NvmlFailure(code=code, name=f"E{code}"))
COUNTS = st.integers(0, 2**64 - 1)
PLACE = dict.fromkeys(("unit", "location", "sublocation", "extlocation", "address", "isParity", "count"), 0)
HOLDER = {"pid": 1, "usedGpuMemory": None, "gpuInstanceId": 0, "computeInstanceId": 0}
ANSWERS: Mapping[str, Any] = {
    **HEALTHY_GPU,
    "nvmlDeviceGetRemappedRows": [0, 0, False, False],
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts": [PLACE],
    "nvmlDeviceGetComputeRunningProcesses": [HOLDER],
    "nvmlDeviceGetRetiredPages_v2(1)": [{"address": 0, "timestamp": 0}],
    "nvmlDeviceGetRetiredPagesPendingStatus": 0,
    "nvmlDeviceGetRepairStatus": [0, 0],
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": 0,
}


@st.composite
def gpus(draw: st.DrawFn) -> GpuAnswer:
    """Any answer that NVML can give: healthy, absurd, refused in part, or lost with or without a name."""
    index = draw(st.integers(0, 15))
    if draw(st.integers(0, 3)) == 0:
        failure, named = draw(FAILURES), draw(st.booleans())
        return failed_gpu(index, failure, named=named)
    strange = draw(st.lists(st.sampled_from(sorted(ANSWERS)), max_size=8, unique=True))
    return gpu_with(index, {**ANSWERS, **{key: draw(FAILURES | shaped(ANSWERS[key])) for key in strange}})


def shaped(like: Any) -> st.SearchStrategy[Any]:
    """Any answer of this shape: absurd numbers in the same fields."""
    match like:
        case dict():
            return st.fixed_dictionaries({name: shaped(value) for name, value in like.items()})
        case list():
            return st.tuples(*(shaped(value) for value in like)).map(list)
        case str():
            return st.text(max_size=4)
        case None | NvmlFailure():
            return st.just(like)
        case _:
            return COUNTS | st.just(0)


@given(
    st.lists(gpus(), max_size=9, unique_by=lambda gpu: gpu.index),
    st.none() | st.integers(0, 9),
    st.sampled_from([None, "p5.48xlarge", "g5.xlarge", "p99.metal"]),
    st.integers(0, 9),
)
@settings(max_examples=examples(200), deadline=None)
def test_no_answer_of_a_gpu_breaks_a_check(
    answers: list[GpuAnswer], excluded: int | None, instance_type: str | None, files: int
) -> None:
    """Whatever NVML answers, a check judges it in its own declared codes, and never by failing."""
    node = FakeNode(
        instance_type=instance_type,
        sys=pci_tree(gpus=[fake_pci(index) for index in range(8)]),
        proc={"uptime": "86400.0 0.0"},
        dev={"null": "", **{f"nvidia{index}": "" for index in range(files)}},
        nvml=FakeNvml(*answers, excluded=excluded),
    )
    for name, check in CHECKS.items():
        if name.startswith(("gpu.", "nvml.")):
            result = run_check(check, node, check.settings()).result
            assert "defect" not in result.reason, (name, result.reason)
            assert {finding.code for finding in result.findings} <= {code.code for code in check.codes}
            assert result.status is not Status.OK or not result.undecided
