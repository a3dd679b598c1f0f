"""Sixty-four real slurmd, a daemon each, and all of them fail within a second: the budget holds, and so does sense."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import Struct

from healthd.agent.wiring import FLEET, fleet_of
from healthd.core.errors import BackendError
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.state.store import Store
from tests.live.slurm.slurm_lab import SlurmLab, skip_reason
from tests.support.limits import limit_s
from tests.support.running import RECOVERED, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

NODES, LIMIT, SAME_FAULT_NODES, SETTLE_S = 64, 8, 6, 6.0
# XIDs that a GPU reset ends and that do not pause NVML (checks/data/xid.csv): at most five nodes have the same.
XIDS = (46, 48, 62, 64, 95, 109, 110, 136, 140, 143, 155, 158, 171, 172)
PCI = "0000:05:00"
FOREIGN, FOREIGN_REASON = "n0064", "admin: psu"
SECTIONS = f"""
[remediation]
mode = "quarantine"
settle_s = 0.5
opt_out_file = ""
[budget]
max_out = {LIMIT}
settle_s = {SETTLE_S}
[policy]
same_fault_nodes = {SAME_FAULT_NODES}
[orchestrator]
kind = "slurm"
"""


class Sight(Struct, frozen=True, kw_only=True):
    """What slurmctld showed at one moment."""

    at_s: float
    drained: frozenset[str]
    held: frozenset[str]

    @property
    def out(self) -> int:
        return len(self.drained | self.held)


class Watch:
    """Reads slurmctld from outside, four times a second, for as long as it is entered."""

    def __init__(self, lab: SlurmLab) -> None:
        self._slurm = SlurmOrchestrator(node=lab.nodes[0], conf=str(lab.conf), timeout_s=10.0)
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._look)
        self.sights: list[Sight] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def now(self) -> Sight:
        return self.sights[-1] if self.sights else Sight(at_s=0.0, drained=frozenset(), held=frozenset())

    def figures(self) -> str:
        over = [sight.at_s for sight in self.sights if sight.out > LIMIT]
        most = max(sight.out for sight in self.sights)
        lasted_s = max(over) - min(over) if over else 0.0
        drained = max(len(sight.drained) for sight in self.sights)
        return f"settled at most {drained}, out or fenced at most {most}, over the limit for {lasted_s:.1f} s"

    def _look(self) -> None:
        while not self._stop.wait(0.25):
            try:
                snapshot, slots = self._slurm.snapshot(), self._slurm.slots()
            except BackendError:  # the next look will do
                continue
            held = frozenset(slot.node for slot in slots)
            self.sights.append(Sight(at_s=time.monotonic(), drained=snapshot.out, held=held))


class Fleet:
    """A lab and its daemons."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.lab = lab
        made = (RunningNode(folder / name, name, sections=SECTIONS, environ=lab.env()) for name in lab.nodes)
        self.nodes = {node.name: node for node in made}

    def start(self, names: list[str]) -> None:
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda name: self.nodes[name].start(within_s=60.0), names))

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def recover(self, names: list[str] | frozenset[str]) -> None:
        for name in names:
            self.nodes[name].kernel_says(RECOVERED.format(pci=PCI))

    def shows_findings(self) -> bool:
        """The record stays with its history when a remediation ends; the finding that it was about goes."""
        lines = self.lab.scontrol("-o", "show", "nodes").stdout.splitlines()
        return any(" code=" in line.partition(" Comment=healthd")[2].partition(" Extra=")[0] for line in lines)

    def ends_clean(self, watch: Watch, *, but: frozenset[str] = frozenset()) -> None:
        """Nobody is out but by somebody else's hand, no slot is held, no finding is shown."""
        self.recover(frozenset(self.nodes))
        clean = lambda: watch.now.drained == but and not watch.now.held and not self.shows_findings()  # noqa: E731
        self.lab.wait(clean, 60, "nothing of healthd's is left")


