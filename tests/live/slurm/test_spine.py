"""The main job on a real slurmctld: a kernel line becomes a drain, and nothing else is touched."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from healthd.sim.machine import SimulatedMachine
from healthd.sim.machine import main as ask_for_reboot
from tests.live.slurm.interposed import Interposed
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.forked_healthd import ForkedHealthd
from tests.support.running import OFF_THE_BUS, RECOVERED, UNCONTAINED, RunningNode
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.slurm, pytest.mark.process]

PCI = "0000:05:00"
QUARANTINE = """
[remediation]
mode = "quarantine"
settle_s = 0.5
opt_out_file = ""
[budget]
max_out = {max_out}
settle_s = 0.2
[policy]
same_fault_nodes = 1000
storm_nodes = 100
storm_share = "100%"
repairs_in_vain = 100
repairs_judged = 0
canary_repairs = 0
replacements_in_vain = 100
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 5
unanswered_s = 10
{more}
"""


def quarantine(*, max_out: object = 8, more: str = "") -> str:
    """The configuration of a node that may be taken out."""
    return QUARANTINE.format(max_out=f'"{max_out}"' if isinstance(max_out, str) else max_out, more=more)


class Nodes:
    """Daemons of one test, ended with it."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.running: list[RunningNode] = []

    def add(self, name: str, sections: str, *, start: bool = True) -> RunningNode:
        """A node with a daemon of its own."""
        node = RunningNode(self.folder / f"{name}-{len(self.running)}", name, sections=sections, environ=self.lab.env())
        self.running.append(node)
        if start:
            node.start()
        return node


@pytest.fixture
def nodes(slurm: SlurmLab, tmp_path: Path) -> Iterator[Nodes]:
    """A maker of daemons on the shared cluster."""
    made = Nodes(slurm, tmp_path)
    yield made
    for node in made.running:
        node.stop()


def reason(lab: SlurmLab, name: str) -> str:
    """The node's reason as slurmctld has it, without the stamp."""
    return lab.shows(name, "Reason").partition(" [")[0]


def test_one_bad_node_is_drained_and_no_other(slurm: SlurmLab, nodes: Nodes, tmp_path: Path) -> None:
    """XID 79 on one of eight nodes drains that one; its job finishes there, the next job starts elsewhere."""
    everyone = [nodes.add(name, quarantine()) for name in slurm.nodes]
    done = tmp_path / "done"
    job = slurm.run_job("n0003", f"while [ ! -e {done} ]; do sleep 0.05; done")
    everyone[2].kernel_says(OFF_THE_BUS.format(pci=PCI))
    slurm.wait(lambda: "DRAIN" in slurm.state("n0003"), 10.0, "n0003 is drained")
    assert reason(slurm, "n0003").startswith(f"healthd: gpu.xid.79 gpu:{PCI}")
    assert "|" not in slurm.shows("n0003", "Reason")
    assert slurm.wait_job(slurm.submit("", "true"), "COMPLETED")["BatchHost"] != "n0003"
    done.touch()
    assert slurm.wait_job(job, "COMPLETED")["JobState"] == "COMPLETED"
    others = {name: state for name, state in slurm.states().items() if name != "n0003"}
    assert not [name for name, state in others.items() if "DRAIN" in state]
    time.sleep(1.0)
    assert "DRAIN" in slurm.state("n0003"), "XID 79 ends by a reboot, not by time"


def test_job_noise_takes_no_node_out(slurm: SlurmLab, nodes: Nodes) -> None:
    """XIDs 13, 31, 43 and 45 alone are evidence about a job."""
    node = nodes.add("n0001", quarantine())
    for xid in (13, 31, 43, 45):
        node.kernel_says(f"NVRM: Xid (PCI:{PCI}): {xid}, pid=4242, name=python3, Ch 00000010")
    node.wait(lambda: "gpu.xid.43" in node.log_text(), 10.0, "the lines were judged")
    time.sleep(1.0)
    assert "DRAIN" not in slurm.state("n0001")
    node.wait(lambda: node.check()["verdict"] in ("ok", "warning"), 30.0, "every check has looked")


def test_observe_mode_touches_nothing_and_says_what_it_would_do(slurm: SlurmLab, nodes: Nodes) -> None:
    """In observe mode the refusal is in status and in the audit, and the node stays as it is."""
    node = nodes.add("n0001", '[orchestrator]\nkind = "slurm"\n')
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "observe mode: would take the node out" in node.log_text(), 10.0, "the refusal is recorded")
    assert "DRAIN" not in slurm.state("n0001")
    status = node.status()
    assert status is not None
    assert "observe mode" in status["decision"]


def test_a_fault_that_is_over_gives_the_node_back(slurm: SlurmLab, nodes: Nodes) -> None:
    """A drain of ours is released when the evidence that ends the fault is seen and the checks are good."""
    node = nodes.add("n0001", quarantine())
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    slurm.wait(lambda: "DRAIN" in slurm.state("n0001"), 10.0, "drained")
    node.kernel_says(RECOVERED.format(pci=PCI))
    slurm.wait_state("n0001", "IDLE")
    node.wait(lambda: "released: back in service" in node.log_text(), 10.0, "it says so")


