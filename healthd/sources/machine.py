"""The real machine behind the Node protocol: every source at its configured root or address, put together once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct, field

from healthd.config.schema.config import Config
from healthd.core.node import (
    CommandResult,
    FileProbe,
    Holders,
    KernelClock,
    KernelLogState,
    KernelRecord,
    Mount,
    ProbeState,
    Space,
    Tree,
)
from healthd.sources.command import CommandsUnderWay, run_command, run_configured
from healthd.sources.filesystem import LOCAL_TYPES, FilesystemSource
from healthd.sources.identity import Identity, boot_id, find_identity, metadata_endpoint, node_name
from healthd.sources.imds import FastStart, MetadataSource
from healthd.sources.mounts import parse_mountinfo
from healthd.sources.nvml import NvmlSource
from healthd.sources.trees import FileTree

if TYPE_CHECKING:
    from healthd.sources.active import ActiveTestsSource


class Machine(Struct, kw_only=True):
    """One machine, as its configuration describes it. Close it to end its probe workers and commands.

    The reader of the kernel log answers ``kernel_log_state``. ``kernel_records`` is empty but in the copy with which a
    kernel check gets its batch. ``plugins``: the commands of the site's own checks.
    """

    name: str
    identity: Identity
    sys: Tree
    proc: Tree
    dev: Tree
    nvml: NvmlSource
    file_systems: FilesystemSource
    imds: MetadataSource
    open_active: Callable[[], ActiveTestsSource]
    kernel_log_state: Callable[[], KernelLogState]
    plugins: frozenset[tuple[str, ...]] = frozenset()
    kernel_records: Sequence[KernelRecord] = ()
    commands: CommandsUnderWay = field(default_factory=CommandsUnderWay)

    @property
    def boot_id(self) -> str:
        """The kernel's random id of this boot."""
        return boot_id(self.proc)

    @property
    def instance_type(self) -> str | None:
        """The instance type, or None where it is unknown."""
        return self.identity.instance_type or None

    @property
    def active(self) -> ActiveTestsSource:
        """The tests that put load on the GPUs."""
        return self.open_active()

    @property
    def kernel_log(self) -> KernelLogState:
        """The state of the reader of the kernel log."""
        return self.kernel_log_state()

    def mounts(self) -> tuple[Mount, ...]:
        """The mount table of this process."""
        return parse_mountinfo(self.proc.read("self/mountinfo"))

    def space(self, point: str) -> Space:
        """statvfs, in the probe worker that belongs to the mount point."""
        return self.file_systems.space(point, self._fstype(point))

    def holders(self, point: str) -> Holders:
        """A count of the files by their owner, in the same worker."""
        return self.file_systems.holders(point, self._fstype(point))

    def file_probe(self, point: str, folder: str = "", *, size_bytes: int = 1 << 18) -> FileProbe:
        """Write, read back and remove a file named after this node, in the worker of the mount point."""
        path = f"{(folder or point).rstrip('/')}/.healthd-probe-{self.name}"
        return self.file_systems.file_probe(point, path, self._fstype(point), size_bytes=size_bytes)

    def mount_state(self, point: str) -> ProbeState:
        """The state of a mount point's own worker."""
        return self.file_systems.state(point)

    def clock(self) -> KernelClock:
        """The kernel that runs here: it has one clock, whatever the roots of the trees are."""
        from healthd.sources.clock import kernel_clock  # loads ctypes

        return kernel_clock()

    def metadata(self, path: str) -> str | None:
        """One item of the instance metadata service, or None."""
        return self.imds.read(path)

    def command(self, *argv: str, timeout_s: float = 5.0) -> CommandResult:
        """Run a command with a deadline, in its own process group. Root runs no plug-in that other users may write."""
        run = run_configured if argv in self.plugins else run_command
        with self.commands.one() as begun:
            return run(argv, timeout_s=timeout_s, on_start=begun)

    def _fstype(self, point: str) -> str:
        """The type of the file system on a mount point; "" also below one of a server: the way there may hang."""
        types = {mount.point: mount.fstype for mount in self.mounts()}
        above = (types.get(str(folder)) for folder in PurePath(point).parents)
        return types.get(point, "") if all(each is None or each in LOCAL_TYPES for each in above) else ""

    def begin(self) -> None:
        """Start the probe workers ahead of checks that will all run at once: a worker takes as long to start as most
        checks to run."""
        self.nvml.begin()
        self.file_systems.begin()

    def close(self) -> None:
        """End the probe workers and the commands of checks, for good."""
        self.commands.end()
        self.nvml.end()
        self.file_systems.close()


def open_machine(
    config: Config, kernel_log_state: Callable[[], KernelLogState] | None = None, *, hurry: FastStart | None = None
) -> Machine:
    """The machine that a configuration describes. Asks IMDS only where ``find_identity`` says that it may, in the given
    ``hurry``.

    ``kernel_log_state``: how its kernel log is read; None for one that counts as read until its reader says otherwise.
    """
    sources = config.sources
    sys, proc, dev = FileTree(sources.sys_root, is_sysfs=True), FileTree(sources.proc_root), FileTree(sources.dev_root)
    imds = MetadataSource(metadata_endpoint(sys, sources.imds_endpoint, sys_root=sources.sys_root), hurry=hurry)
    nvml = NvmlSource(library=sources.nvml_library)

    @cache
    def open_active() -> ActiveTestsSource:
        from healthd.sources.active import ActiveTestsSource  # for active checks alone

        return ActiveTestsSource(
            gpus=lambda: [answer.pci or "" for answer in nvml.ask()],
            sys_tree=sys,
            all_reduce_perf=sources.all_reduce_perf,
        )

    site = config.checks.get("plugin.run")
    return Machine(
        name=config.node.name or node_name(os.environ),
        identity=find_identity(sys, imds, configured_type=config.node.instance_type),
        sys=sys,
        proc=proc,
        dev=dev,
        nvml=nvml,
        file_systems=FilesystemSource(),
        imds=imds,
        open_active=open_active,
        plugins=frozenset(plugin.command for plugin in site.settings.plugins) if site is not None else frozenset(),
        kernel_log_state=kernel_log_state or (lambda: KernelLogState(source=sources.kmsg, alive=True)),
    )
