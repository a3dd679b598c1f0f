"""The fault matrix: all cases, and what no case can arrange, with the reason.

Needs neither pytest nor a compiler: docs/generate.py makes docs/reference/faults.md of it.
"""

from __future__ import annotations

from collections.abc import Mapping

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

FAMILIES = (cases_gpu_memory, cases_gpu, cases_nvlink, cases_fabric, cases_kernel, cases_storage, cases_host)
CASES: tuple[Case, ...] = tuple(
    case
    for module in (*FAMILIES, cases_stack, cases_site, cases_active, cases_real, folds_gpu, folds_host)
    for case in module.CASES
)
FOLDS = frozenset(case.name for case in (*folds_gpu.CASES, *folds_host.CASES))
"""The names of those in which several checks see one fault."""

# Declared by a check, and expected by no case: why.
NOT_ARRANGED: Mapping[str, str] = {}