def test_a_drain_of_somebody_else_is_left_alone(slurm: SlurmLab, nodes: Nodes) -> None:
    """A node that an admin drained is neither drained again nor released, whatever happens on it."""
    node = nodes.add("n0001", quarantine())
    slurm.update("n0001", "state=drain", "reason=admin: psu")
    stamp = slurm.shows("n0001", "Reason")
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: "already out of service" in node.log_text(), 10.0, "the refusal is recorded")
    node.kernel_says(RECOVERED.format(pci=PCI))
    time.sleep(2.0)
    assert slurm.shows("n0001", "Reason") == stamp
    assert "DRAIN" in slurm.state("n0001")


def test_a_person_who_undoes_our_drain_is_obeyed(slurm: SlurmLab, nodes: Nodes) -> None:
    """Our drain, undone by a person, is not made again until the fault has ended and come back."""
    node = nodes.add("n0001", quarantine())
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: "out until it is healthy" in node.log_text(), 10.0, "drained and waiting")
    slurm.update("n0001", "state=resume")
    node.wait(lambda: "that acknowledges the fault" in node.log_text(), 10.0, "outcome")
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    time.sleep(1.5)
    assert "DRAIN" not in slurm.state("n0001")
    node.kernel_says(RECOVERED.format(pci=PCI))
    node.wait(lambda: "gpu.xid.95 on gpu:0000:05:00 ended" in node.log_text(), 10.0, "the fault ends")
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    slurm.wait(lambda: "DRAIN" in slurm.state("n0001"), 10.0, "a fault that came back is a new one")


def test_at_the_limit_nothing_more_is_taken_out(slurm: SlurmLab, nodes: Nodes) -> None:
    """With one node out for any cause and a limit of one, a second critical node is held, and a person is paged."""
    slurm.update("n0008", "state=drain", "reason=admin: psu")
    node = nodes.add("n0001", quarantine(max_out="5%"))
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "at the fleet limit: 1 of 8 nodes are out, 1 may be" in node.log_text(), 10.0, "held")
    assert "DRAIN" not in slurm.state("n0001")
    slurm.update("n0008", "state=resume")
    slurm.wait(lambda: "DRAIN" in slurm.state("n0001"), 15.0, "taken out once there is room")


def test_a_reboot_ends_xid_79_and_resumes_the_node(slurm_lab_factory: Callable[..., SlurmLab], tmp_path: Path) -> None:
    """A drained node that rebooted is DOWN+DRAIN with our text; a new boot id explains that, and it is resumed."""
    lab = slurm_lab_factory(nodes=2, conf={"SlurmdTimeout": "6"})
    machine = SimulatedMachine(tmp_path / "machine")
    node = Nodes(lab, tmp_path).add("n0001", quarantine() + machine.sections(), start=False)
    try:
        node.start()
        node.well()
        machine.gpu_falls_off_the_bus(3)
        node.wait(lambda: "out until it is healthy" in node.log_text(), 10.0, "drained")
        node.kill()
        lab.slurmd_stop("n0001")
        lab.wait(lambda: lab.state("n0001").startswith("DOWN+DRAIN"), 60.0, "slurmctld gives the node up")
        ask_for_reboot([str(machine.folder)])
        machine.reboot()
        lab.slurmd_start("n0001")
        node.start()
        lab.wait_state("n0001", "IDLE", within_s=30.0)
        node.wait(lambda: "released: back in service" in node.log_text(), 10.0, "it says so")
    finally:
        node.stop()


Found = TypeVar("Found")
BOUNDARIES = [(call, when) for call in range(1, 24) for when in ("before", "after")]
BOUNDARIES_IN_A_SAMPLE = 6


Work = Callable[[str, int, str], Found]


def spread(name: str, work: Work[Found], slurm: SlurmLab) -> list[Found]:
    """Run one piece of work per boundary, four at a time, each lane on a node of its own. ``name``: whose sample of the
    boundaries `make test` takes (tests/support/sampling.py)."""
    taken = of_this_run().of({name: BOUNDARIES}, kind=lambda each: each[1], least=BOUNDARIES_IN_A_SAMPLE)[name]
    with ThreadPoolExecutor(max_workers=4) as pool:
        lanes = [pool.submit(lane, work, taken[number::4], slurm.nodes[number]) for number in range(4)]
        return [result for one in lanes for result in one.result()]


def lane(work: Work[Found], boundaries: list[tuple[int, str]], name: str) -> list[Found]:
    """One node's share of the boundaries, one after the other."""
    return [work(name, call, when) for call, when in boundaries]


