"""The active tests: load on the GPUs, each test in a child of its own that leaves nothing behind.

The child runs under ``healthd.probe.guard``, which ends it, and everything that it started, at the deadline, when it
has answered, and when healthd is killed. The user's settings of NCCL and libfabric do not reach it: the same test must
mean the same on every node. Nothing here judges a figure, and nothing of CUDA or NCCL is loaded in this process.

Sources: facebookresearch/gcm check-nccl and Azure/azurehpc-health-checks check_nccl_allreduce_ib_loopback (the two
variables of the network path); NCCL src/transport/nvls.cc (NVLS asks NCCL_NVLS_ENABLE only, and would bypass them) and
src/init.cc (a configuration file is read unless NCCL_CONF_FILE names another); aws-ofi-nccl (the plug-in calls itself
``Libfabric``, up to 1.11 ``AWS Libfabric``; NCCL_NET would turn its absence from a fallback into an error, so it is not
set); libfabric fi_efa(7) (FI_EFA_ENABLE_SHM_TRANSFER).
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal, cast

from healthd.core.errors import SourceBusy, SourceMissing, SourceTimeout, SourceUnreadable
from healthd.core.model import pci_address
from healthd.core.node import AllReduce, CommandResult, GdrCopy, Tree
from healthd.probe import active_child, guard
from healthd.probe.child import module_path
from healthd.sources.command import find_tool, run_command
from healthd.sources.nccl_text import failure_of, network_of, parse_perf, parse_sanity, version_of, warning_of

PERF_FOLDERS = ("/opt/nccl-tests/build", "/usr/local/cuda*/efa/test-cuda*", "/usr/local/cuda*/bin", "/usr/local/bin")
"""Paths of all_reduce_perf besides PATH: where AWS's examples build it, and where its images have it."""

SANITY_FOLDERS = ("/opt/gdrcopy/bin", "/usr/bin", "/usr/local/bin")
"""Paths of gdrcopy_sanity, formerly ``sanity``, besides PATH."""

LIBRARY_FOLDERS = (
    "/opt/amazon/efa/lib64",
    "/opt/amazon/efa/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/amazon/aws-ofi-nccl/lib",
)
"""Where the EFA installer puts libfabric and NCCL's plug-in; those that exist go into LD_LIBRARY_PATH."""

ITERATIONS, WARM_UP = 20, 5
"""The defaults of nccl-tests."""

_NOT_INHERITED = ("NCCL_", "OFI_NCCL_", "FI_", "CUDA_", "SLURM_", "PMI", "OMPI_", "UCX_", "LD_PRELOAD")
_NO_MEMORY = "out of memory"  # cudaGetErrorString(cudaErrorMemoryAllocation)
_QUIET_S = 1.0
_LAST_RESORT_S = 3.0  # how much longer than the guard's deadline the guard itself is waited for


