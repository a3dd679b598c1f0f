"""A pytest plugin: branch coverage of the modules that decide, measured in the run that tests everything.

``pytest -p tests.support.pure_coverage``; an import contract names the modules (``pure_modules``). It counts what the
import of these modules runs, and what the tests below tests/unit run that do no I/O: neither the processes that tests
start, nor tests/property. So a test of a whole daemon covers no branch. A branch that is left ends the run red, and
stands in its report. The modules are loaded with probes (``branch_probes``), which cost next to nothing.

What a pure function has cached for a test that is not counted, it computes again for one that is: which tests ran
before in the same process decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from coverage import Coverage

from tests.support.branch_probes import Probes, arcs_of
from tests.support.pure_modules import pure_modules, source_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/unit"
# A test with one of these marks does I/O, and covers nothing.
MARKS = ("process", "slow", "slurm", "kubernetes", "kernel", "nvml")
PROBES = pytest.StashKey[Probes]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--pure`` measures other modules than those of the contract."""
    parser.addoption("--pure", default="", help="modules to measure, comma-separated: healthd.core.backoff")


def _named(pure: str) -> list[str]:
    return pure.split(",") if pure else pure_modules()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before a conftest.py, or a test, imports one of them."""
    probes = Probes(_named(early_config.known_args_namespace.pure))
    probes.install()
    early_config.stash[PROBES] = probes


def pytest_configure(config: pytest.Config) -> None:
    """Begin. Where pytest-xdist shares the run, its workers count, and the process that they belong to reports."""
    modules, probes = _named(config.getoption("--pure")), config.stash[PROBES]
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.pluginmanager.register(Counter(modules, probes, Path(worker["pure_coverage"])))
        return
    folder = TemporaryDirectory(prefix="pure-coverage-")
    config.pluginmanager.register(Reporter(modules, folder))
    if not config.getoption("numprocesses", 0):
        config.pluginmanager.register(Counter(modules, probes, Path(folder.name)))


class Counter:
    """Counts in a process that runs tests."""

    def __init__(self, modules: list[str], probes: Probes, folder: Path) -> None:
        self._probes, self._folder = probes, folder
        self._caches: list[Callable[[], None]] = []
        for module in map(import_module, modules):
            cached = (value for value in vars(module).values() if hasattr(value, "cache_clear"))
            self._caches += [value.cache_clear for value in cached]
        self._counts = True

    def _count(self, *, counts: bool) -> None:
        if self._counts and not counts:
            self._probes.keep()
        elif counts and not self._counts:
            self._probes.forget()
            for clear in self._caches:
                clear()
        self._counts = counts

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A test's module may ask a pure one for its cases."""
        if isinstance(collector, pytest.Module):
            self._count(counts=_is_of(collector))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """A test with its fixtures."""
        self._count(counts=_is_of(item) and not any(item.get_closest_marker(mark) for mark in MARKS))
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Leave the figures for the report."""
        self._count(counts=False)
        (self._folder / f"{uuid4()}.json").write_text(json.dumps(self._probes.kept()), encoding="utf-8")


def _is_of(node: pytest.Collector | pytest.Item) -> bool:
    return isinstance(node, pytest.Module | pytest.Item) and FOLDER in node.path.parents


class Reporter:
    """Adds the figures of all processes up."""

    def __init__(self, modules: list[str], folder: TemporaryDirectory[str]) -> None:
        self._modules, self._folder, self._text = modules, folder, StringIO()
        self._verdict = ""

    def pytest_configure_node(self, node: object) -> None:
        """Tell a worker of pytest-xdist where its figures go."""
        node.workerinput["pure_coverage"] = self._folder.name  # type: ignore[attr-defined]  # xdist has no types

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A branch that is left is an error of the run. A part of the tests can leave branches, and tells nothing."""
        option = session.config.option
        in_part = option.keyword or option.markexpr or getattr(option, "lf", False)
        with self._folder as folder:
            if session.exitstatus != pytest.ExitCode.OK or in_part:
                return
            figures = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).iterdir()]
        self._verdict = "nothing is left"
        if self._report(figures) < 100:
            self._verdict = "FAILED, these are left"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _report(self, figures: list[dict[str, list[int]]]) -> float:
        coverage = Coverage(data_file=None, config_file=str(ROOT / "pyproject.toml"))
        data = coverage.get_data()
        for module in self._modules:
            path = ROOT / f"{source_of(module)}.py"
            ran = {number for of_process in figures for number in of_process[module]}
            arcs = arcs_of(path.read_text(encoding="utf-8"), ran)
            data.add_arcs({str(path): arcs})
        return coverage.report(file=self._text, show_missing=True, skip_covered=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """The lines and branches that are left, below all that pytest prints itself: no test has failed, and the end of
        the output is all that a CI shows."""
        yield
        if self._text.getvalue():
            terminalreporter.section(f"branch coverage of the pure modules by tests/unit: {self._verdict}")
            terminalreporter.write(self._text.getvalue())
