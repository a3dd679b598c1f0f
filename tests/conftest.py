"""Guards around every test: no process by accident, no packet beyond loopback, no green run in which nothing ran.

Enforced where Python itself reports such acts (audit events), so no module of ours is patched.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# Tests in these folders are pure calls or read recorded input; one that starts a process on purpose says so by marker.
PROCESS_FREE = ("unit", "checks", "property")
# … or, where processes are what the whole file is about, stands here.
ABOUT_PROCESSES = ("test_command.py", "test_local_orchestrator.py", "test_local_provisioner.py")
MAY_START_PROCESSES = ("process", "slurm", "kubernetes", "kernel", "nvml", "slow")

# Clusters whose daemons wait for seconds, not for minutes, and mounts that any process of this machine sees.
ONE_AT_A_TIME = ("tests/integration/", "tests/faults/")

# Set by `make test-kubernetes`, as HEALTHD_TEST_KUBERNETES: see below.
ASKED_FOR = "TEST_KUBERNETES"
# Set by `make test-packages`: the tests of this file that boot a machine, by the fixture that is one.
BOOTED, BOOT_ASKED_FOR = ("test_deb.py", "machine"), "TEST_PACKAGES"

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

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """The audit hook. Its exception stops the act; ``caught`` fails the test even if the exception is swallowed."""
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
# A healthd that a test starts takes every HEALTHD_ variable for one of its settings, and ends at one it does not know.
for _name in [each for each in os.environ if each.startswith("HEALTHD_TEST_")]:
    os.environ[_name.removeprefix("HEALTHD_")] = os.environ.pop(_name)


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
    """Where processes share the run, a file stays in one; and all that needs the machine for itself stays in one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "the machine" if file.startswith(ONE_AT_A_TIME) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    """Asked for by pytest-xdist, whatever ``--dist`` says."""
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs an API server, helm or an image, unless it is asked for, `make test-kubernetes`: where
    nothing is cached, building them takes two cores ten minutes. And what boots a machine: `make test-packages`.
    """
    # healthd's own processes would refuse the variables as settings that do not exist
    kubernetes, boots = os.environ.pop(ASKED_FOR, ""), os.environ.pop(BOOT_ASKED_FOR, "")
    left_out = [item for item in items if (not kubernetes and _is_of_kubernetes(item)) or (not boots and _boots(item))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_of_kubernetes(item: pytest.Item) -> bool:
    folders = item.path.relative_to(Path(__file__).parent).parts
    return folders[0] == "packaging" or "kubernetes" in folders or item.get_closest_marker("kubernetes") is not None


def _boots(item: pytest.Item) -> bool:
    return (item.path.name, BOOTED[1]) == BOOTED and BOOTED[1] in getattr(item, "fixturenames", ())


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which every test was skipped shows nothing, so it is not green."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    outcomes = ("passed", "failed", "error", "xfailed", "xpassed")
    executed = reporter is None or any(reporter.stats.get(outcome) for outcome in outcomes)
    if exitstatus == pytest.ExitCode.OK and not executed and not session.config.option.collectonly:
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
