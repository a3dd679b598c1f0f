"""What the smoke tests on a real GPU share. Without one, each of them is skipped, and says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from healthd.config.schema.config import Config
from healthd.core.check import discover
from healthd.core.errors import SourceError
from healthd.core.node import GpuAnswer, KernelLogState, Nvml, ProbeState
from healthd.observe.runner import run_check
from healthd.sources.machine import Machine, open_machine
from tests.support.limits import limit_s
from tests.support.recorded_gpus import Recorded, keep


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


def run_every_check(machine: Machine) -> None:
    """Every check that the daemon runs at an interval, one after the other."""
    for check in discover().values():
        if check.on == "interval":
            run_check(check, machine, check.settings())


class Questions(NamedTuple):
    """What the checks ask NVML on this machine, sorted."""

    calls: list[str]
    fields: list[tuple[int, int]]


@pytest.fixture(scope="session")
def questions(machine: Machine) -> Questions:
    """Every call and field that a check asks for, read off the checks themselves."""
    nvml = Listening(machine.nvml)
    listening = structs.replace(machine, nvml=nvml)  # Machine names its own class
    run_every_check(listening)
    assert nvml.calls
    return Questions(sorted(nvml.calls), sorted(nvml.fields))


@pytest.fixture(scope="session")
def record(machine: Machine, questions: Questions) -> Iterator[Recorded]:
    """What the GPUs of this machine answer, and what else the tests measure. HEALTHD_TEST_GPU_RECORD=1 keeps it."""
    answers = machine.nvml.ask(*questions.calls, fields=questions.fields)
    made = Recorded(
        model=str(answers[0].values["nvmlDeviceGetName"]),
        driver=machine.nvml.system()["driver_version"],
        date=datetime.now(UTC).date(),
        gpus=tuple(structs.replace(each, uuid=f"GPU-recorded-{each.index}") for each in answers),
    )
    yield made
    if os.environ.get("TEST_GPU_RECORD") == "1":
        keep(made)


class Listening:
    """The machine's NVML, and every question that was put to it."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self.calls: set[str] = set()
        self.fields: set[tuple[int, int]] = set()

    def ask(self, *calls: str, fields: Sequence[int | tuple[int, int]] = ()) -> tuple[GpuAnswer, ...]:
        """As the machine answers."""
        self.calls.update(calls)
        self.fields.update(field if isinstance(field, tuple) else (field, 0) for field in fields)
        return self._nvml.ask(*calls, fields=fields)

    def system(self) -> Mapping[str, Any]:
        """As the machine answers."""
        return self._nvml.system()

    def state(self) -> ProbeState:
        """As the machine's worker is."""
        return self._nvml.state()