class ActiveTestsSource:
    """The ``ActiveTests`` port of :mod:`healthd.core.node`.

    ``gpus``: the PCI addresses of the GPUs that the driver has, in its order. ``all_reduce_perf``: the tool's path; ""
    searches for it. ``environ``: the environment that the children inherit, without variables that would change the
    test. ``sys_tree``: shows whether EFA's driver is there.
    """

    def __init__(
        self,
        *,
        gpus: Callable[[], Sequence[str]],
        sys_tree: Tree,
        all_reduce_perf: str = "",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._gpus = gpus
        self._sys = sys_tree
        self._perf = all_reduce_perf
        self._environ = environ
        self._lock = Lock()
        self._guards: list[int] = []
        self._refused_until_s = 0.0

    def all_reduce(self, path: Literal["nvlink", "network"], *, size_bytes: int, timeout_s: float) -> AllReduce:
        """See ``ActiveTests.all_reduce``: through nccl4py, and where that is not there, nccl-tests."""
        until_s = time.monotonic() + timeout_s
        env = self.environment(path)
        try:
            return self._by_nccl4py(size_bytes, env, timeout_s)
        except SourceMissing as absent:
            try:
                return self._by_nccl_tests(size_bytes, env, max(1.0, until_s - time.monotonic()))
            except SourceMissing as error:
                raise SourceMissing(f"no way to run NCCL: {absent}; nor by nccl-tests: {error}") from error

    def gdr_copies(self, *, size_bytes: int, timeout_s: float) -> tuple[GdrCopy, ...]:
        """See ``ActiveTests.gdr_copies``: through libgdrapi, where that is not there by gdrcopy_sanity."""
        until_s = time.monotonic() + timeout_s
        try:
            answer, _ = self._ask("gdrcopy", (size_bytes,), self.environment("nvlink"), timeout_s)
        except SourceMissing as absent:
            return self._by_sanity(str(absent), max(1.0, until_s - time.monotonic()))
        if refused := answer.get(active_child.REFUSED):
            raise SourceUnreadable(f"the GDRCopy test could not begin: {refused}")
        copies = answer[active_child.ANSWER]["copies"]
        return tuple(GdrCopy(**{**copy, "pci": pci_address(copy["pci"])}) for copy in copies)

    def perf_tool(self, env: Mapping[str, str] | None = None) -> str:
        """nccl-tests' all_reduce_perf: as configured, or where it is found. Raises SourceMissing."""
        return self._perf or find_tool("all_reduce_perf", _existing(PERF_FOLDERS), env=env)

    def interrupt(self) -> None:
        """End the running test, from another thread, and begin none for a moment: a check repeats a failed test."""
        with self._lock:
            self._refused_until_s = time.monotonic() + _QUIET_S
            for guarding in self._guards:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(guarding, signal.SIGTERM)

    def environment(self, path: Literal["nvlink", "network"]) -> dict[str, str]:
        """A child's environment: the inherited variables that change no test, and those that select the path."""
        kept = {name: value for name, value in self._environ.items() if not name.startswith(_NOT_INHERITED)}
        folders = [*filter(os.path.isdir, LIBRARY_FOLDERS), *filter(None, [kept.get("LD_LIBRARY_PATH")])]
        return {
            **kept,
            "PYTHONPATH": module_path(),
            "LD_LIBRARY_PATH": ":".join(folders),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "NCCL_CONF_FILE": "/dev/null",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
            "NCCL_DEBUG_FILE": "/dev/stderr",
            **(self._over_the_network() if path == "network" else {}),
        }

    def _over_the_network(self) -> dict[str, str]:
        """GPU, NIC, GPU: no peer-to-peer, shared memory, reduction in the NVSwitches, or NVLink to other nodes."""
        off = dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"), "1")
        off |= dict.fromkeys(("NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE", "FI_EFA_ENABLE_SHM_TRANSFER"), "0")
        return {**off, "FI_PROVIDER": "efa"} if self._sys.exists("module/efa") else off

    def _by_nccl4py(self, size_bytes: int, env: Mapping[str, str], timeout_s: float) -> AllReduce:
        answer, log = self._ask("all_reduce", (size_bytes, ITERATIONS, WARM_UP), env, timeout_s)
        network, version = network_of(log), version_of(log)
        if refused := answer.get(active_child.REFUSED):
            return _failed(len(self._gpus()), size_bytes, "nccl4py", f"{refused}{warning_of(log)}", log)
        got = answer[active_child.ANSWER]
        return AllReduce(
            gpus=got["gpus"],
            size_bytes=got["size_bytes"],
            busbw_gb_s=bus_bandwidth_gb_s(got["size_bytes"], got["took_s"], got["gpus"]),
            wrong=got["wrong"],
            way="nccl4py",
            nccl_version=version or got["nccl_version"],
            network=network,
        )

    def _by_nccl_tests(self, size_bytes: int, env: Mapping[str, str], timeout_s: float) -> AllReduce:
        tool, gpus = self.perf_tool(env), len(self._gpus())
        size, count = str(size_bytes), str(gpus)
        argv = (tool, "-b", size, "-e", size, "-g", count, "-c", "1", "-n", str(ITERATIONS), "-w", str(WARM_UP))
        done = self._guarded(argv, env, timeout_s)
        if failed := failure_of(done.stdout, done.stderr):
            if _NO_MEMORY in failed:
                raise SourceBusy(f"{failed}: end what holds GPU memory, or set a smaller size_bytes")
            return _failed(gpus, size_bytes, "all_reduce_perf", failed, done.stderr)
        if done.code not in (0, 1):  # 1: wrong elements, which the table shows
            raise SourceUnreadable(f"{tool} ended with {done.code}: {_last_output(done)}")
        output = parse_perf(done.stdout, size_bytes)
        return AllReduce(
            gpus=gpus,
            size_bytes=size_bytes,
            busbw_gb_s=output.busbw_gb_s if gpus > 1 else None,
            wrong=output.wrong,
            way="all_reduce_perf",
            nccl_version=version_of(done.stderr),
            network=network_of(done.stderr),
        )

    def _by_sanity(self, absent: str, timeout_s: float) -> tuple[GdrCopy, ...]:
        """Run gdrcopy_sanity once for each GPU: it tests only the first GPU that it may see."""
        env, until_s = self.environment("nvlink"), time.monotonic() + timeout_s
        tool = _sanity(absent, env)
        copies = []
        for index, pci in enumerate(self._gpus()):
            left_s = max(1.0, until_s - time.monotonic())
            done = self._guarded((tool,), {**env, "CUDA_VISIBLE_DEVICES": str(index)}, left_s)
            output = parse_sanity(done.stdout)
            refused = f"{Path(tool).name}: {output.failed} of {output.total} tests failed" if output.failed else ""
            copies.append(GdrCopy(index=index, pci=pci, size_bytes=0, refused=refused))
        return tuple(copies)

    def _ask(
        self, child: str, arguments: Sequence[int], env: Mapping[str, str], timeout_s: float
    ) -> tuple[Mapping[str, Any], str]:
        """The one line of a child's answer, and the other output of the child and its libraries."""
        script = str(Path(guard.__file__).with_name(f"{child}.py"))
        done = self._guarded((sys.executable, "-P", script, *map(str, arguments)), env, timeout_s)
        try:
            answer = json.loads(done.stdout)
        except ValueError as error:
            raise SourceUnreadable(f"{child}: no answer, exit status {done.code}: {_last_output(done)}") from error
        if active_child.MISSING in answer:
            raise SourceMissing(answer[active_child.MISSING])
        if active_child.BUSY in answer:
            raise SourceBusy(answer[active_child.BUSY])
        return cast(Mapping[str, Any], answer), done.stderr

    def _guarded(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> CommandResult:
        """Run a test under the guard. Raises SourceTimeout with the command, whichever deadline ended it."""
        script = (sys.executable, "-S", "-P", guard.__file__, str(os.getpid()), f"{timeout_s:.3f}", *argv)
        opened: list[int] = []

        def started(pid: int) -> None:
            with self._lock:
                opened.append(os.pidfd_open(pid))
                self._guards += opened
                if time.monotonic() < self._refused_until_s:  # asked to end while this one was being started
                    signal.pidfd_send_signal(opened[0], signal.SIGTERM)

        try:
            self._require_quiet(argv)
            done = run_command(
                script, timeout_s=timeout_s + _LAST_RESORT_S, env=env, leave_nothing=True, on_start=started
            )
            self._require_quiet(argv)
        finally:
            with self._lock:
                for guarding in opened:
                    self._guards.remove(guarding)
                    os.close(guarding)
        messages = [line for line in done.stderr.splitlines() if line.startswith(guard.SAYS)]
        if done.code == guard.TIMED_OUT and any(line.startswith(guard.NO_END) for line in messages):
            raise SourceTimeout(f"{_named(argv)}: no end within {timeout_s:g} s, ended: {_last_output(done)}")
        if done.code == guard.NOT_STARTED and messages:
            raise SourceMissing(messages[-1].removeprefix(guard.SAYS))
        return done

    def _require_quiet(self, argv: Sequence[str]) -> None:
        with self._lock:
            if time.monotonic() < self._refused_until_s:
                raise SourceBusy(f"{_named(argv)}: ended on request, no caller waits for it")


def bus_bandwidth_gb_s(size_bytes: int, took_s: float, gpus: int) -> float | None:
    """algbw x 2(n-1)/n in 10^9 bytes per second (nccl-tests, doc/PERFORMANCE.md); None with one GPU."""
    return size_bytes / took_s * 2 * (gpus - 1) / gpus / 1e9 if gpus > 1 else None


def _failed(gpus: int, size_bytes: int, way: str, failed: str, log: str) -> AllReduce:
    return AllReduce(
        gpus=gpus,
        size_bytes=size_bytes,
        busbw_gb_s=None,
        wrong=0,
        way=way,
        nccl_version=version_of(log),
        network=network_of(log),
        failed=failed,
    )


def _sanity(absent: str, env: Mapping[str, str]) -> str:
    try:
        return find_tool("gdrcopy_sanity", SANITY_FOLDERS, env=env)
    except SourceMissing:
        try:
            return find_tool("sanity", SANITY_FOLDERS, env=env)
        except SourceMissing as error:
            raise SourceMissing(
                f"{absent}; nor is gdrcopy_sanity here: install GDRCopy (libgdrapi, gdrcopy)"
            ) from error


def _named(argv: Sequence[str]) -> str:
    """The test, not the interpreter that runs it."""
    return next((Path(word).name for word in argv if word not in (sys.executable, "-P")), "")


def _existing(patterns: Sequence[str]) -> list[str]:
    return [folder for pattern in patterns for folder in sorted(glob.glob(pattern), reverse=True)]


def _last_output(done: CommandResult) -> str:
    """The end of the output on one line, without NCCL's informational lines."""
    lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if " NCCL INFO " not in line]
    return " ".join(" ".join(lines).split())[-300:] or "no output"