def knows_the_fleet(node: RunningNode) -> bool:
    """Whether a daemon has kept how large the fleet is, for the next one."""
    store = Store(node.state_dir / "healthd.db", now=datetime.now(UTC))
    try:
        known, _ = fleet_of(store.fact(FLEET), datetime.now(UTC))
    finally:
        store.close()
    return known is not None and known.total == NODES


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Sixty-four nodes at rest."""
    if reason := skip_reason():
        pytest.skip(reason)
    with SlurmLab(nodes=NODES) as lab:
        made = Fleet(lab, tmp_path_factory.mktemp("storm"))
        began_s = time.monotonic()
        try:
            made.start(list(lab.nodes))
            sys.stdout.write(f"{NODES} daemons answer after {time.monotonic() - began_s:.1f} s\n")
            # Each reads it once within its first minute, and not while a fault is open.
            lab.wait(lambda: any(map(knows_the_fleet, made.nodes.values())), 90.0, "a daemon to have read the fleet")
            yield made
        finally:
            made.stop()


def test_the_budget_holds_when_all_fail_at_once_and_agents_are_killed(
    fleet: Fleet, record_property: Callable[[str, object], None]
) -> None:
    """Different faults everywhere, kill -9 at random: never more out than may be; what is freed is taken by the next;
    an administrator's drain counts and is not touched; in the end nothing is left.
    """
    lab, dice = fleet.lab, random.Random(7)  # noqa: S311  no secret
    lab.update(FOREIGN, "state=drain", f"reason={FOREIGN_REASON}")
    before = lab.shows(FOREIGN, "Reason")
    with Watch(lab) as watch:
        began_s = time.monotonic()
        for number, node in enumerate(fleet.nodes.values()):
            node.kernel_says(f"NVRM: Xid (PCI:{PCI}): {XIDS[number % len(XIDS)]}, pid=7062, name=python3")
        assert time.monotonic() - began_s < limit_s(1.0)
        for _ in range(3):
            time.sleep(dice.uniform(0.5, 2.0))
            killed = dice.sample([name for name in lab.nodes if name != FOREIGN], 4)
            for name in [*killed, *dice.sample(sorted(watch.now.held - set(killed)), min(2, len(watch.now.held)))]:
                fleet.nodes[name].kill()
            fleet.start([name for name, node in fleet.nodes.items() if node.process is None])
        lab.wait(lambda: len(watch.now.drained) == LIMIT, 60, "as many are drained as may be")
        drained_s = time.monotonic() - began_s
        settled = lambda: watch.now.drained == {FOREIGN} | watch.now.held  # noqa: E731
        lab.wait(settled, 30, "each drained node holds a slot, and no other does")
        ours = watch.now.drained - {FOREIGN}
        back = frozenset(sorted(ours)[:2])
        fleet.recover(back)
        two_more = lambda: len(watch.now.drained) == LIMIT and not back & watch.now.drained  # noqa: E731
        lab.wait(two_more, 60, "two are back and two others are out")
        fleet.ends_clean(watch, but=frozenset({FOREIGN}))
    assert max(len(sight.drained) for sight in watch.sights) <= LIMIT
    assert lab.shows(FOREIGN, "Reason") == before
    lab.update(FOREIGN, "state=resume")
    message = f"all {LIMIT} out after {drained_s:.1f} s; {watch.figures()}"
    sys.stdout.write(f"{message}\n")
    record_property("storm", message)


def paging(fleet: Fleet) -> list[str]:
    """The nodes that tell that they are one of many."""
    return [name for name, node in fleet.nodes.items() if "many at once is not a node's fault" in node.log_text()]


def test_the_same_finding_everywhere_takes_next_to_nobody_out(
    fleet: Fleet, record_property: Callable[[str, object], None]
) -> None:
    """Rule 8: whoever holds a slot shows its finding, and all of them step back before the drain, and page."""
    lab = fleet.lab
    lab.wait(lambda: all(state == "IDLE" for state in lab.states().values()), 30, "all nodes are back")
    with Watch(lab) as watch:
        for node in fleet.nodes.values():
            node.kernel_says(f"NVRM: Xid (PCI:{PCI}): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes")
        lab.wait(lambda: len(watch.now.held) == LIMIT, 60, "all slots are taken")
        lab.wait(lambda: len(paging(fleet)) >= LIMIT, 60, "those that held a slot page")
        time.sleep(2 * SETTLE_S)  # for one that would be drained
        drained = max(len(sight.drained) for sight in watch.sights)
        message = f"{drained} of {NODES} drained for one finding, {len(paging(fleet))} paged for it; {watch.figures()}"
        sys.stdout.write(f"{message}\n")
        record_property("same finding", message)
        assert drained <= SAME_FAULT_NODES - 1, "as many as may have it and be believed"
        fleet.ends_clean(watch)
    assert any(map(knows_the_fleet, fleet.nodes.values())), "it is read in quiet, and kept"
