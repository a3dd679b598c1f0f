"""Guards around every test: no process by accident, no packet beyond loopback, no green run in which nothing ran.

Enforced where Python itself reports such acts (audit events), so no module of ours is patched.
"""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.own_mounts import take_own_mounts
from tests.support.sampling import left_out, of_this_run

# Tests in these folders are pure calls or read recorded input; one that starts a process on purpose says so by marker.
PROCESS_FREE = ("unit", "checks", "property")
# … or, where processes are what the whole file is about, stands here.
ABOUT_PROCESSES = ("test_command.py", "test_local_orchestrator.py", "test_local_provisioner.py")
MAY_START_PROCESSES = ("process", "slurm", "kubernetes", "kernel", "nvml", "slow")

# Where processes share the run, a file stays in one of them, and so do the files of a lane: they use what this machine
# has once. Clusters, servers, browsers, mounts and namespaces need no lane: each has its own folder, ports and names.
LANES = {
    # Every reader of /dev/kmsg reads what any of them writes, and the kernel limits how much is written.
    "kernel log": (
        "tests/live/kernel/test_dev_kmsg.py",
        "tests/live/kernel/test_dev_syslog.py",
    ),
    # Each plays six repairs or more at once with real daemons: side by side, those would wait longest for the cores.
    "repairs": (
        "tests/live/platforms/test_kill_everywhere.py",
        "tests/live/platforms/test_kill_hands.py",
        "tests/live/platforms/test_platforms.py",
    ),
}
# Long files whose tests share nothing: each of these goes where there is time for it.
SPREAD = (
    "tests/engine/test_engine_replay.py",
    "tests/simulation/test_simulated_fleet.py",
    "tests/live/kubernetes/test_stray_claims_kubernetes.py",
)
LANE_OF = {file: lane for lane, files in LANES.items() for file in files}
# Most of their time these wait, and the first of them longest: they begin in this order, so that none is left to be
# waited for at the end. What computes runs beside them all along: it has the cores while they wait.
WAITING = (
    "tests/live/kubernetes/test_concurrent_writes.py",
    "tests/packaging/test_image_arm64.py",
    "tests/live/kubernetes/test_stray_claims_kubernetes.py",
    "tests/live/kubernetes/test_kill_everywhere_kubernetes.py",
    "tests/live/kubernetes/test_api_trouble.py",
    "tests/live/platforms/",
    "tests/faults/",
    "tests/live/slurm/",
    "tests/live/aws/",
    "tests/live/",
    "tests/packaging/",
    "tests/daemon/",
    "tests/installing/",
)

# Tests wait for the disk more than for anything else, where their databases are on one.
MEMORY, MEMORY_BYTES = "/dev/shm", 2 << 30

# Set by `make test-kubernetes`, as HEALTHD_TEST_KUBERNETES: see below.
ASKED_FOR = "TEST_KUBERNETES"
# Set by `make test-packages`, as HEALTHD_TEST_PACKAGES: the packages as they are released, whose CPython takes minutes
# to compile; a booted machine; and the Ansible role. What `make test` has of packages is staged with this machine's
# Python.
PACKAGES_ASKED_FOR = "TEST_PACKAGES"
PACKAGED = frozenset(
    {"test_ansible.py", "test_deb.py", "test_distributions.py", "test_nccl_package.py", "test_own_python.py"}
    | {"test_release.py"}
)

# A property holds or it does not: how long an example takes is the machine's business.
settings.register_profile("healthd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("healthd")

_PROCESS_EVENTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec", "pty.spawn"}
)
# Where each event carries the address: (socket, address) or (socket, ..., address).
_ADDRESS_EVENTS = frozenset({"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"})


class Guard:
    """What the test that runs now may not do, and what it was caught doing."""

    def __init__(self) -> None:
        self.processes_forbidden = False
        self.caught: list[str] = []
        # Its own, because the names of this module are gone before the last events of a process.
        self._watched = frozenset({*_PROCESS_EVENTS, *_ADDRESS_EVENTS, "socket.getaddrinfo"})

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook. Its exception stops the act; ``caught`` fails the test even if the exception is swallowed."""
        if event not in self._watched:
            return
        if event in _PROCESS_EVENTS:
            if self.processes_forbidden:
                self._stop(f"{event} {arguments[0]!r}: tests here start no process; mark one that must `process`")
        elif event in _ADDRESS_EVENTS:
            sock, address = arguments[0], arguments[-1]
            if sock.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
                self._judge(event, str(address[0]))
        elif event == "socket.getaddrinfo" and arguments[0]:
            host = arguments[0]
            self._judge(event, host.decode() if isinstance(host, bytes) else str(host))

    def _judge(self, event: str, host: str) -> None:
        if not _is_loopback(host):
            self._stop(f"{event} {host!r}: the traffic of tests stays on loopback")

    def _stop(self, what: str) -> None:
        self.caught.append(what)
        raise RuntimeError(what)


def _is_loopback(host: str) -> bool:
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


_guard = Guard()
sys.addaudithook(_guard)
# For every process that a test starts, too.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
for _name in ("FORCE_COLOR", "NO_COLOR"):  # the answers under test have no colours, unless the test asks for them
    os.environ.pop(_name, None)
# A healthd that a test starts takes every HEALTHD_ variable for one of its settings, and ends at one it does not know.
for _name in [each for each in os.environ if each.startswith("HEALTHD_TEST_")]:
    os.environ[_name.removeprefix("HEALTHD_")] = os.environ.pop(_name)
# Before pytest-xdist starts its processes, which then take the same.
SAMPLE = of_this_run()


def _has_memory() -> bool:
    """Whether there is a file system in memory with room for all that tests write, that starts the programs there."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize >= MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC


