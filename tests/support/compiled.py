"""Libraries in C that tests load, built with the machine's compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.limits import limit_s

TESTS = Path(__file__).resolve().parent
NVML_SIM = TESTS / "nvml_sim" / "nvml_sim.c"
CLOCK_SIM = TESTS / "clock_sim" / "clock_sim.c"
_OPTIONS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


def compiler() -> str | None:
    """The C compiler, where there is one."""
    return shutil.which("cc")


def compiled(source: Path, library: Path, *options: str) -> Path:
    """``library``, built from ``source``; a warning is an error. Skips what asks where there is no compiler."""
    if (program := compiler()) is None:
        pytest.skip(f"no C compiler `cc`: {source.name} cannot be built (install gcc)")
    subprocess.run([program, *_OPTIONS, *options, "-o", library, source, "-lm"], check=True, timeout=limit_s(60))
    return library
