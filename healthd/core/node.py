"""The machine as a check may read it: Protocols only, no I/O.

The real answers come from ``healthd.sources``, the simulated ones from ``healthd.sim``, handwritten ones from
``healthd.testing``. Every call may raise a :class:`~healthd.core.errors.SourceError`; a check does not catch it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import Struct, field

RECORD_LEAD = (
    r"(?> *(?:<\d{1,3}> *)?"
    r"(?:(?:[A-Z][a-z]{2} +\d{1,2} [\d:]{8}|\d{4}-\d\d-\d\dT\S{8,32}) \S{1,64} kernel: )?"
    r"(?:\[[^\]\n]{1,32}\] *)*)"
)
"""The text before a record's message: a priority, a syslog header, ``[…]`` tags. The readers of logs and the judges of
their lines share this one pattern, of bytes or of ASCII text. Blanks and no other white space: the kernel's own format
writes a tab or a newline as an escape, and text after a newline belongs to another line."""


class KernelRecord(Struct, frozen=True, kw_only=True):
    """One record of the kernel log, or of the journal.

    ``sequence``: the kernel's own number, unique within ``boot_id``. ``facility`` 0 is the kernel itself and cannot be
    forged from user space; anything else is read only with ``trust_user_kmsg`` and has ``trusted`` False.
    ``source``: ``kernel`` or ``journal``. A journal record's ``sequence`` is its monotonic time in microseconds, its
    ``facility`` -1, and ``unit`` the service that wrote it or, of the service manager's own lines, is meant.
    """

    boot_id: str
    sequence: int
    time: datetime
    text: str
    facility: int = 0
    level: int = 6
    trusted: bool = True
    source: Literal["kernel", "journal"] = "kernel"
    unit: str = ""


class Mount(Struct, frozen=True, kw_only=True):
    """One line of ``/proc/self/mountinfo``. ``options`` joins the per-mount and the super-block options."""

    point: str
    fstype: str
    source: str
    options: frozenset[str]
    device: str = ""


class Space(Struct, frozen=True, kw_only=True):
    """statvfs of one file system, in bytes and inodes; zero inodes in total means that it does not count them.

    ``available_*``: what any user may still take (f_bavail, f_favail). ``kept_*``: what only root may take beside that,
    such as the 5 % of ext4 (f_bfree and f_ffree, less the former).
    """

    total_bytes: int
    available_bytes: int
    total_inodes: int
    available_inodes: int
    read_only: bool
    kept_bytes: int = 0
    kept_inodes: int = 0


class Holders(Struct, frozen=True, kw_only=True):
    """The users of one file system's space, by the owner of its files: bytes of each uid, the largest first.

    ``files``: how many were counted. ``whole``: False where the time for the count ended before all were.
    """

    bytes_of: Mapping[int, int]
    files: int
    whole: bool


class FileProbe(Struct, frozen=True, kw_only=True):
    """One small file of healthd's own, written, read back and removed on a mount. Seconds of each act.

    ``refused`` names the error of a server that refused (EACCES, EPERM, EROFS): nothing was written, and ``write_s`` is
    how long the answer took. ``same`` is False where the data that were read differ from those written.
    """

    size_bytes: int
    write_s: float
    read_s: float = 0.0
    unlink_s: float = 0.0
    same: bool = True
    refused: str = ""


class KernelClock(Struct, frozen=True, kw_only=True):
    """The system clock as of adjtimex(2): whether it is synchronized, and its known error."""

    synchronised: bool
    offset_s: float


class CommandResult(Struct, frozen=True, kw_only=True):
    """A command that ended by itself within its deadline."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    duration_s: float


