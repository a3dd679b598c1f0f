"""docs/how-to/write-a-check.md, followed to the letter in a repository of its own: two files are a whole check."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from healthd.cli.new_check import KINDS
from tests.support.running import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow]

CHECK, TEST = "checks/host_numa.py", "tests/checks/test_host_numa.py"
CHART_SCHEMA = "packaging/helm/healthd/values.schema.json"
_FENCE = re.compile(r"^```python (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NOT_OURS = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "__pycache__", ".hypothesis", ".coverage*", ".*_cache", "*.egg-info"
)
ENDS_WITHIN_S = 1800.0
"""The slowest command, on a machine that is busy with others."""
_MATRIX = "host.numa or host_numa or site.new or site_new or well or every_ or no_state or belongs or contract"


class Clone:
    """A repository with one commit, which is this tree as it stands, changes that are not committed included.

    ``caches``: beside it, what its commands would compile and analyse anew each time.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.caches = folder, folder.parent / "caches"
        shutil.copytree(ROOT, folder, symlinks=True, ignore=_NOT_OURS)
        for name in ("checks", "remediation"):  # an sdist has no links
            if not (folder / "healthd" / name).exists():
                (folder / "healthd" / name).symlink_to(f"../{name}")
        if (known := ROOT / ".mypy_cache").exists():  # after `make types`: what is as it was is not analysed again
            shutil.copytree(known, self.caches / "mypy")
        self.git("init", "--quiet")
        self.git("add", "--all")
        self.git("-c", "user.name=a test", "-c", "user.email=test@localhost", "commit", "--quiet", "--message=the tree")

    def git(self, *words: str) -> str:
        return self._run("git", *words).stdout

    def python(self, *words: str) -> str:
        """What Python prints, with the packages of this folder before any other; fails if it fails."""
        return self._run(sys.executable, *words).stdout

    def changed(self) -> Mapping[str, str]:
        """Each file that is not as it was committed, and what git says of it."""
        listed = self.git("status", "--porcelain", "--untracked-files=all")
        return {line[3:]: line[:2] for line in listed.splitlines()}

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        caches = {"PYTHONPYCACHEPREFIX": str(self.caches / "bytecode"), "MYPY_CACHE_DIR": str(self.caches / "mypy")}
        environ = {**os.environ, **caches, "PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, cwd=self.folder, env=environ, timeout=ENDS_WITHIN_S
        )
        assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """The clone, with the files of the page where the page says."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    made = Clone(tmp_path_factory.mktemp("clone") / "healthd")
    page = (ROOT / "docs/how-to/write-a-check.md").read_text(encoding="utf-8")
    for name, text in _FENCE.findall(page):
        assert not (made.folder / name).exists(), f"{name} is there already"
        (made.folder / name).write_text(text, encoding="utf-8")
    return made


def test_new_checks_pass_all_that_every_check_must(clone: Clone) -> None:
    """The check of the page, and one of each kind that `healthd new-check` writes, with nothing edited: their own
    tests, the contract of all checks, the fault matrix with all other checks looking, lint and types."""
    names = {f"site.new_{kind}": kind for kind in KINDS}
    for name, kind in names.items():
        clone.python("-m", "healthd", "new-check", name, f"--{kind}")
    written = [path for path in clone.changed() if "site_new_" in path]
    assert len(written) == 2 * len(KINDS)
    made = [CHECK, TEST, *written]
    tests = (
        *(path for path in made if path.startswith("tests/")),
        "tests/contract/test_checks.py",
        "tests/faults/test_matrix.py",
    )
    ran = clone.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", _MATRIX, *tests)
    assert "passed  host.numa        automatic NUMA balancing is on" in ran
    assert all(f"passed  {name}" in ran for name in names)
    clone.python("-m", "ruff", "check", "--no-cache", *made)
    clone.python("-m", "ruff", "format", "--no-cache", "--check", *made)
    clone.python("-m", "mypy", *made)
    for path in written:
        (clone.folder / path).unlink()


def test_the_new_check_works(clone: Clone) -> None:
    """It is listed, explained and run on this machine, and its setting is one of the configuration's."""
    assert "host.numa" in clone.python("-m", "healthd", "checks")
    assert "found by host.numa" in clone.python("-m", "healthd", "explain", "host.numa.balancing")
    (clone.folder / "build").mkdir()
    config = clone.folder / "build/config.toml"
    config.write_text('[checks."host.numa"]\nwanted = true\n', encoding="utf-8")
    words = ("check", "host.numa", "-v", "--no-daemon", "--config", str(config))
    assert re.search(r"host\.numa", clone.python("-m", "healthd", *words))  # exit code 0: looked, and not unknown


def test_exactly_two_files_were_added_and_none_changed(clone: Clone) -> None:
    """After all of that git sees the two files of the page, and nothing else."""
    assert clone.changed() == {CHECK: "??", TEST: "??"}


def test_the_reference_follows_by_its_generator(clone: Clone) -> None:
    """`make docs` is all that a proposal needs beside them: it writes reference pages and the chart's schema."""
    clone.python("docs/generate.py")
    more = clone.changed().keys() - {CHECK, TEST, CHART_SCHEMA}
    assert {"docs/reference/checks.md", "docs/reference/faults.md", "docs/reference/findings.md"} <= more
    assert [name for name in more if not name.startswith("docs/reference/")] == []
