"""A machine image that was made of a running node, and has its state in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.local import HOLD_FILE
from tests.support.imds import Imds, serving
from tests.support.running import OFF_THE_BUS, RunningNode

pytestmark = pytest.mark.process


@pytest.fixture
def imds() -> Iterator[Imds]:
    with serving("i-0123456789abcdef1") as server:
        yield server


def made(folder: Path, name: str, imds: Imds) -> RunningNode:
    sections = f'''[sources]
kmsg = "{folder}/{name}/kmsg"
sys_root = "{folder}"
imds_endpoint = "{imds.endpoint}"
[orchestrator]
kind = "local"
[remediation]
mode = "quarantine"
settle_s = 0.2
opt_out_file = ""
'''
    return RunningNode(folder / name, name, sections=sections, environ={"AWS_EC2_METADATA_DISABLED": "false"})


def test_another_node_of_its_image_starts_a_fresh_one(tmp_path: Path, imds: Imds) -> None:
    """What the first one has under way is not the second one's: not its remediation, not its drain."""
    first, second = made(tmp_path, "n1", imds), made(tmp_path, "n2", imds)
    try:
        first.start()
        first.kernel_says(OFF_THE_BUS.format(pci="0000:05:00"))
        first.wait(lambda: "out until it is healthy" in first.log_text(), 10.0, "drained")
        first.stop()
        shutil.copytree(first.state_dir, second.state_dir)
        (second.state_dir / HOLD_FILE).unlink(missing_ok=True)
        imds.items["instance-id"] = "i-0123456789abcdef2"
        second.start()
        assert "it is of node n1 on i-0123456789abcdef1, and this is n2 on i-0123456789abcdef2" in second.log_text()
        assert not any(event.kind == "step" for event in second.events())
    finally:
        first.stop()
        second.stop()
