"""A pytest plugin: branch coverage of the modules that decide, measured in the run that tests everything.

``pytest -p tests.support.pure_coverage``; an import contract names the modules (``pure_modules``). It counts what the
import of these modules runs, and what the tests below tests/unit run that do no I/O. It traces nothing else: neither
other modules nor the processes that tests start, and not tests/property, whose thousands of examples would take twice
as long. So it costs little, and a test of a whole daemon covers no branch. A branch that is left ends the run red, and
stands in its report.

What a pure function has cached for a test that is not counted, it computes again for one that is: which tests ran
before in the same process decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from coverage import Coverage

from tests.support.pure_modules import pure_modules, source_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/unit"
# A test with one of these marks does I/O, and covers nothing.
MARKS = ("process", "slow", "slurm", "kubernetes", "kernel", "nvml")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--pure`` measures other modules than those of the contract."""
    parser.addoption("--pure", default="", help="modules to measure, comma-separated: healthd.core.backoff")


def pytest_configure(config: pytest.Config) -> None:
    """Begin. Where pytest-xdist shares the run, its workers count, and the process that they belong to reports."""
    named = config.getoption("--pure").split(",") if config.getoption("--pure") else pure_modules()
    files = [ROOT / f"{source_of(module)}.py" for module in named]
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.pluginmanager.register(Counter(files, worker["pure_coverage"]))
        return
    folder = TemporaryDirectory(prefix="pure-coverage-")
    config.pluginmanager.register(Reporter(files, folder))
    if not config.getoption("numprocesses", 0):
        config.pluginmanager.register(Counter(files, folder.name))


def measured(files: list[Path], folder: str) -> Coverage:
    """Coverage of these files, whose figures lie in this folder."""
    return Coverage(
        data_file=f"{folder}/figures",
        data_suffix=True,
        config_file=str(ROOT / "pyproject.toml"),
        include=[str(file) for file in files],
    )


class Counter:
    """Counts in a process that runs tests."""

    def __init__(self, files: list[Path], folder: str) -> None:
        self._coverage = measured(files, folder)
        self._caches: list[Callable[[], None]] = []
        self._filled_uncounted = False
        with self._counting():
            for file in files:
                parts = file.relative_to(ROOT).with_suffix("").parts
                module = import_module(".".join(parts if parts[0] == "healthd" else ("healthd", *parts)))
                cached = (value for value in vars(module).values() if hasattr(value, "cache_clear"))
                self._caches += [value.cache_clear for value in cached]

    @contextmanager
    def _counting(self) -> Iterator[None]:
        if self._filled_uncounted:
            for clear in self._caches:
                clear()
            self._filled_uncounted = False
        self._coverage.start()
        try:
            yield
        finally:
            self._coverage.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A test's module may ask a pure one for its cases."""
        if not _is_of(collector):
            self._filled_uncounted |= isinstance(collector, pytest.Module)
            return (yield)
        with self._counting():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """A test with its fixtures."""
        if not _is_of(item) or any(item.get_closest_marker(mark) for mark in MARKS):
            self._filled_uncounted = True
            return (yield)
        with self._counting():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Leave the figures for the report."""
        self._coverage.save()


def _is_of(node: pytest.Collector | pytest.Item) -> bool:
    return isinstance(node, pytest.Module | pytest.Item) and FOLDER in node.path.parents


class Reporter:
    """Adds the figures of all processes up."""

    def __init__(self, files: list[Path], folder: TemporaryDirectory[str]) -> None:
        self._files, self._folder, self._text = files, folder, StringIO()

    def pytest_configure_node(self, node: object) -> None:
        """Tell a worker of pytest-xdist where its figures go."""
        node.workerinput["pure_coverage"] = self._folder.name  # type: ignore[attr-defined]  # xdist has no types

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A branch that is left is an error of the run. A part of the tests can leave branches, and tells nothing."""
        option = session.config.option
        in_part = option.keyword or option.markexpr or getattr(option, "lf", False)
        if session.exitstatus != pytest.ExitCode.OK or in_part:
            return
        with self._folder as folder:
            coverage = measured(self._files, folder)
            coverage.combine()
            if coverage.report(file=self._text, show_missing=True, skip_covered=True) < 100:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The lines and branches that are left."""
        if self._text.getvalue():
            terminalreporter.section("branch coverage of the pure modules by tests/unit")
            terminalreporter.write(self._text.getvalue())
