"""The corpus of job stories: logs, findings and exits, judged by checks and table, against a person's verdict."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec import Struct

from healthd.checks.kernel_efa import kernel_efa
from healthd.checks.kernel_host import kernel_host
from healthd.checks.kernel_lustre import KernelLustreSettings, kernel_lustre
from healthd.checks.kernel_sxid import kernel_sxid
from healthd.checks.kernel_xid import KernelXidSettings, kernel_xid
from healthd.core.check import NoSettings, judged
from healthd.core.model import NODE, Component, Finding, Outcome, Reading, Remedy, Result, Severity, gpu_component
from healthd.core.node import KernelRecord
from healthd.job.blame import Blame, JobVerdict, blame
from healthd.job.job import Job, job_of
from healthd.job.speakers import blame_table
from healthd.judge.history import Fault, History, observe
from healthd.testing import FakeNode
from tests.support.judgement import LUSTRE_IS_LOADED, START

FILE = Path(__file__).with_name("job_stories.txt")
END = START + timedelta(hours=1)
GPUS = tuple(
    gpu_component(uuid=f"GPU-{index}", pci=pci, index=index) for pci, index in (("0000:05:00", 3), ("0000:06:00", 4))
)
CHECKS: dict[str, Callable[[FakeNode], Result]] = {
    "kernel.xid": lambda node: kernel_xid(node, KernelXidSettings()),
    "kernel.sxid": lambda node: kernel_sxid(node, NoSettings()),
    "kernel.host": lambda node: kernel_host(node, NoSettings()),
    "kernel.efa": lambda node: kernel_efa(node, NoSettings()),
    "kernel.lustre": lambda node: kernel_lustre(node, KernelLustreSettings()),
}
_EVENT = re.compile(r"(-?\d+(?:\.\d+)?) (.*)")


class Story(Struct, frozen=True, kw_only=True):
    """One line of the file. ``line``: its number."""

    line: int
    verdict: Blame
    text: str
    job: Job
    lines: tuple[tuple[datetime, str], ...]
    levels: tuple[tuple[datetime, Finding], ...]
    blind: tuple[str, ...]

    def judged(self) -> JobVerdict:
        """The verdict of the checks and the table."""
        return blame(self.job, self._faults(), blame_table(), self.blind)

    def _faults(self) -> tuple[Fault, ...]:
        """The open faults, folded as the daemon folds them: a batch for each line, in the order of time."""
        named = judged((), [Reading(component=gpu, name="a_name", value=1.0) for gpu in GPUS])
        history = _folded(History(), "gpu.names", named, START)
        for at, text in self.lines:
            record = KernelRecord(boot_id="boot", sequence=1, time=at, text=text)
            results = {
                name: check(FakeNode(kernel_records=[record], sys=dict(LUSTRE_IS_LOADED)))
                for name, check in CHECKS.items()
            }
            assert any(result.findings for result in results.values()), f"no check reads the line: {text}"
            for name, result in results.items():
                history = _folded(history, name, result, at)
        for number, (at, finding) in enumerate(self.levels):
            history = _folded(history, f"level.{number}", judged([finding]), at)
        return tuple(history.faults.values())


def _folded(history: History, check: str, result: Result, at: datetime) -> History:
    return observe(history, Outcome(check=check, result=result, at=at, duration_s=0.0), (), at)[0]


def stories() -> Iterator[Story]:
    """The stories of the file."""
    for number, line in enumerate(FILE.read_text(encoding="utf-8").splitlines(), start=1):
        if line and not line.startswith("#"):
            yield _story(number, line)


def _story(number: int, line: str) -> Story:
    verdict, ending, text, told = (part.strip() for part in f"{line} ".split(" | ", 3))
    events = [event.strip() for event in told.split(" && ") if event.strip()]
    gpus = next((event.removeprefix("gpus=") for event in events if event.startswith("gpus=")), "")
    environ = {"SLURM_JOB_ID": "42", "SLURM_JOB_EXIT_CODE2": ending, "SLURM_JOB_GPUS": gpus}
    timed = sorted((float(match[1]), match[2]) for event in events if (match := _EVENT.fullmatch(event)) is not None)
    at = [(START + timedelta(minutes=minute), what) for minute, what in timed]
    return Story(
        line=number,
        verdict=Blame(verdict),
        text=text,
        job=job_of(environ, start=START, end=END),
        lines=tuple((when, what) for when, what in at if not what.startswith("!")),
        levels=tuple((when, _level(what, when)) for when, what in at if what.startswith("!")),
        blind=tuple(event.removeprefix("?") for event in events if event.startswith("?")),
    )


def _level(words: str, at: datetime) -> Finding:
    code, severity, where = words.removeprefix("!").split(" ")
    kind, _, name = where.partition(":")
    component = NODE if where == "node" else Component(kind=kind, id=name)
    message = f"{code} on {component}"
    return Finding(
        code=code, severity=Severity(severity), component=component, message=message, remedy=Remedy.NONE, time=at
    )


STORIES = tuple(stories())


def test_the_confusion_matrix(
    record_property: Callable[[str, object], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """No job's own end is blamed on its node, no unknown on anybody; every story has the verdict of a person."""
    found = Counter((story.verdict, story.judged().blame) for story in STORIES)
    rows = [f"{'':10}" + "".join(f"{blame.value:>9}" for blame in Blame)]
    rows += [f"{told.value:10}" + "".join(f"{found[told, judged]:9}" for judged in Blame) for told in Blame]
    matrix = "\n".join([f"{len(STORIES)} stories; rows: a person's verdict, columns: healthd's", *rows])
    record_property("job_stories", matrix)
    with capfd.disabled():
        sys.stderr.write(f"\n{matrix}\n")
    assert len(STORIES) >= 200
    assert [story.line for story in STORIES if story.judged().blame is Blame.NODE is not story.verdict] == []
    wrong = [
        (each.line, each.verdict, each.judged().blame, each.text)
        for each in STORIES
        if each.judged().blame is not each.verdict
    ]
    assert wrong == []
