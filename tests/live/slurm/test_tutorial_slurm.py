"""The tutorial of a first cluster, typed as its page has it, with a real slurmctld: a node out and in again by command,
and the limit that holds."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s
from tests.support.pages import ROOT, blocks
from tests.support.running import RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

PAGE = "docs/tutorial/first-cluster.md"
SECTIONS = """
[remediation]
settle_s = 0.2
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


def typed(line: str, node: RunningNode, lab: SlurmLab) -> subprocess.CompletedProcess[str]:
    """One line in a shell on a node, with the healthd of this checkout."""
    program = node.folder / "healthd"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m healthd "$@"\n')
    program.chmod(0o755)
    environ = {
        **lab.env(),
        "HEALTHD_SOCKET": str(node.socket),
        "PATH": os.pathsep.join([str(node.folder), lab.env().get("PATH", os.environ["PATH"])]),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        ["sh", "-c", line], check=False, capture_output=True, text=True, env=environ, timeout=limit_s(60)
    )


def test_a_node_is_quarantined_and_released_and_the_limit_holds(slurm: SlurmLab, nodes: list[RunningNode]) -> None:
    """Each line of sections 3 and 4, in their order but for the release, which comes last."""
    first, second = nodes
    dry, quarantine, reasons, reservations = lines_with("--dry-run")
    release, history = lines_with("healthd release")
    (one_too_many,) = lines_with("one too many")

    assert typed(dry, first, slurm).returncode == 0
    assert "healthd-cluster-0" not in typed(reservations, first, slurm).stdout
    assert typed(quarantine, first, slurm).returncode == 0
    slurm.wait(lambda: "healthd-cluster-0" in typed(reservations, first, slurm).stdout, 10.0, "the reservation")
    reason = "healthd: operator.quarantine node ["
    slurm.wait(lambda: reason[:20] in typed(reasons, first, slurm).stdout, 20.0, "the drain")
    assert reason in slurm.shows(first.name, "Reason")

    refused = typed(one_too_many, second, slurm)
    assert refused.returncode == 1
    assert "DRAIN" not in slurm.state(second.name)
    assert "1 of 8 nodes are out, 1 may be" in refused.stderr

    slurm.wait(
        lambda: typed(release, first, slurm).returncode == 0, 60.0, "every check to answer, also on a busy machine"
    )
    slurm.wait(lambda: "DRAIN" not in slurm.state(first.name), 30.0, "in service again")
    slurm.wait(
        lambda: "healthd-cluster-0" not in typed(reservations, first, slurm).stdout, 10.0, "its place given back"
    )
    told = typed(history, first, slurm).stdout
    assert "slot, drain, stay, verify, release; released" in told