class AllReduce(Struct, frozen=True, kw_only=True):
    """One all-reduce over the GPUs of this node, and its measurements.

    ``busbw_gb_s``: algbw x 2(n-1)/n in 10^9 bytes per second (nccl-tests, doc/PERFORMANCE.md); None with one GPU, where
    nothing crosses a bus. ``wrong``: elements that differ from the known sum, over all GPUs. ``way``: ``nccl4py`` or
    ``all_reduce_perf``. ``network``: the transport that NCCL named, such as ``Libfabric``; "" where it named none.
    ``failed``: the error of NCCL or CUDA where they refused to continue; nothing was measured then.
    """

    gpus: int
    size_bytes: int
    busbw_gb_s: float | None
    wrong: int
    way: str
    nccl_version: str = ""
    network: str = ""
    failed: str = ""


class GdrCopy(Struct, frozen=True, kw_only=True):
    """One buffer of one GPU pinned, mapped, written and read back by the CPU through GDRCopy.

    ``wrong_bytes``: how many differ. ``refused``: the call that failed and its code, where one did.
    """

    index: int
    pci: str
    size_bytes: int
    wrong_bytes: int = 0
    refused: str = ""


class NvmlFailure(Struct, frozen=True, kw_only=True):
    """A call that NVML refused, with NVML's own return code (nvml.h, nvmlReturn_t) and its name for it."""

    code: int
    name: str


class NvmlRefusal(Struct, frozen=True, kw_only=True):
    """A call that NVML refused with GPU_IS_LOST or RESET_REQUIRED: the GPU does not work until something is done."""

    call: str
    failure: NvmlFailure


class GpuAnswer(Struct, frozen=True, kw_only=True):
    """All answers of one GPU to one request.

    ``uuid`` and ``pci`` are None where NVML gave no handle; ``failure`` then says why.
    ``values`` maps each call to its JSON-like value or to an :class:`NvmlFailure`. ``refused``: the worst refusal in
    effect, of this request or of an earlier one.
    """

    index: int
    uuid: str | None
    pci: str | None
    failure: NvmlFailure | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    refused: NvmlRefusal | None = None


class ProbeState(Struct, frozen=True, kw_only=True):
    """The state of a probe worker. ``stalled_s`` counts from the first unanswered request since the last answer or
    pause; a worker that crashed, or that is still starting within its grace, is not silent. ``stalls``: the requests
    that were not answered in time."""

    stalled_s: float = 0.0
    paused_s: float = 0.0
    reason: str = ""
    abandoned: int = 0
    restarts: int = 0
    stalls: int = 0


class KernelLogState(Struct, frozen=True, kw_only=True):
    """The state of the reader of the kernel log. ``idle_s``: since the last cycle of its loop, not since a record."""

    source: str
    alive: bool
    idle_s: float = 0.0
    gaps: int = 0
    malformed: int = 0
    untrusted: int = 0
    error: str = ""


class Tree(Protocol):
    """A read-only view of one file tree (/sys, /proc or /dev, or a constructed one). Paths are relative."""

    def read(self, path: str) -> str:
        """The text of a file, stripped. Raises SourceMissing or SourceUnreadable."""

    def names(self, path: str) -> tuple[str, ...]:
        """The sorted names in a folder. Raises SourceMissing or SourceUnreadable."""

    def exists(self, path: str) -> bool:
        """Whether the path exists. Raises SourceUnreadable when that is unknown."""

    def target(self, path: str) -> str:
        """The last part of a link's target, such as the driver of a device. Raises SourceMissing."""

    def may_open(self, path: str) -> bool:
        """Whether this process may open a file to read and write; it is not opened. False where it is not there."""


