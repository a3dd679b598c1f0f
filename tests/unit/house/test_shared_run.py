"""How a run of the tests is shared out, what it takes a sample of, and what it measures beside."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Struct

from tests.conftest import LANES, SPREAD, WAITING
from tests.support.ports import of_this_process
from tests.support.running import ROOT
from tests.support.sampling import Sample, left_out

BOUNDARIES = {
    "reboot": ["before drain", "after drain", "write 1", "write 2", "before reboot", "after reboot"],
    "replace": ["before drain", "after drain", "write 1", "before replace"],
    "short": ["write 1"],
}


def kind(boundary: str) -> str:
    return boundary.partition(" ")[0] if boundary.startswith("write") else boundary


@pytest.mark.parametrize("seed", range(20))
def test_a_sample_holds_every_kind_and_something_of_each_life(seed: int) -> None:
    """Whatever the seed; in the order in which they are passed, and the same for the same seed."""
    taken = Sample(seed=seed).of(BOUNDARIES, kind=kind, least=2)
    every = {kind(boundary) for life in BOUNDARIES.values() for boundary in life}
    assert {kind(boundary) for life in taken.values() for boundary in life} == every
    for name, life in BOUNDARIES.items():
        assert len(taken[name]) >= min(2, len(life))
        assert taken[name] == [boundary for boundary in life if boundary in taken[name]]
    assert taken == Sample(seed=seed).of(BOUNDARIES, kind=kind, least=2)


def test_a_boundary_more_changes_no_other_ones_turn() -> None:
    """What a life passes can differ from run to run: the seed takes the same of what is there both times."""
    more = {**BOUNDARIES, "replace": [*BOUNDARIES["replace"], "at rest"]}
    taken, with_more = (Sample(seed=3).of(lives, kind=kind, least=0) for lives in (BOUNDARIES, more))
    assert with_more["replace"] == [*taken["replace"], "at rest"]


def test_without_a_seed_everything_is_taken() -> None:
    """`make test-exhaustive` leaves nothing out."""
    assert Sample(seed=None).of(BOUNDARIES, kind=kind, least=0) == BOUNDARIES


def test_of_a_list_of_one_kind_some_are_taken() -> None:
    """So many, in their order, and others with another seed; without a seed all."""
    samples = [Sample(seed=seed).some("lives", range(10), 4) for seed in range(30)]
    assert all(len(sample) == 4 and sample == sorted(sample) for sample in samples)
    assert {number for sample in samples for number in sample} == set(range(10))
    assert Sample(seed=None).some("lives", range(10), 4) == list(range(10))


@pytest.mark.parametrize("life", [object(), frozenset({"a"}), (1, frozenset({"b"}))])
def test_a_life_whose_text_differs_between_processes_is_in_no_sample(life: object) -> None:
    """Each process of a run would take another one: the run ends before its first test, or a seed repeats nothing."""
    with pytest.raises(ValueError, match="another sample"):
        Sample(seed=1).some("lives", [life], 1)


def test_two_seeds_take_different_samples() -> None:
    """Over many runs everything is taken."""
    samples = [Sample(seed=seed).of(BOUNDARIES, kind=kind, least=0) for seed in range(30)]
    assert all(any(boundary in sample["reboot"] for sample in samples) for boundary in BOUNDARIES["reboot"])


class Case(Struct):
    """What the sampling asks of a pytest.Item."""

    nodeid: str
    callspec: SimpleNamespace
    mark: pytest.Mark | None

    def get_closest_marker(self, _name: str) -> pytest.Mark | None:
        return self.mark


def cases(test: str, mark: pytest.Mark | None) -> list[Any]:
    return [
        Case(f"{test}[{act}-{number}]", SimpleNamespace(params={"act": act, "number": number}), mark)
        for act in ("drain", "resume")
        for number in range(5)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_of_a_sampled_test_some_cases_are_left_out_and_no_kind_of_them(seed: int) -> None:
    """So many of each test stay, with each kind among them; a test without the mark keeps all, and without a seed all
    tests do."""
    some = cases("a", pytest.mark.sampled(3).mark)
    by_kind = cases("b", pytest.mark.sampled(0, kind=lambda act, **_: act).mark)
    every = [*some, *by_kind, *cases("c", None)]
    left = {each.nodeid for each in left_out(every, Sample(seed=seed))}
    assert len([each for each in some if each.nodeid not in left]) == 3
    assert {each.callspec.params["act"] for each in by_kind if each.nodeid not in left} == {"drain", "resume"}
    assert len([each for each in by_kind if each.nodeid not in left]) == 2
    assert not any(nodeid.startswith("c[") for nodeid in left)
    assert left_out(every, Sample(seed=None)) == []


def test_no_unit_test_is_sampled() -> None:
    """The branches that tests/unit covers do not depend on chance."""
    marked = [path for path in (ROOT / "tests/unit").rglob("*.py") if "@pytest.mark." + "sampled" in path.read_text()]
    assert marked == []


def test_what_shares_the_run_out_names_files_that_exist() -> None:
    """A file that moved has left its lane."""
    files = [*(file for lane in LANES.values() for file in lane), *SPREAD]
    assert [file for file in (*files, *WAITING) if not (ROOT / file).exists()] == []


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="needs a run that processes share")
@pytest.mark.process
def test_each_process_of_a_run_mounts_for_itself() -> None:
    """A disk that one of them breaks is no fault of the machine to the daemons of the others."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("may not mount here")
    assert Path("/proc/self/ns/mnt").readlink() != Path(f"/proc/{os.getppid()}/ns/mnt").readlink()


