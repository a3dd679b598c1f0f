"""What the tests of active tests share: stand-ins for CUDA, GDRCopy, NCCL and nccl-tests, and a source."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field

from healthd.sources.active import ActiveTestsSource
from healthd.testing import FakeTree
from tests.support.compiled import compiled
from tests.support.limits import limit_s

SIM = Path(__file__).resolve().parents[2] / "support" / "active_sim"
BINDINGS = '''"""The stand-in's errors and version, as nccl.bindings.nccl has them."""


class NCCLError(Exception):
    """What NCCL refused."""


def get_version() -> int:
    """2.27.5."""
    return 22705
'''


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    """Whether it becomes true in time."""
    end_s = time.monotonic() + limit_s(within_s)
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


class Rig(Struct):
    """A folder with the stand-ins, and the environment that makes children find them."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def note(self) -> Path:
        """Where a test notes its environment and the pids of itself and what it started."""
        return self.folder / "note"

    def noted(self) -> dict[str, Any]:
        """What was noted, as soon as it is."""
        assert until(self.note.exists), "the test has not begun"
        noted: dict[str, Any] = json.loads(self.note.read_text())
        return noted

    def source(self, *, fault: str = "", gpus: int = 2, efa: bool = True, **further: str) -> ActiveTestsSource:
        """A source whose children find the stand-ins, in which ``fault`` is."""
        environ = {**os.environ, **self.environ, "ACTIVE_SIM_FAULT": fault, "ACTIVE_SIM_GPUS": str(gpus), **further}
        return ActiveTestsSource(
            gpus=lambda: [f"0000:{index * 0x11:02x}:00" for index in range(gpus)],
            sys_tree=FakeTree({"module/efa/version": "3.1.0g"} if efa else {}),
            environ=environ,
        )

    def add_cuda(self) -> None:
        """libcuda.so.1."""
        self._build("cuda_sim.c", "libcuda.so.1")

    def add_gdrcopy(self) -> None:
        """libgdrapi.so.2."""
        self._build("gdrapi_sim.c", "libgdrapi.so.2")

    def add_nccl4py(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The package ``nccl``, where children look for modules."""
        packages = self.folder / "python"
        for name, text in {
            "nccl/__init__.py": "",
            "nccl/core/__init__.py": (SIM / "nccl_core.py").read_text(),
            "nccl/bindings/__init__.py": "",
            "nccl/bindings/nccl.py": BINDINGS,
        }.items():
            (packages / name).parent.mkdir(parents=True, exist_ok=True)
            (packages / name).write_text(text)
        monkeypatch.syspath_prepend(str(packages))

    def add_tool(self, name: str, text: str) -> Path:
        """An executable in Python, in a folder of PATH."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        self.environ["PATH"] = f"{path.parent}:{os.environ['PATH']}"
        return path

    def add_perf(self) -> Path:
        """all_reduce_perf."""
        return self.add_tool("all_reduce_perf", (SIM / "all_reduce_perf.py").read_text())

    def _build(self, source: str, name: str) -> None:
        libraries = self.folder / "lib"
        libraries.mkdir(exist_ok=True)
        compiled(SIM / source, libraries / name)
        self.environ["LD_LIBRARY_PATH"] = str(libraries)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Nothing installed yet. Whatever a failing test left is ended."""
    rig = Rig(tmp_path)
    yield rig
    pids: list[int] = rig.noted()["pids"] if rig.note.exists() else []
    until(lambda: not any(map(alive, pids)), 1.0)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes {left} outlived their test"
