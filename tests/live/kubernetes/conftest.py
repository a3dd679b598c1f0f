"""Fixtures that hand out a real control plane; see control_plane.py. Its programs are built meanwhile, see below."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.kubernetes.agent_rig import Agents, install_policies
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fault_proxy import FaultProxy
from tests.live.kubernetes.find_binaries import CONTROL_PLANE, Unavailable, asked_for, cached, can_build, program
from tests.live.kubernetes.fleet_controller import Fleet, FleetController, Start
from tests.live.kubernetes.shown_fleet import lay_out
from tests.support.limits import limit_s

ROOT = Path(__file__).resolve().parents[3]
MARKER = "kubernetes"
# What these tests run beside the control plane: helm renders the rights that most of them act with, and the others are
# asked for by a fixture of that name or by PROGRAMS of a module. The chart's tests come first, and so does helm.
CLIENTS = ("kubectl", "helm4", "jobset", "training-operator", "trainer")
_BUILDER = pytest.StashKey[subprocess.Popen[bytes]]()


# ---------------------------------------------------------------------------------------------------------------------
# The build takes minutes where nothing is cached. It runs beside the other tests, as nice as they, and those that need
# its programs come last.


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After selection: start the build of what a selected test needs, and put those tests at the end.

    The build says on this session's stderr how far it is, whichever test waits for it.
    """
    last = [item for item in items if item.get_closest_marker(MARKER)]
    items[:] = [item for item in items if not item.get_closest_marker(MARKER)] + last
    try:
        asked_for()
    except LookupError as error:
        raise pytest.UsageError(str(error.args[0])) from error
    with contextlib.suppress(Unavailable):  # the fixture says so
        wanted = ("helm", *CONTROL_PLANE, *(name for name in CLIENTS if any(name in _asked_for(item) for item in last)))
        needed = [name for name in wanted if last and cached(name) is None]
        if needed and can_build() and not config.option.collectonly:
            argv = [sys.executable, "-m", "tests.live.kubernetes.find_binaries", *needed]
            capture: Any = config.pluginmanager.get_plugin("capturemanager")
            with capture.global_and_fixture_disabled():
                config.stash[_BUILDER] = subprocess.Popen(
                    argv, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
                )


def _asked_for(item: pytest.Item) -> tuple[str, ...]:
    module = getattr(item, "module", None)
    return (*getattr(item, "fixturenames", ()), *getattr(module, "PROGRAMS", ()))


def pytest_unconfigure(config: pytest.Config) -> None:
    """A build that nobody waits for any more is ended; what it has compiled stays in Go's cache."""
    builder = config.stash.get(_BUILDER, None)
    if builder is not None and builder.poll() is None:
        os.killpg(builder.pid, signal.SIGTERM)
        builder.wait(timeout=limit_s(30))


# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_control_plane() -> Iterator[ControlPlane]:
    """One for the whole session, with the agent's rights and all policies of packaging/kubernetes in force."""
    try:
        plane = ControlPlane()
    except Unavailable as error:
        pytest.skip(f"no control plane of Kubernetes here: {error}")
    with plane:
        install_policies(plane)
        yield plane


@pytest.fixture
def control_plane(shared_control_plane: ControlPlane) -> ControlPlane:
    """The same, without anything that earlier tests left."""
    shared_control_plane.reset()
    return shared_control_plane


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """kubectl, of the API server's version."""
    return _client("kubectl")


@pytest.fixture(scope="session")
def helm() -> Path:
    """helm 3."""
    return _client("helm")


def _client(name: str) -> Path:
    try:
        return program(name)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    """A proxy in front of it, which does nothing wrong until told to."""
    with FaultProxy(control_plane.url, control_plane.root / "certs").serving() as serving:
        yield serving


@pytest.fixture
def fleet(control_plane: ControlPlane) -> Fleet:
    """No nodes and no Leases: the controller makes those."""
    return Fleet(control_plane)


@pytest.fixture
def start(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Start]:
    """Start a controller; all are ended with the test."""
    started: list[FleetController] = []

    def one(more: str = "", *, name: str = "one", kubernetes: dict[str, str] | None = None) -> FleetController:
        (tmp_path / name).mkdir()
        started.append(FleetController(control_plane, tmp_path / name, more, kubernetes=kubernetes).start())
        return started[-1]

    yield one
    for each in started:
        each.stop()


@pytest.fixture
def shown_agents(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Agents]:
    """Those of the fleet that the documentation shows."""
    made = Agents(control_plane, tmp_path)
    lay_out(control_plane, made)
    yield made
    made.close()


@pytest.fixture
def agents(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Agents]:
    """Agents of nodes of this cluster, each with a token that is bound to its own node."""
    made = Agents(control_plane, tmp_path)
    yield made
    made.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure shows what the servers had to say."""
    outcome: Any = yield
    report = outcome.get_result()
    plane = getattr(item, "funcargs", {}).get("control_plane")
    if report.failed and isinstance(plane, ControlPlane) and plane.root.exists():
        report.sections.append(("logs of the control plane", plane.log_tail()))