def test_no_two_processes_of_a_run_have_a_port_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is stopped for a while finds its port free, whatever the others start meanwhile."""
    shares: list[set[int]] = []
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    for number in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        shares.append(set(itertools.islice(of_this_process(), 30_000)))
    assert len(set.union(*shares)) == sum(map(len, shares)) == 22_000


@pytest.mark.process
@pytest.mark.parametrize(
    ("workers", "tests", "code"), [("0", "core/test_backoff.py", 0), ("1", "judge/test_crowd.py", 1)]
)
def test_a_branch_that_is_left_ends_the_run_red(tmp_path: Path, workers: str, tests: str, code: int) -> None:
    """One process or several: green where its tests take every branch of a module, red where others do not."""
    done = covered(tmp_path, "--pure", "healthd.core.backoff", "--numprocesses", workers, f"tests/unit/{tests}")
    assert done.returncode == code, done.stdout + done.stderr
    (total,) = [line for line in done.stdout.splitlines() if line.startswith("TOTAL")]
    assert total.endswith("100%") == (code == 0)


@pytest.mark.process
def test_what_other_tests_had_cached_is_counted_all_the_same(tmp_path: Path) -> None:
    """A file outside of tests/unit asks for the rows of every kernel check while it is collected."""
    others = ["tests/daemon/test_replay_as_live.py", "tests/checks/test_kernel_host.py"]
    units = [f"tests/unit/checklib/test_{name}.py" for name in ("kernel_tables", "loglines")]
    done = covered(tmp_path, "--pure", "healthd.checklib.loglines", *others, *units)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_what_is_left_is_what_coverage_py_finds_by_its_trace_function(tmp_path: Path) -> None:
    """The same tests leave the same lines and branches of the same modules."""
    tests = [f"tests/unit/{name}.py" for name in ("judge/test_crowd", "judge/test_trends", "core/test_hostlist")]
    judge = ("findings", "history", "trends")  # which these tests import, and cover in part
    done = covered(tmp_path, "--pure", ",".join(f"healthd.judge.{name}" for name in judge), *tests)
    included = ",".join(str(ROOT / f"healthd/judge/{name}.py") for name in judge)
    traced = [f"--data-file={tmp_path}/traced", "--branch", f"--include={included}"]
    python(tmp_path, "coverage", "run", *traced, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    told = python(tmp_path, "coverage", "report", traced[0], "--show-missing", "--skip-covered")
    assert rows(told.stdout) == rows(done.stdout), done.stdout + told.stdout
    assert "->" in told.stdout


def rows(report: str) -> list[str]:
    return [" ".join(line.split()) for line in report.splitlines() if line.startswith(("healthd/", "TOTAL"))]


def covered(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest that counts branches, ended."""
    return python(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.pure_coverage", *arguments)


def python(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module that was run as a program, ended."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-m", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)
