"""``healthd replay`` against the daemon: the same lines through both, the same decisions and the same acts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from healthd.agent.agent import enabled_checks
from healthd.config.schema.config import CheckConfig, Config, PolicySection, RemediationSection
from healthd.config.schema.replay import ReplaySection
from healthd.core.check import discover
from healthd.core.model import Mode, Remedy
from healthd.remediation.policy_files import policy_of
from healthd.replay.replay import Trial, replay
from healthd.replay.story import Story
from healthd.sim.cluster import FakeClusterNode
from healthd.testing import FakeClock
from tests.faults.case import Case, Made
from tests.faults.matrix import CASES
from tests.support.past_daemon import Daemon, Fleet, Said, played
from tests.support.sampling import of_this_run, size
from tests.support.troubled_cluster import TroubledCluster

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
DAY = 86_400.0
NODES = 400
ASSUMED = ReplaySection(drain_s=60, reset_s=20, reboot_s=40, replace_s=120, person_s=36_000)
PARTS = 4
QUIET = 90  # turns without anything new: longer than it takes to see that a repair did not help


def settings(**more: Any) -> Config:
    checks = {name: CheckConfig(settings=check.settings()) for name, check in discover().items()}
    remediation = RemediationSection(mode=Mode.REPAIR, verify_timeout_s=300)
    return Config(**{"checks": checks, "remediation": remediation, "replay": ASSUMED, **more})


# ---------------------------------------------------------------------------------------------------------------------
# lines


class Heard(Struct):
    """What a case of the matrix has the kernel say, and when. A log keeps nothing else of it."""

    now_s: float = 5.0
    lines: list[tuple[float, str]] = field(default_factory=list)

    def says(self, *lines: str) -> None:
        self.lines += [(self.now_s, part) for line in lines for part in line.split("\n")]

    def put(self, path: str, text: str) -> None:
        """A file of then is gone."""

    def state(self, *lines: str) -> None:
        """So is what NVML said."""

    def __getattr__(self, name: str) -> Heard:
        """So are the node and its trees."""
        return self

    def read(self, path: str) -> str:
        """Nothing is read of them."""
        return ""


def rows() -> Iterator[tuple[Case, list[tuple[float, str]]]]:
    """Every case of the matrix that is made of kernel lines, with its lines."""
    for case in CASES:
        if case.check.startswith("kernel.") and case.made in (Made.LINE, Made.BUILT_LINE):
            heard = Heard()
            for seconds in case.arrange(heard) or ():  # type: ignore[arg-type]
                heard.now_s += seconds
            yield case, heard.lines


ROWS = tuple(rows())


# ---------------------------------------------------------------------------------------------------------------------
# both ways


def log_of(folder: Path, lines: Sequence[Said]) -> Path:
    path = folder / "fleet.log"
    stamped = (
        f"{(BEGIN + timedelta(seconds=line.at_s)).isoformat()} {line.host} kernel: {line.text}\n" for line in lines
    )
    path.write_text("".join(stamped), encoding="utf-8")
    return path


def live(
    folder: Path, config: Config, lines: Sequence[Said], *, until_s: float = DAY, rests: int = QUIET
) -> dict[str, Daemon]:
    folder.mkdir(parents=True)
    clock = FakeClock(BEGIN)
    cluster = TroubledCluster(*sorted({line.host for line in lines}), clock=lambda: clock.now().timestamp())
    fleet = Fleet(
        folder=folder,
        config=config,
        policy=policy_of(config.policy, "p5.48xlarge"),
        checks={name: check for name, check in enabled_checks(config).items() if check.on == "kernel"},
        clock=clock,
        cluster=cluster,
    )
    cluster.stale_s = 2.0  # the daemons act at the same time: none sees at once what another does
    cluster.nodes.update((f"spare-{number}", FakeClusterNode()) for number in range(NODES))
    return played(fleet, lines, until_s=until_s, rests=rests)


def past(path: Path, config: Config) -> dict[str, Story]:
    done = replay([path], config, Trial(instance_type="p5.48xlarge", nodes=NODES))
    return {story.host: story for story in done.stories}


def until_an_operator(story: Story) -> list[str]:
    """The decisions before an operator came."""
    came = next((each.at for each in story.happenings if "an operator is assumed" in each.text), None)
    return [each.text for each in story.happenings if each.kind == "decided" and (came is None or each.at < came)]


def acts(story: Story) -> list[Remedy]:
    return [remedy for outage in story.outages for remedy in outage.remedies]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_row_of_the_matrix_is_decided_alike(part: int, tmp_path: Path) -> None:
    """Each on a node of its own, a week apart: what was decided, in these words, and what was done, in this order.
    `make test` takes a third of the rows, with every remedy."""
    every = [(case, lines) for case, lines in ROWS if not case.settings][part::PARTS]
    taken = of_this_run().of(
        {f"part {part}": range(len(every))},
        kind=lambda number: every[number][0].diagnosis.rpartition(" ")[2],
        least=len(every) // 3,
    )
    own = [every[number] for number in taken[f"part {part}"]]
    messages = [
        Said(at_s=number * 7 * DAY + at_s, host=f"n{number}", text=text)
        for number, (_, lines) in enumerate(own)
        for at_s, text in lines
    ]
    config = settings()
    stories = past(log_of(tmp_path, messages), config)
    done = Counter[Remedy]()
    for number, (case, lines) in enumerate(own):
        name = f"n{number}"
        alone = [Said(at_s=at_s, host=name, text=text) for at_s, text in lines]
        daemon = live(tmp_path / name, config, alone)[name]
        story = stories.get(name)  # of a line that no check wants, replay knows no node
        found = (until_an_operator(story), acts(story)) if story is not None else ([], [])
        assert found == (daemon.decided, daemon.done), case.name
        done.update(daemon.done)
    assert {Remedy.RESET_GPU, Remedy.REBOOT_NODE} <= set(done)


@pytest.mark.parametrize(
    ("case", "lines"), [row for row in ROWS if row[0].settings], ids=lambda each: getattr(each, "name", "")
)
def test_a_rule_of_the_site_is_decided_alike(case: Case, lines: list[tuple[float, str]], tmp_path: Path) -> None:
    """The same with the rule in the configuration."""
    config = settings()
    own = {name: CheckConfig(settings=values) for name, values in case.settings.items()}
    config = replace(config, checks={**config.checks, **own})
    messages = [Said(at_s=at_s, host="n0", text=text) for at_s, text in lines]
    daemon = live(tmp_path / "live", config, messages)["n0"]
    story = past(log_of(tmp_path, messages), config)["n0"]
    assert (until_an_operator(story), acts(story)) == (daemon.decided, daemon.done)


# ---------------------------------------------------------------------------------------------------------------------
# two logs by which replay once misled


UNCONTAINED = "NVRM: Xid (PCI:0000:05:00): 95, pid=7, name=python, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"
FELL_OFF = "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FABRIC = "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 37 LTSSM Fault Up"
QUIETLY = "usb 1-1: new high-speed USB device"


def test_a_second_fault_during_a_repair_is_decided_about(tmp_path: Path) -> None:
    """XID 95, ten minutes later XID 79 on another GPU, then nothing: replay never says that the node is back while
    XID 79 is open, and does about it what the daemon does."""
    config = replace(settings(), replay=replace(ASSUMED, drain_s=1_200))
    messages = [
        Said(at_s=5, host="n0", text=UNCONTAINED),
        Said(at_s=605, host="n0", text=FELL_OFF),
        Said(at_s=DAY, host="n0", text=QUIETLY),
    ]
    daemon = live(tmp_path / "live", config, messages[:2], until_s=4 * 3600, rests=300)["n0"]
    story = past(log_of(tmp_path, messages), config)["n0"]
    assert (until_an_operator(story), acts(story)) == (daemon.decided, daemon.done)
    assert (acts(story), story.quality.raised) == ([Remedy.REBOOT_NODE], 1)
    assert open_when_back(story) == set()


def open_when_back(story: Story) -> set[str]:
    """What was open when the node was said to be back."""
    found = set[str]()
    for each in story.happenings:
        match each.kind:
            case "found":
                found.add(each.code)
            case "ended":
                found.discard(each.code)
            case "back":
                return found
    return set()


def test_one_fault_of_many_nodes_is_held_alike(tmp_path: Path) -> None:
    """Eighteen nodes with one fabric fault at the same time, under a policy that replaces first: neither replay nor the
    daemons take a node out, and both page for each."""
    waits = replace(ASSUMED, person_s=size(ASSUMED.person_s, 3_600))
    config = replace(settings(), policy=PolicySection(use="replace-first"), replay=waits)
    messages = [Said(at_s=5, host=f"n{number:02}", text=FABRIC) for number in range(18)]
    daemons = live(tmp_path / "live", config, messages, until_s=3600)
    stories = past(log_of(tmp_path, messages), config)
    for name, daemon in daemons.items():
        story = stories[name]
        assert (acts(story), daemon.done, story.outages) == ([], [], ())
        assert gist(until_an_operator(story)) == gist(daemon.decided)
        assert any("18 nodes within 10 min" in words for words in daemon.decided)
    assert len(stories) == len(daemons) == 18


def gist(decided: Sequence[str]) -> list[str]:
    """Decisions without how many nodes have the fault, and which: nodes see that at other moments."""
    return [re.sub(r"on \d+ nodes within 10 min \(.*?\)", "on nodes", words) for words in decided]
