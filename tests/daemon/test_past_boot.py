"""The last words of a boot: read from the journal at the start of the next one, judged once, as history.

journalctl is a stand-in that prints entries with the fields that systemd.journal-fields(7) names, newest first and at
most as many as it is asked for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.core.model import pci_address
from healthd.sim.machine import SimulatedMachine
from healthd.sim.nvml_state import PROFILES
from healthd.sim.tree import new_boot
from tests.support.running import OFF_THE_BUS, RunningNode

pytestmark = pytest.mark.process

NO_POWER = "NVRM: Xid (PCI:{pci}): 54, pid='<unknown>', name=<unknown>, GPU power cable is not connected"
PCI = tuple(pci_address(pci) for pci in PROFILES["p5.48xlarge"].pci)


class Machine:
    """A simulated machine with a daemon and a journal that outlives its boots."""

    def __init__(self, folder: Path) -> None:
        self.machine = SimulatedMachine(folder / "machine")
        self.journal, tool = folder / "journal", folder / "bin/journalctl"
        tool.parent.mkdir()
        tool.write_text(
            f'#!/bin/sh\ntest -e {self.journal} || {{ echo "No journal files were found." >&2; exit 1; }}\n'
        )
        with tool.open("a") as script:
            script.write("for each; do case $each in --lines=*) lines=${each#--lines=} ;; esac; done\n")
            script.write(f'tac {self.journal} | head -n "$lines"\n')
        tool.chmod(0o755)
        sections = f'[orchestrator]\nkind = "local"\n{self.machine.sections()}'
        environ = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
        self.node = RunningNode(folder / "node", "p5", sections=sections, kmsg=str(self.machine.kmsg), environ=environ)

    def boot_id(self) -> str:
        return (self.machine.root / "proc/sys/kernel/random/boot_id").read_text().strip()

    def journal_keeps(self, *lines: tuple[float, str], boot_id: str) -> None:
        """These kernel lines, said at these times (seconds since the epoch)."""
        with self.journal.open("a") as journal:
            for at, text in lines:
                entry = {
                    "__REALTIME_TIMESTAMP": str(int(at * 1e6)),
                    "__MONOTONIC_TIMESTAMP": "1000000",
                    "_SOURCE_MONOTONIC_TIMESTAMP": "1000000",
                    "_BOOT_ID": boot_id.replace("-", ""),
                    "_TRANSPORT": "kernel",
                    "SYSLOG_FACILITY": "0",
                    "PRIORITY": "3",
                    "MESSAGE": text,
                }
                journal.write(json.dumps(entry) + "\n")

    def goes_down(self) -> None:
        """As by a power cut: the daemon has no last words, and the kernel log is gone."""
        self.node.kill()
        new_boot(self.machine.root)
        self.machine.kmsg.write_text("")

    def trail(self) -> list[str]:
        return [event.text for event in self.node.events()]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.node.stop()


def test_last_words_are_judged_once_and_as_history(machine: Machine) -> None:
    """What a reboot ends is over at once and in the trail; what only a replacement ends is still there. Lines from
    before the last look, and of this boot, are not judged again; nor is anything at a second start."""
    node, before = machine.node, machine.boot_id()
    machine.machine.kernel_says("seen by the daemon")
    node.start()
    node.well()
    seen = time.time() - 3600
    machine.goes_down()
    machine.journal_keeps(
        (seen, OFF_THE_BUS.format(pci=PCI[0])),
        (time.time(), OFF_THE_BUS.format(pci=PCI[1])),
        (time.time(), NO_POWER.format(pci=PCI[2])),
        boot_id=before,
    )
    machine.journal_keeps((time.time(), OFF_THE_BUS.format(pci=PCI[3])), boot_id=machine.boot_id())
    node.start()
    messages = machine.trail()
    assert any(text.startswith("judged 2 kernel lines from before this boot") for text in messages)
    lost = [text for text in messages if text.startswith("gpu.xid.79")]
    assert [("opened" in text, "ended: rebooted" in text) for text in lost] == [(True, False), (False, True)]
    assert len({text.split()[2] for text in lost}) == 1
    node.wait(lambda: [d["code"] for d in node.check()["diagnoses"]] == ["gpu.xid.54"], 20, "the rest is still open")
    node.stop()
    node.start()
    assert sum("before this boot" in text for text in machine.trail()) == 1


def test_nvml_is_asked_all_the_same(machine: Machine) -> None:
    """An XID 79 of the boot before does not pause the questions to the driver that runs now."""
    node, before = machine.node, machine.boot_id()
    node.start()
    node.well()
    machine.goes_down()
    machine.journal_keeps((time.time(), OFF_THE_BUS.format(pci=PCI[0])), boot_id=before)
    node.start()
    node.well()


def test_of_a_storm_the_end_is_judged(machine: Machine) -> None:
    """A machine that went down amid a storm of lines: its very last words are judged, and the trail says that older
    ones were left out."""
    node, before = machine.node, machine.boot_id()
    node.start()
    node.well()
    machine.goes_down()
    storm = [(time.time(), OFF_THE_BUS.format(pci=PCI[1]))]
    storm += [(time.time(), "NVRM: GPU at PCI:0000:53:00: a line that says nothing")] * 25_000
    machine.journal_keeps(*storm, (time.time(), NO_POWER.format(pci=PCI[2])), boot_id=before)
    node.start()
    node.wait(lambda: [d["code"] for d in node.check()["diagnoses"]] == ["gpu.xid.54"], 20, "the last word is judged")
    (message,) = (text for text in machine.trail() if "before this boot" in text)
    assert "; older lines are not judged, because the journal has more than healthd reads at once: the first" in message
    assert not any(text.startswith("gpu.xid.79") for text in machine.trail())


def test_words_that_were_not_kept_are_a_known_gap(machine: Machine) -> None:
    """Without a journal of that boot the trail says so, and the daemon goes on."""
    node = machine.node
    node.start()
    node.well()
    machine.goes_down()
    node.start()
    why = "cannot read the kernel log from before this boot: journalctl: exit status 1: No journal files were found."
    assert any(text.endswith(why) for text in machine.trail())
    node.well()