# For every process that a test starts, too. Where there is no such memory, it is the ordinary folder.
if _has_memory():
    os.environ["TMPDIR"] = MEMORY
    tempfile.tempdir = None


@pytest.fixture(autouse=True)
def _guarded(request: pytest.FixtureRequest) -> Iterator[None]:
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    marked = any(request.node.get_closest_marker(name) for name in MAY_START_PROCESSES)
    allowed = marked or request.path.name in ABOUT_PROCESSES
    _guard.caught.clear()
    _guard.processes_forbidden = folder in PROCESS_FREE and not allowed
    yield
    _guard.processes_forbidden = False
    if _guard.caught:
        pytest.fail("\n".join(_guard.caught))


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types for it
    """Where processes share the run, a file stays in one, and so does a lane; but the tests of some files do not."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in SPREAD else LANE_OF.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """Asked for by pytest-xdist, whatever ``--dist`` says."""
    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Each process that shares the run has mounts of its own, where it may mount at all.

    In a new checkout pytest compiles every test file, with its asserts: 15 s of CPU. Each process begins to collect at
    another file, so that each file is compiled once. ``_turns`` puts the order right.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    take_own_mounts()
    if config.args != ["tests"]:
        return
    files = sorted(map(str, Path(__file__).parent.rglob("test_*.py")))
    start = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    config.args[:] = files[start:] + files[:start]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end of the run: no garbage collector need look at it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs an API server, helm or an image, unless it is asked for, `make test-kubernetes`: where
    nothing is cached, building them takes two cores ten minutes. And what is made of a CPython of its own:
    `make test-packages`.
    """
    # healthd's own processes would refuse the variables as settings that do not exist
    kubernetes, packages = os.environ.pop(ASKED_FOR, ""), os.environ.pop(PACKAGES_ASKED_FOR, "")
    unasked = [
        item
        for item in items
        if (not kubernetes and _is_of_kubernetes(item)) or (not packages and item.path.name in PACKAGED)
    ]
    if not config.option.keyword and not any("::" in each for each in config.args):
        unasked += left_out(items, SAMPLE)
    without = set(unasked)
    if without:
        config.hook.pytest_deselected(items=list(without))
    kept = [item for item in items if item not in without]
    turns = _turns({_file(item) for item in kept})
    items[:] = sorted(kept, key=lambda item: turns[_file(item)])


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _turns(files: set[str]) -> dict[str, tuple[float, str]]:
    """When each file has its turn, from 0 to 1: those that wait in their order, all others by name, which mixes long
    and short, are each spread over the whole run."""
    waiting = sorted((_place(file), file) for file in files if file.startswith(WAITING))
    computing = sorted((Path(file).name, file) for file in files if not file.startswith(WAITING))
    return {file: (number / len(part), file) for part in (waiting, computing) for number, (_, file) in enumerate(part)}


def _place(file: str) -> int:
    return next(place for place, start in enumerate(WAITING) if file.startswith(start))


def pytest_report_header() -> str:
    """Which boundaries this run takes."""
    return f"sample: {SAMPLE}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which they were, for one who looks for why a test failed."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"sample: {SAMPLE}")


def _is_of_kubernetes(item: pytest.Item) -> bool:
    return (
        item.nodeid.startswith(("tests/packaging/", "tests/live/kubernetes/"))
        or item.get_closest_marker("kubernetes") is not None
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which every test was skipped shows nothing, so it is not green."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    outcomes = ("passed", "failed", "error", "xfailed", "xpassed")
    executed = reporter is None or any(reporter.stats.get(outcome) for outcome in outcomes)
    if exitstatus == pytest.ExitCode.OK and not executed and not session.config.option.collectonly:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