def test_killed_at_any_boundary_it_ends_in_the_same_place(slurm: SlurmLab, nodes: Nodes) -> None:
    """kill -9 before and after any call to Slurm: started again, it drains once and releases in the end."""

    def one(name: str, call: int, when: str) -> tuple[int, str]:
        bin_dir = Interposed(nodes.folder / f"bin-{name}-{call}-{when}", "kill -9 $PPID")
        bin_dir.at(call, when)
        node = nodes.add(name, quarantine(more=f'bin_dir = "{bin_dir.folder}"'), start=False)
        slurm.forget(name)  # each kill is another node's
        process = begun(node)
        node.kernel_says(UNCONTAINED.format(pci=PCI))
        slurm.wait(lambda: "DRAIN" in slurm.state(name) or process.poll() is not None, 10.0, "drained or killed")
        if process.poll() is not None:
            restart(node)
            slurm.wait(lambda: "DRAIN" in slurm.state(name), 10.0, "drained after the restart")
        ours = slurm.shows(name, "Reason")
        assert ours.startswith("healthd: gpu.xid.95"), ours
        node.kernel_says(RECOVERED.format(pci=PCI))

        def closed() -> bool:
            return "released: back in service" in node.log_text()

        slurm.wait(lambda: closed() or process.poll() is not None, 15.0, "released or killed")
        if process.poll() is not None and node.process is process:
            restart(node)
        node.wait(closed, 15.0, f"released, {call} {when}")
        slurm.wait(bin_dir.acted, 15.0, f"the daemon to make {call} calls")
        drains = [line for line in bin_dir.calls() if "state=drain" in line]
        node.stop()
        assert len(drains) <= 2, drains
        slurm.wait_state(name, "IDLE")
        assert not has_slot(slurm, name), "its slot is given back"
        return call, when

    assert len(spread("killed", one, slurm)) >= BOUNDARIES_IN_A_SAMPLE


def has_slot(slurm: SlurmLab, name: str) -> bool:
    """Whether a reservation names this node alone."""
    return f"Nodes={name} " in slurm.scontrol("-o", "show", "reservation").stdout


def begun(node: RunningNode) -> subprocess.Popen[bytes] | ForkedHealthd:
    """The daemon's process, started once more where its first call to Slurm was its last."""
    try:
        node.start()
    except AssertionError:
        node.kill()
        node.start()
    assert node.process is not None
    return node.process


def restart(node: RunningNode) -> None:
    """Start a daemon that was killed: kill -9 was the end of the old one."""
    node.kill()
    node.start()


def test_an_admin_is_never_overruled_but_in_the_window(slurm: SlurmLab, nodes: Nodes) -> None:
    """An admin who drains at any boundary keeps the node, except between our last read and our update: Slurm has no
    compare-and-swap on a node's state, and that window is the whole of the exception."""

    def one(name: str, call: int, when: str) -> str | None:
        admin = f'scontrol update nodename={name} state=drain reason="admin: hands off"'
        bin_dir = Interposed(nodes.folder / f"admin-{name}-{call}-{when}", f"PATH=/usr/bin:/bin {admin}")
        bin_dir.at(call, when)
        slurm.forget(name)
        node = nodes.add(name, quarantine(more=f'bin_dir = "{bin_dir.folder}"'), start=False)
        begun(node)
        node.kernel_says(UNCONTAINED.format(pci=PCI))
        node.wait(lambda: f"gpu.xid.95 on gpu:{PCI} opened" in node.log_text(), 10.0, "the fault is open")
        slurm.wait(lambda: "DRAIN" in slurm.state(name), 10.0, "drained by somebody")
        node.kernel_says(RECOVERED.format(pci=PCI))
        node.wait(lambda: f"gpu.xid.95 on gpu:{PCI} ended" in node.log_text(), 10.0, "the fault is over")
        slurm.wait(bin_dir.acted, 15.0, f"the daemon to make {call} calls")
        node.wait(lambda: (node.status() or {"remediation": ...})["remediation"] is None, 15.0, "nothing is under way")
        slurm.wait(lambda: not has_slot(slurm, name), 15.0, f"its slot is given back, {call} {when}")
        kept = "DRAIN" in slurm.state(name) and reason(slurm, name) == "admin: hands off"
        calls = bin_dir.calls()
        node.stop()
        slurm.update(name, "state=idle")
        slurm.wait_state(name, "IDLE")
        return None if kept else calls[call - 1 if when == "before" else call]

    overruled_before = [following for following in spread("admin", one, slurm) if following is not None]
    assert all(following.startswith("scontrol update nodename=") for following in overruled_before), overruled_before


def test_the_window_is_there(slurm: SlurmLab, nodes: Nodes) -> None:
    """An admin who drains between our last read and our drain is overruled: what is documented can be seen."""
    name = slurm.nodes[0]
    admin = f'scontrol update nodename={name} state=drain reason="admin: hands off"'
    bin_dir = Interposed(nodes.folder / "window", f"PATH=/usr/bin:/bin {admin}")
    bin_dir.before("state=drain")
    node = nodes.add(name, quarantine(more=f'bin_dir = "{bin_dir.folder}"'))
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    slurm.wait(lambda: reason(slurm, name).startswith("healthd: gpu.xid.95"), 10.0, "drained over the admin's drain")
    node.kernel_says(RECOVERED.format(pci=PCI))
    slurm.wait_state(name, "IDLE")
