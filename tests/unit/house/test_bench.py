"""What `make bench` makes of its benchmarks, and that the page lists all of them. None is run here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measure import SKIPPED
from tests.support.limits import limit_s
from tests.support.running import ROOT


def test_the_page_lists_every_benchmark() -> None:
    """Each file that `make bench` runs has a row that says what it measures, and no row is of something gone."""
    page = (ROOT / "bench/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "bench").glob("bench_*.py"))


@pytest.mark.process
@pytest.mark.parametrize(
    ("codes", "code", "told"),
    [
        ({"a": 0, "b": 0}, 0, "skipped: none; aim missed, or broken: none"),
        ({"a": SKIPPED, "b": 0}, 0, "skipped: bench_a; aim missed, or broken: none"),
        ({"a": 1, "b": SKIPPED, "c": 0}, 2, "skipped: bench_b; aim missed, or broken: bench_a"),
        ({"a": 2, "b": 0}, 2, "skipped: none; aim missed, or broken: bench_a"),  # argparse: a wrong option
    ],
)
def test_one_that_is_skipped_or_missed_does_not_hide_the_others(
    tmp_path: Path, codes: dict[str, int], code: int, told: str
) -> None:
    """All of them run; the end names who could not, and fails for whoever missed. (2 is how make itself says so.)"""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in ("bench", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tests/system-packages.sh").write_text("echo packages")
    for name, ends_with in codes.items():
        (tmp_path / f"bench/bench_{name}.py").write_text(f"raise SystemExit({ends_with})")
    argv = ["make", "-o", ".venv/dev.stamp", "bench", f"VENV={Path(sys.executable).parent}"]
    ours = {name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}  # `make test`'s
    done = subprocess.run(
        argv, cwd=tmp_path, env=ours, capture_output=True, text=True, timeout=limit_s(60), check=False
    )
    assert done.stdout.splitlines() == ["packages", *(f"== bench_{name}" for name in codes), f"== {told}"]
    assert done.returncode == code
