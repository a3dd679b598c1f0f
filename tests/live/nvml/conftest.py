"""What the probe and NVML tests share: the C library built once, a state file, sources that are always closed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from healthd.probe.child import kill_group
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state
from healthd.sources.nvml import NvmlSource
from tests.support.compiled import NVML_SIM, compiled
from tests.support.limits import limit_s


class Clock(Struct):
    """Monotonic seconds that pass when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def live_workers(parent: int | None = None) -> list[int]:
    """The probe workers that are children of a process and have not ended, as /proc has them."""
    processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(entry.name) for entry in processes if _is_worker_of(entry, parent or os.getpid())]


def _is_worker_of(entry: Path, parent: int) -> bool:
    try:
        state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        return state != "Z" and int(ppid) == parent and b"probe/worker.py" in (entry / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(pid: int, *, within_s: float) -> bool:
    """Whether a process is gone, or a zombie, before the time is over."""
    until = time.monotonic() + limit_s(within_s)
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


ANSWERS_IN_S = limit_s(6.0)
"""How long a worker that answers may take, where no test is about that: a busy machine takes seconds to start one."""


class Machine(Struct):
    """A simulated machine whose state a test changes, and the sources that look at it."""

    state_file: Path
    library: str
    sources: list[NvmlSource] = field(default_factory=list)

    def becomes(self, state: Mapping[str, str]) -> None:
        write_state(self.state_file, state)

    def source(self, **settings: Any) -> NvmlSource:
        source = NvmlSource(library=self.library, **{"deadline_s": ANSWERS_IN_S, **settings})
        self.sources.append(source)
        return source


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    """Every worker that a test starts has ended when the test has; what a failing test left is killed."""
    yield
    left = [pid for pid in live_workers() if not ended(pid, within_s=1.0)]
    for pid in left:
        kill_group(pid)
    assert not left, f"probe workers {left} outlived their test"


@pytest.fixture(scope="session")
def c_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated libnvidia-ml.so.1."""
    return compiled(NVML_SIM, tmp_path_factory.mktemp("nvml_sim") / "libnvidia-ml.so.1")


@pytest.fixture
def state_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy p5.48xlarge, where both simulated libraries find it."""
    path = tmp_path / "node.sim"
    write_state(path, healthy_state())
    monkeypatch.setenv("NVML_SIM_STATE", str(path))
    return path


@pytest.fixture
def real_pynvml(state_file: Path, c_library: Path) -> Iterator[Machine]:
    """The real pynvml in the real worker, on the C library."""
    yield from _closed(Machine(state_file, str(c_library)))


@pytest.fixture
def python_sim(state_file: Path) -> Iterator[Machine]:
    """The simulated library in Python, in the real worker."""
    yield from _closed(Machine(state_file, str(state_file)))


@pytest.fixture(params=["real_pynvml", "python_sim"])
def machine(request: pytest.FixtureRequest) -> Machine:
    """Both, one after the other."""
    found: Machine = request.getfixturevalue(request.param)
    return found


def _closed(machine: Machine) -> Iterator[Machine]:
    try:
        yield machine
    finally:
        for source in machine.sources:
            source.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers() -> Callable[[], list[int]]:
    """The live probe workers of this process."""
    return live_workers


@pytest.fixture
def has_ended() -> Callable[..., bool]:
    return ended


@pytest.fixture
def odd_family(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a worker module that misbehaves on request (odd_family.py beside this file)."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    sys.modules.pop("odd_family", None)
    return "odd_family"
