"""The tutorial of a first cluster, typed as its page has it, with a real slurmctld: a node out and in again by command,
and the limit that holds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.pages import blocks
from tests.support.running import RunningNode
from tests.support.typed import typed

pytestmark = [pytest.mark.slurm, pytest.mark.process]

PAGE = "docs/tutorial/first-cluster.md"
SECTIONS = """
[remediation]
settle_s = 0.5
[budget]
settle_s = 0.2
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 5
"""
"""The page's, with times that are shorter. The limit is the default one: one of eight nodes."""


@pytest.fixture
def nodes(slurm: SlurmLab, tmp_path: Path) -> Iterator[list[RunningNode]]:
    """Two nodes of the cluster, in observe mode."""
    made = [RunningNode(tmp_path / name, name, sections=SECTIONS, environ=slurm.env()) for name in ("n0001", "n0002")]
    for each in made:
        each.start()
    yield made
    for each in made:
        each.stop()


def lines_with(words: str) -> list[str]:
    """Of the one block in which these words stand."""
    (block,) = (each for each in blocks() if each.page == PAGE and words in each.text)
    return block.text.splitlines()


def on(node: RunningNode, lab: SlurmLab, line: str) -> subprocess.CompletedProcess[str]:
    """The result of one line on a node."""
    return typed(line, node.folder, {**lab.env(), "HEALTHD_SOCKET": str(node.socket)})


def test_a_node_is_quarantined_and_released_and_the_limit_holds(slurm: SlurmLab, nodes: list[RunningNode]) -> None:
    """Each line of sections 3 and 4, in their order but for the release, which comes last."""
    first, second = nodes
    dry, quarantine, reasons, reservations = lines_with("--dry-run")
    release, history = lines_with("healthd release")
    (one_too_many,) = lines_with("one too many")

    assert on(first, slurm, dry).returncode == 0
    assert "healthd-cluster-0" not in on(first, slurm, reservations).stdout
    assert on(first, slurm, quarantine).returncode == 0
    slurm.wait(lambda: "healthd-cluster-0" in on(first, slurm, reservations).stdout, 10.0, "the reservation")
    reason = "healthd: operator.quarantine node ["
    slurm.wait(lambda: reason in on(first, slurm, reasons).stdout, 20.0, "the drain")
    assert reason in slurm.shows(first.name, "Reason")

    refused = on(second, slurm, one_too_many)
    assert refused.returncode == 1
    assert "DRAIN" not in slurm.state(second.name)
    assert "1 of 8 nodes are out, 1 may be" in refused.stderr

    slurm.wait(lambda: on(first, slurm, release).returncode == 0, 60.0, "every check to answer, also on a busy machine")
    slurm.wait(lambda: "DRAIN" not in slurm.state(first.name), 30.0, "in service again")
    slurm.wait(lambda: "healthd-cluster-0" not in on(first, slurm, reservations).stdout, 10.0, "its place given back")
    told = "slot, drain, stay, verify, release; released"
    slurm.wait(lambda: told in on(first, slurm, history).stdout, 10.0, "the history has it")
