"""Handwritten stand-ins for the ports of healthd: for its own tests, and for those of checks written elsewhere.

Each is as plain as the port allows and answers only with the given values. Any other question raises SourceMissing, so
a test cannot pass on an answer that its author did not write. Put a SourceError in the place of an answer, and the
question raises it.

    from healthd.testing import FakeNode, FakeNvml, healthy_gpu

    node = FakeNode(sys={"module/nvidia/version": "580.95.05"}, nvml=FakeNvml(healthy_gpu(0), healthy_gpu(1)))
    result = gpu_ecc(node, NoSettings())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from healthd.checklib.nvml_codes import NvmlReturn, field_key
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Result
from healthd.core.node import (
    ActiveTests,
    AllReduce,
    CommandResult,
    FileProbe,
    GdrCopy,
    GpuAnswer,
    Holders,
    KernelClock,
    KernelLogState,
    KernelRecord,
    Mount,
    Nvml,
    NvmlFailure,
    ProbeState,
    Space,
    Tree,
)
from healthd.sources.refusals import Refusals
from healthd.testing.gpu import (
    HEALTHY_GPU,
    HEALTHY_LINKS,
    HEALTHY_SRAM,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    OLDER_DRIVER,
    refusal,
)

__all__ = [
    "GPU_IS_LOST",
    "HEALTHY_GPU",
    "HEALTHY_LINKS",
    "HEALTHY_SRAM",
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "OLDER_DRIVER",
    "RESET_REQUIRED",
    "UNKNOWN",
    "Entry",
    "FakeActive",
    "FakeClock",
    "FakeLink",
    "FakeNode",
    "FakeNvml",
    "FakeTree",
    "codes",
    "failed_gpu",
    "fake_pci",
    "gpu_uuid",
    "gpu_with",
    "healthy_gpu",
    "pci_tree",
    "refusal",
]

T = TypeVar("T")

GPU_IS_LOST = refusal(NvmlReturn.GPU_IS_LOST)
RESET_REQUIRED = refusal(NvmlReturn.RESET_REQUIRED)
UNKNOWN = refusal(NvmlReturn.UNKNOWN)


class FakeLink(Struct, frozen=True):
    """In a :class:`FakeTree`, a symbolic link. It is only ever asked where it leads, and is not followed."""

    to: str


Entry = str | FakeLink | SourceError


class FakeTree:
    """A ``Tree`` held in a dictionary of path to text, :class:`FakeLink` or error. Folders are what paths imply.

    A path that ends in ``/`` is an empty folder. An error at a path is raised by every question about that path, be
    it a file or a folder; one at ``""`` by every question about the tree.
    """

    def __init__(self, entries: Mapping[str, Entry] | None = None) -> None:
        self.entries: dict[str, Entry] = dict(entries or {})

    def read(self, path: str) -> str:
        entry = self._at(path)
        if not isinstance(entry, str):
            raise SourceMissing(f"{path}: no such file in this FakeTree")
        return entry.strip()

    def names(self, path: str) -> tuple[str, ...]:
        """The names that the given paths imply below this one."""
        self._at(path)
        prefix = f"{path}/" if path else ""
        found = {key[len(prefix) :].split("/")[0] for key in self.entries if key.startswith(prefix) and key != path}
        if not found:
            raise SourceMissing(f"{path}: no such folder in this FakeTree")
        return tuple(sorted(found - {""}))

    def exists(self, path: str) -> bool:
        """Whether the path, or anything below it, was given."""
        return self._at(path) is not None or any(key.startswith(f"{path}/") for key in self.entries)

    def target(self, path: str) -> str:
        entry = self._at(path)
        if not isinstance(entry, FakeLink):
            raise SourceMissing(f"{path}: no such link in this FakeTree")
        return PurePosixPath(entry.to).name

    def may_open(self, path: str) -> bool:
        """Whether the path was given, and not as an error."""
        return path in self.entries and not isinstance(self.entries[path], SourceError)

    def _at(self, path: str) -> Entry | None:
        for key in ("", path):
            if isinstance(error := self.entries.get(key), SourceError):
                raise error
        return self.entries.get(path)


class FakeNvml:
    """An ``Nvml`` that gives its constructor's answers; ``asked`` lists the questions.

    ``error`` is raised by every question. ``excluded``: how many GPUs the driver's settings exclude. ``probe``: the
    state of the worker.
    """

    def __init__(
        self,
        *gpus: GpuAnswer,
        error: SourceError | None = None,
        excluded: int | None = 0,
        probe: ProbeState | None = None,
        driver_version: str = "580.95.05",
    ) -> None:
        self.gpus: Sequence[GpuAnswer] = gpus
        self.error = error
        self.excluded = excluded
        self.probe = probe or ProbeState()
        self.driver_version = driver_version
        self.asked: list[tuple[str, ...]] = []

    def ask(self, *calls: str, fields: Sequence[int | tuple[int, int]] = ()) -> tuple[GpuAnswer, ...]:
        """The given answers to these questions. A question that a GPU was given no answer for is SourceMissing."""
        keys = (*calls, *(field_key(*item) if isinstance(item, tuple) else field_key(item) for item in fields))
        self.asked.append(keys)
        if self.error:
            raise self.error
        return tuple(_only(gpu, keys) for gpu in self.gpus)

    def system(self) -> Mapping[str, Any]:
        if self.error:
            raise self.error
        return {
            "driver_version": self.driver_version,
            "nvml_version": f"13.{self.driver_version}",
            "gpu_count": len(self.gpus),
            "excluded_count": self.excluded,
        }

    def state(self) -> ProbeState:
        return self.probe


def codes(result: Result, *, family: str = "") -> list[str]:
    """The codes of what was found, in its order. ``family``: what all of them begin with, left out (``host.cpu.``)."""
    return [finding.code.removeprefix(family) for finding in result.findings]


def gpu_uuid(index: int) -> str:
    """The UUID that :func:`healthy_gpu` gives a GPU."""
    return f"GPU-fa4e0000-0000-4000-8000-{index:012d}"


def healthy_gpu(index: int, *, pci: str | None = None) -> GpuAnswer:
    """A GPU with nothing wrong, at :func:`fake_pci` unless its address is given."""
    return gpu_with(index, {}, pci=pci)


def gpu_with(index: int, values: Mapping[str, Any], *, pci: str | None = None) -> GpuAnswer:
    """A healthy GPU but for these answers: ``{"field:230": 1}``, or an NvmlFailure in the place of a value."""
    return GpuAnswer(index=index, uuid=gpu_uuid(index), pci=pci or fake_pci(index), values={**HEALTHY_GPU, **values})


def failed_gpu(index: int, failure: NvmlFailure = GPU_IS_LOST, *, named: bool = False) -> GpuAnswer:
    """A GPU whose very handle is refused. ``named``: its source remembers who it was."""
    return GpuAnswer(
        index=index,
        uuid=gpu_uuid(index) if named else None,
        pci=fake_pci(index) if named else None,
        failure=failure,
        values=dict.fromkeys(HEALTHY_GPU, failure),
    )


def fake_pci(index: int) -> str:
    """The PCI address that :func:`healthy_gpu` gives a GPU: ``0000:11:00`` for index 1."""
    return f"0000:{index * 0x11:02x}:00"


def pci_tree(*, gpus: Sequence[str] = (), efa: Sequence[str] = ()) -> dict[str, Entry]:
    """Entries of a /sys with these PCI addresses, and the host bridge that every bus has.

    GPUs are H100 (``0000:53:00``), and their driver has them. EFA devices (``0000:4f:00``) are complete up to user
    space.
    """
    devices: dict[str, dict[str, Entry]] = {
        "0000:00:00.0": {"vendor": "0x8086", "device": "0x1237", "class": "0x060000"}
    }
    for address in gpus:
        gpu = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}
        devices[f"{address}.0"] = {**gpu, "driver": FakeLink("../../bus/pci/drivers/nvidia")}
    for number, address in enumerate(efa):
        name = f"rdmap{int(address.split(':')[1], 16)}s0"
        devices[f"{address}.0"] = {
            "vendor": "0x1d0f",
            "device": "0xefa1",
            "class": "0x020000",
            "p2p": "NVIDIA",
            f"infiniband/{name}/node_type": "4: unspecified",
            f"infiniband_verbs/uverbs{number}/ibdev": name,
        }
    tree: dict[str, Entry] = {
        f"bus/pci/devices/{name}/{key}": entry for name, entries in devices.items() for key, entry in entries.items()
    }
    return {**tree, "module/efa/version": "3.1.0g"} if efa else tree


class FakeActive(Struct, kw_only=True):
    """``ActiveTests`` of plain values. Each all-reduce on a path takes the next of its answers; the last one stays."""

    reduces: Mapping[str, Sequence[AllReduce | SourceError]] = field(default_factory=dict)
    copies: Sequence[GdrCopy] | SourceError | None = None
    asked: list[str] = field(default_factory=list)

    def all_reduce(self, path: Literal["nvlink", "network"], *, size_bytes: int, timeout_s: float) -> AllReduce:
        """The next answer for this path."""
        answers, earlier = self.reduces.get(path, ()), self.asked.count(path)
        self.asked.append(path)
        return _given(answers[min(earlier, len(answers) - 1)] if answers else None, f"an all-reduce over {path}")

    def gdr_copies(self, *, size_bytes: int, timeout_s: float) -> tuple[GdrCopy, ...]:
        return tuple(_given(self.copies, "GDRCopy"))


class FakeNode(Struct, kw_only=True, dict=True):
    """A ``Node`` of plain values. Trees may be given as dictionaries; ``mount_table`` None is a missing /proc.

    ``metadata_items`` None: no instance metadata service is here.
    """

    name: str = "node-1"
    boot: str | SourceError = "b007b007-0000-4000-8000-000000000001"
    instance_type: str | None = None
    sys: Any = field(default_factory=dict)
    proc: Any = field(default_factory=dict)
    dev: Any = field(default_factory=dict)
    nvml: Nvml = field(default_factory=lambda: FakeNvml(error=SourceMissing("NVML: libnvidia-ml.so.1 is not there")))
    active: ActiveTests = field(default_factory=FakeActive)
    mount_table: Sequence[Mount] | SourceError | None = None
    spaces: Mapping[str, Space | SourceError] = field(default_factory=dict)
    space_holders: Mapping[str, Holders | SourceError] = field(default_factory=dict)
    file_probes: Mapping[str, FileProbe | SourceError] = field(default_factory=dict)
    mount_states: Mapping[str, ProbeState] = field(default_factory=dict)
    kernel_clock: KernelClock | SourceError | None = None
    metadata_items: Mapping[str, str | SourceError] | SourceError | None = None
    commands: Mapping[tuple[str, ...], CommandResult | SourceError] = field(default_factory=dict)
    kernel_records: Sequence[KernelRecord] = ()
    kernel_log: KernelLogState = field(default_factory=lambda: KernelLogState(source="/dev/kmsg", alive=True))

    def __post_init__(self) -> None:
        """Make trees of dictionaries."""
        self.sys, self.proc, self.dev = (_tree(tree) for tree in (self.sys, self.proc, self.dev))

    @property
    def boot_id(self) -> str:
        return _given(self.boot, "the boot id")

    def mounts(self) -> tuple[Mount, ...]:
        """As given."""
        return tuple(_given(self.mount_table, "the mount table"))

    def space(self, point: str) -> Space:
        """As given for this mount point."""
        return _given(self.spaces.get(point), f"the space of {point}")

    def holders(self, point: str) -> Holders:
        """As given for this mount point."""
        return _given(self.space_holders.get(point), f"the holders of {point}")

    def file_probe(self, point: str, folder: str = "", *, size_bytes: int = 1 << 18) -> FileProbe:
        """As given for this folder, or this mount point."""
        return _given(self.file_probes.get(folder or point), f"the file probe of {folder or point}")

    def mount_state(self, point: str) -> ProbeState:
        """As given for this mount point; else a worker that was never asked."""
        return self.mount_states.get(point, ProbeState())

    def clock(self) -> KernelClock:
        """As given."""
        return _given(self.kernel_clock, "the kernel's clock")

    def metadata(self, path: str) -> str | None:
        """As given; an item that was not given is one that the service does not have."""
        item = _given(self.metadata_items, "an instance metadata service").get(path)
        return None if item is None else _given(item, path)

    def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
        """As given for exactly these arguments."""
        return _given(self.commands.get(argv), f"the command {' '.join(argv)}")


class FakeClock:
    """Time that passes only by ``advance``: ``now()`` is aware UTC, calling the clock gives monotonic seconds."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = self._now = start
        self._passed_s = 0.0

    def __call__(self) -> float:
        """Monotonic seconds since the start."""
        return self._passed_s

    def now(self) -> datetime:
        """The wall clock."""
        return self._now

    def set_by(self, seconds: float) -> None:
        """Set the wall clock forward or (negative) back, as an operator does."""
        self._start += timedelta(seconds=seconds)
        self._now = self._start + timedelta(seconds=self._passed_s)

    def advance(self, seconds: float) -> None:
        """Let time pass. It never goes back."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): monotonic time does not go back")
        self._passed_s += seconds
        self._now = self._start + timedelta(seconds=self._passed_s)


# ---------------------------------------------------------------------------------------------------------------------


def _given(answer: T | SourceError | None, what: str) -> T:
    if isinstance(answer, SourceError):
        raise answer
    if answer is None:
        raise SourceMissing(f"this FakeNode was not given {what}")
    return answer


def _tree(tree: Tree | Mapping[str, Entry]) -> Tree:
    return FakeTree(tree) if isinstance(tree, Mapping) else tree


def _only(gpu: GpuAnswer, keys: tuple[str, ...]) -> GpuAnswer:
    missing = [key for key in keys if key not in gpu.values]
    if missing:
        raise SourceUnreadable(f"this FakeNvml has no answer of GPU {gpu.index} to {', '.join(missing)}")
    return Refusals(lambda: 0.0).noted(replace(gpu, values={key: gpu.values[key] for key in keys}))
