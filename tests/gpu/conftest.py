"""What the smoke tests on a real GPU share. Without one, each of them is skipped, and says what is missing."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence

import pytest

from healthd.config.schema.config import Config
from healthd.core.errors import SourceError
from healthd.core.node import KernelLogState
from healthd.sources.machine import Machine, open_machine
from tests.support.limits import limit_s


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    """This machine, as healthd sees it with no configuration; its kernel log is not read."""
    machine = open_machine(Config(), lambda: KernelLogState(source="not read here", alive=True))
    try:
        _require_gpu(machine)
        yield machine
    finally:
        machine.close()


def _require_gpu(machine: Machine) -> None:
    try:
        gpus = machine.nvml.ask()
    except SourceError as error:
        pytest.skip(f"needs an NVIDIA GPU with its driver: {error}")
    if not gpus:
        pytest.skip("needs an NVIDIA GPU: NVML lists none")


@pytest.fixture(scope="session")
def smi(machine: Machine) -> Smi:
    """nvidia-smi, which comes with the driver."""
    path = shutil.which("nvidia-smi")
    if path is None:
        pytest.skip("needs nvidia-smi, to compare with")
    return Smi(path)


class Smi:
    """What nvidia-smi says of each GPU."""

    def __init__(self, path: str) -> None:
        self._path = path

    def query(self, names: Sequence[str]) -> list[dict[str, str]]:
        """One row for each GPU, by the names of ``nvidia-smi --help-query-gpu``, without units."""
        argv = [self._path, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60))
        assert done.returncode == 0, f"nvidia-smi: {done.stdout}{done.stderr}"
        rows = [line.split(", ") for line in done.stdout.splitlines() if line.strip()]
        return [dict(zip(names, row, strict=True)) for row in rows]
