"""A check runs on each node once a minute: it asks the kernel for one thing once, not once for each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from healthd.agent.agent import Agent
from healthd.core.check import Check, discover
from healthd.core.node import Tree
from healthd.observe.runner import run_check
from healthd.sources.trees import FileTree
from tests.support.resting_agent import resting_agent

CHECKS = [check for check in discover().values() if check.on == "interval"]
MOST = 3
"""The mount table is read for each thing that is asked of it; no file for each of the parts."""


class CountingTree(FileTree):
    """A tree that counts how often each file is read."""

    def __init__(self, tree: Tree, counts: Counter[str]) -> None:
        assert isinstance(tree, FileTree)
        super().__init__(tree._root, is_sysfs=tree._is_sysfs)
        self._counts = counts

    def read(self, path: str) -> str:
        self._counts[path] += 1
        return super().read(path)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Of a simulated p5.48xlarge: 8 GPUs, 32 EFA devices."""
    with resting_agent(tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.mark.process
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_file_is_read_a_few_times_at_most(agent: Agent, check: Check) -> None:
    """efa.counters read the boot id once for each of 544 counters."""
    counts, machine = Counter[str](), agent.checkup.machine
    node = replace(machine, sys=CountingTree(machine.sys, counts), proc=CountingTree(machine.proc, counts))
    run_check(check, node, agent.checkup.settings_of(check.name))
    assert {path: times for path, times in counts.items() if times > MOST} == {}


def test_files_are_counted(agent: Agent) -> None:
    """Without that the law would hold for anything."""
    counts = Counter[str]()
    tree = CountingTree(agent.checkup.machine.proc, counts)
    node = replace(agent.checkup.machine, proc=tree)
    assert {node.boot_id for _ in range(MOST + 1)} == {agent.checkup.machine.boot_id}
    assert counts == {"sys/kernel/random/boot_id": MOST + 1}
