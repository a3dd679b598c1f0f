"""The fault matrix: all cases, and what no case can arrange, with the reason.

A new check brings its cases as ``FAULTS`` in its own test, tests/checks/test_<check>.py, where they are found. Needs
neither pytest nor a compiler, and so such a test may import neither: docs/generate.py makes docs/reference/faults.md of
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from tests.faults import (
    cases_active,
    cases_fabric,
    cases_gpu,
    cases_gpu_memory,
    cases_host,
    cases_kernel,
    cases_nvlink,
    cases_real,
    cases_site,
    cases_stack,
    cases_storage,
    folds_gpu,
    folds_host,
)
from tests.faults.case import Case

_BRINGS_CASES = re.compile(r"^FAULTS\b", re.MULTILINE)


def brought(folder: Path = Path(__file__).parents[1] / "checks") -> Iterator[Case]:
    """The cases that tests of single checks bring along."""
    for path in sorted(folder.glob("test_*.py")):
        if _BRINGS_CASES.search(path.read_text(encoding="utf-8")):
            yield from import_module(f"tests.checks.{path.stem}").FAULTS


FAMILIES = (cases_gpu_memory, cases_gpu, cases_nvlink, cases_fabric, cases_kernel, cases_storage, cases_host)
MODULES = (*FAMILIES, cases_stack, cases_site, cases_active, cases_real, folds_gpu, folds_host)
CASES: tuple[Case, ...] = (*(case for module in MODULES for case in module.CASES), *brought())

# Declared by a check, and expected by no case: why.
NOT_ARRANGED: Mapping[str, str] = {
    "gpu.reset.owed": "no look finds it: a GPU reset of healthd's own leaves it behind (test_gpu_reset.py)",
}
