"""The workshop of the fault matrix, and the matrix itself at the end of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator

import pytest

from tests.faults.case import Case
from tests.faults.proof import unproven
from tests.faults.rig import Workshop
from tests.support.compiled import NVML_SIM, compiled, compiler

_PLAYED = "case of the fault matrix"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """The real pynvml on the simulated library in C, where there is a compiler; else the simulation in Python."""
    folder = tmp_path_factory.mktemp("faults")
    state = folder / "node.sim"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NVML_SIM_STATE", str(state))
        library = compiled(NVML_SIM, folder / "libnvidia-ml.so.1") if compiler() else None
        opened = Workshop(folder, state=state, library=library)
        yield opened
        opened.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in its report which case it was: reports are all that comes back from another process."""
    report = yield
    if getattr(item, "originalname", "") != "test_one_fault_is_one_diagnosis":
        return report
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]  # of Function
    if isinstance(case, Case) and (report.when == "call" or report.skipped):
        report.user_properties.append((_PLAYED, case.name))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the matrix: each state with its findings and diagnosis, and whether it held."""
    reports = [report for of_outcome in terminalreporter.stats.values() for report in of_outcome]
    told = [(report, dict(getattr(report, "user_properties", ()))) for report in reports]
    played = {noted[_PLAYED]: report.outcome for report, noted in told if _PLAYED in noted}
    if not played:
        return
    from tests.faults.matrix import CASES

    terminalreporter.section("fault matrix")
    for case in CASES:
        if case.name in played:
            terminalreporter.write_line(_line(case, played[case.name]))
    counts = Counter(played.values())
    words = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    terminalreporter.write_line(f"{len(played)} cases of {len({case.check for case in CASES})} checks: {words}")


def _line(case: Case, outcome: str) -> str:
    found = " + ".join(sorted(case.codes)) or (f"({case.status})" if not case.diagnosis else "")
    told = f" => {case.diagnosis}" if case.diagnosis else ""
    needs = f" (unproven on hardware: needs {what})" if (what := unproven(case)) else ""
    return f"{outcome:7} {case.check:16} {case.state:48} [{case.made}] {found}{told}{needs}"
