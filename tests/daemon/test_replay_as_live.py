"""The same lines through the daemon's own way and through ``healthd replay``: the same findings, the same decisions."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from healthd.agent.agent import reading_agent
from healthd.agent.node_rules import bounds_of
from healthd.checklib.loglines import line_rows
from healthd.config.schema.config import CheckConfig, Config, NodeSection, SourcesSection
from healthd.core.check import discover
from healthd.core.model import Mode
from healthd.judge.history import Fault
from healthd.remediation.decide.policy import Rules, Situation, question
from healthd.remediation.policy_files import policy_of
from healthd.remediation.ports import FleetSnapshot, NodeView
from healthd.replay.replay import Trial, replay
from tests.support.judgement import all_read, decided_by

CORPUS = Path(__file__).parents[1] / "checks"
KERNEL_CHECKS = ("kernel.host", "kernel.lustre", "kernel.efa")
WHENEVER = datetime(2026, 1, 1, tzinfo=UTC)
WELL = Situation(
    view=NodeView(name="kmsg", in_service=True, flags=frozenset(), hold=None),
    snapshot=FleetSnapshot(out=frozenset(), total=1),
)


def published() -> list[str]:
    """Every kernel line of the checks' own tests and tables: XIDs and SXids as published, and one of each other row."""
    lines = []
    for name in ("xid_lines.txt", "sxid_lines.txt"):
        text = (CORPUS / name).read_text(encoding="utf-8")
        lines += [line.partition(" | ")[2] for line in text.splitlines() if " | " in line and not line.startswith("#")]
    lines += [row.example for check in KERNEL_CHECKS for row in line_rows(check)]
    return [part for line in lines for part in line.split("\\n")]


def escaped(text: str) -> str:
    """The words of a record as the kernel writes them."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in text.encode("utf-8"))


def records(lines: Sequence[str]) -> str:
    """A second apart, so that each is a batch of its own in both ways."""
    return "".join(f"3,{number},{number * 2_000_000},-;{escaped(line)}\n" for number, line in enumerate(lines, 1))


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    """A machine with a kernel log, an hour old (news of yesterday is no longer listed), and Lustre's module."""
    proc = tmp_path / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("b0b0\n")
    (proc / "stat").write_text(f"cpu 0 0\nbtime {int(time.time()) - 3_600}\n")
    for name in ("sys/module/lustre", "dev"):
        (tmp_path / name).mkdir(parents=True)
    sources = SourcesSection(
        sys_root=str(tmp_path / "sys"),
        proc_root=str(proc),
        dev_root=str(tmp_path / "dev"),
        kmsg=str(tmp_path / "kmsg"),
    )
    checks = {name: CheckConfig(settings=check.settings()) for name, check in discover().items()}
    return Config(node=NodeSection(name="kmsg"), sources=sources, checks=checks)


def gist(faults: Sequence[Fault]) -> set[tuple[object, ...]]:
    """What is open. Not the words: a line that comes again within one batch is said to have come twice."""
    return {(f.code, str(f.component), f.severity, f.remedy, f.clears_by, f.count, f.symptom_of) for f in faults}


def live(config: Config, mode: Mode) -> tuple[set[tuple[object, ...]], str]:
    """What an agent that looks at the log finds, and what the policy decides about it."""
    agent = reading_agent(config)
    try:
        rules = Rules(mode=mode, policy=policy_of(config.policy, None), bounds=bounds_of(config.policy))
        monitor = agent.monitor
        now = max((fault.last for fault in monitor.history.faults.values()), default=WHENEVER)
        diagnoses = monitor.diagnoses()
        seen = [each for each in diagnoses if monitor.is_acknowledged(each)]
        decision, _ = decided_by(question(diagnoses, seen, rules, now), all_read(WELL))
        return gist(tuple(monitor.history.faults.values())), f"{decision.reason} {decision.steps} {decision.ladder}"
    finally:
        agent.close()


def replayed(config: Config, mode: Mode) -> tuple[set[tuple[object, ...]], str]:
    """What a replay of the same file comes to."""
    path = Path(config.sources.kmsg)
    done = replay([path], config, Trial(mode=mode))
    if not done.stories:
        return set(), "nothing calls for taking the node out () ()"
    (story,) = done.stories
    return gist(story.faults), f"{story.decision.reason} {story.decision.steps} {story.decision.ladder}"


@pytest.mark.parametrize("seed", range(3))
def test_the_same_lines_come_to_the_same(settings: Config, seed: int) -> None:
    """After each published line, found on top of all before it: the same open faults, the same decision."""
    lines = published()[seed::3]
    path = Path(settings.sources.kmsg)
    for end in range(1, len(lines) + 1, 4):
        path.write_text(records(lines[:end]))
        os.utime(path)
        assert replayed(settings, Mode.OBSERVE) == live(settings, Mode.OBSERVE), lines[end - 1]


def test_each_line_alone_is_answered_alike(settings: Config) -> None:
    """In repair mode, one line at a time: the same repair, by the same steps and ladder, or the same refusal."""
    path = Path(settings.sources.kmsg)
    for line in published():
        path.write_text(records([line]))
        _, message = replayed(settings, Mode.REPAIR)
        assert message == live(settings, Mode.REPAIR)[1], line