class Nvml(Protocol):
    """The GPU driver's own library, asked in a probe worker with a deadline."""

    def ask(self, *calls: str, fields: Sequence[int | tuple[int, int]] = ()) -> tuple[GpuAnswer, ...]:
        """Make per-GPU calls by name (``nvmlDeviceGetRemappedRows``) on every GPU; one GPU's failure hides no other.

        A call may carry integer arguments: ``"nvmlDeviceGetTotalEccErrors(1, 0)"``. ``fields`` are NVML field ids, or
        (id, scope) pairs, whose answers appear in ``values`` under ``"field:<id>"`` or ``"field:<id>/<scope>"``.
        Raises SourceMissing (no library), SourceTimeout, SourceBusy (in flight or paused), SourceUnreadable.
        """

    def system(self) -> Mapping[str, Any]:
        """``driver_version``, ``nvml_version``, ``gpu_count``, ``excluded_count``. Raises as :meth:`ask`."""

    def state(self) -> ProbeState:
        """The state of the worker; never blocks and never raises."""


class ActiveTests(Protocol):
    """Work on the GPUs themselves, for active checks only, on a node that is known to be idle.

    Each runs in a child with a deadline; nothing of it is left afterwards, even if healthd is killed meanwhile.
    All raise SourceMissing (a tool or library is not installed), SourceTimeout, SourceUnreadable (it failed to run).
    """

    def all_reduce(self, path: Literal["nvlink", "network"], *, size_bytes: int, timeout_s: float) -> AllReduce:
        """All-reduce over all local GPUs and compare every element.

        ``nvlink``: as a job would, peer to peer. ``network``: with peer-to-peer and shared memory off, so that every
        byte goes GPU, NIC, GPU on this node.
        """

    def gdr_copies(self, *, size_bytes: int, timeout_s: float) -> tuple[GdrCopy, ...]:
        """Write and read back a buffer on every GPU through libgdrapi."""


class Node(Protocol):
    """One machine, as a check sees it."""

    @property
    def name(self) -> str:
        """The node's name in its cluster."""

    @property
    def boot_id(self) -> str:
        """The kernel's random id of this boot. Raises SourceError."""

    @property
    def instance_type(self) -> str | None:
        """``p5.48xlarge``, without ``ml.``; None where it is unknown."""

    @property
    def sys(self) -> Tree:
        """/sys."""

    @property
    def proc(self) -> Tree:
        """/proc."""

    @property
    def dev(self) -> Tree:
        """/dev."""

    @property
    def nvml(self) -> Nvml:
        """The NVIDIA management library."""

    @property
    def active(self) -> ActiveTests:
        """Tests that put load on the GPUs. Only an active check may ask for one."""

    @property
    def kernel_records(self) -> Sequence[KernelRecord]:
        """For a kernel check, the batch to judge. For others, empty."""

    @property
    def kernel_log(self) -> KernelLogState:
        """The state of the reader of the kernel log."""

    def mounts(self) -> tuple[Mount, ...]:
        """The mount table. Reading it never touches a file system, so it never blocks. Raises SourceError."""

    def space(self, point: str) -> Space:
        """statvfs of a mount point, in a probe worker of that mount. Raises SourceError."""

    def holders(self, point: str) -> Holders:
        """The users of the file system's space at a mount point, counted for a second at most. Raises SourceError."""

    def file_probe(self, point: str, folder: str = "", *, size_bytes: int = 1 << 18) -> FileProbe:
        """Write, read back and remove a file of this node's own in ``folder`` (default: the mount point itself).

        In the probe worker of the mount point, with a deadline. Raises SourceError: SourceUnreadable with the name of
        the error (``EIO``), SourceTimeout, SourceBusy while an earlier request to that mount is not answered.
        """

    def mount_state(self, point: str) -> ProbeState:
        """The state of a mount point's probe worker; never blocks and never raises."""

    def clock(self) -> KernelClock:
        """The kernel's view of its clock. Raises SourceUnreadable."""

    def metadata(self, path: str) -> str | None:
        """``/latest/meta-data/<path>`` of the EC2 instance metadata service; None where it has no such item.

        Raises SourceMissing (there is no such service here, or it may not be asked), SourceTimeout, SourceUnreadable.
        """

    def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
        """Run a command in its own process group with a deadline. Raises SourceMissing, SourceTimeout."""
