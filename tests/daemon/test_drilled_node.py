"""``healthd drill`` on a simulated node with a real daemon: every kind, what it must not touch, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from healthd.agent.agent import Agent, acting_agent
from healthd.api.answers import hook_answer
from healthd.config.load import load
from healthd.core.check import discover
from healthd.core.model import Verdict
from healthd.core.node import KernelRecord
from healthd.drill.chain import KINDS, DrillRequest, DrillStage, Ended
from healthd.drill.drills import Drills
from healthd.judge.history import History
from healthd.remediation.orchestrators.local import HOLD_FILE
from healthd.sim import tree
from healthd.sim.machine import INSTANCE_TYPE, NOT_SIMULATED, SimulatedMachine
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import healthy_state, with_line
from healthd.state.store import Store
from tests.support.limits import limit_s
from tests.support.nvml_states import with_library_fault
from tests.support.ports import free_ports
from tests.support.receiver import receiving
from tests.support.running import HEEDS_SIGINT, RunningNode

pytestmark = pytest.mark.process

SECTIONS = """
[orchestrator]
kind = "local"
[provisioner]
kind = "local"
[provisioner.local]
reboot_command = ["{python}", "-m", "healthd.sim.machine", "{machine.folder}"]
[remediation]
mode = "{mode}"
settle_s = 0.2
[policy]
canary_repairs = 0
[checks."efa.devices"]
interval_s = 1
[checks."nvml.probe"]
interval_s = 1
unresponsive_after_s = {hang_s}
[checks."lustre.io"]
interval_s = 1
hung_after_s = {hang_s}
ignore = ["/fsx"]
[checks."gpu.remap"]
interval_s = 1
[checks."host.filesystems"]
interval_s = 1
"""
FOUND_AS = {
    "xid": "gpu.xid.79",
    "sxid": "nvswitch.sxid.20034",
    "efa-loss": "efa.missing",
    "lustre-hang": "lustre.io.hung",
    "nvml-hang": "nvml.unresponsive",
    "remap-pending": "gpu.remap.pending",
    "read-only": "host.filesystem.read_only",
}
OUT = {"slot", "drain", "verify", "release"}


class DrillNode(RunningNode):
    """A simulated p5.48xlarge that may be taken out. ``hang_s``: how long a silence lasts before it is a finding; a
    worker that never answers is given up after 5 s."""

    def __init__(
        self, folder: Path, *, mode: str = "quarantine", hang_s: float = 1.0, more: str = "", kmsg: str = ""
    ) -> None:
        folder.mkdir()
        self.machine, (self.port,) = SimulatedMachine(folder / "machine"), free_ports(1)
        self.share = folder / "share"  # a folder of this machine, for a mount that really takes a file
        self.share.mkdir()
        tree.mount(self.machine.root, f"95 26 0:52 / {self.share} rw - nfs4 server:/home rw")
        sections = SECTIONS.format(machine=self.machine, python=sys.executable, mode=mode, hang_s=hang_s)
        off = [name for name in NOT_SIMULATED if name != "lustre.io"]
        sections += self.machine.sections(off=off, kmsg=kmsg or self.machine.kmsg) + more
        super().__init__(folder, "p5", sections=sections, kmsg=str(self.machine.kmsg), http=f"127.0.0.1:{self.port}")

    def start(self, *, within_s: float = 20.0) -> None:
        """Start it, and wait until every check has looked: a count is learned before it can fall."""
        super().start(within_s=within_s)
        waits = ("no result", "no answer yet", "the records of")
        self.wait(
            lambda: not any(each["reason"].startswith(waits) for each in (self.status() or {})["checks"]),
            30,
            "every check has looked",
        )

    def drill(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """The exit code, the report, and what was said meanwhile."""
        answer = self.healthd("drill", *arguments, "--json", "--socket", str(self.socket))
        return answer.returncode, json.loads(answer.stdout or "{}"), answer.stderr

    def begin_drill(self, *arguments: str) -> subprocess.Popen[str]:
        """A drill in the background, once the daemon says that it runs."""
        words = ("-m", "healthd", "drill", *arguments, "--json", "--socket", str(self.socket))
        argv = [*HEEDS_SIGINT, sys.executable, *words]
        client = subprocess.Popen(
            argv, env=self._environ, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.wait(self.is_drilled, 20, "the drill runs")
        return client

    def end_drill(self, client: subprocess.Popen[str]) -> None:
        """Ctrl-C, and until the daemon has noticed that nobody waits."""
        client.send_signal(signal.SIGINT)
        client.communicate(timeout=limit_s(20))
        self.wait(lambda: not self.is_drilled(), 20, "the drill has ended")

    def is_drilled(self) -> bool:
        """Whether the status carries the banner of a drill."""
        status = self.status()
        return status is not None and any(each.startswith("DRILL ") for each in status["notices"])

    def metric(self, name: str) -> str:
        """The value of one series of the metrics page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=limit_s(10)) as answer:
            lines = answer.read().decode().splitlines()
        found: str = next(line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name)
        return found

    def is_held(self) -> bool:
        """Whether the node is out."""
        return (self.state_dir / HOLD_FILE).exists()

    def remembered(self) -> History:
        """What the node's own memory holds, from the disk."""
        store = Store(self.state_dir / "healthd.db", now=datetime.now(UTC))
        try:
            return store.history()
        finally:
            store.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrillNode]:
    """A node that is well, for drills that leave it as it was."""
    made = DrillNode(tmp_path_factory.mktemp("drill") / "node")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrillNode]:
    """The same, with a timeout of a minute for what hangs: such a drill lasts until it is ended."""
    made = DrillNode(tmp_path_factory.mktemp("drill") / "node", hang_s=60)
    made.start()
    yield made
    made.stop()


Make = Callable[..., DrillNode]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a running node for the test alone."""
    made: list[DrillNode] = []

    def a_node(**settings: Any) -> DrillNode:
        made.append(DrillNode(tmp_path / f"node{len(made)}", **settings))
        made[-1].start()
        return made[-1]

    yield a_node
    for each in made:
        each.stop()


def links(report: dict[str, Any]) -> list[str]:
    return [each["link"] for each in report["links"]]


# ---------------------------------------------------------------------------------------------------------------------
# the chain


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_runs_through_the_whole_chain_and_leaves_nothing(node: DrillNode, kind: str) -> None:
    """Seven links in their order with their times; afterwards memory, verdict and trail of the node are as before."""
    before = node.remembered()
    code, report, message = node.drill(kind)
    assert (code, report["result"], report["missing"]) == (0, "complete", None), report
    assert links(report) == list(DrillStage)
    times = [each["at_s"] for each in report["links"]]
    assert times == sorted(times)
    assert times[-1] <= report["limit_s"]
    assert FOUND_AS[kind] in report["links"][4]["message"]
    assert [(each["mode"], each["here"]) for each in report["levels"]] == [
        ("observe", False),
        ("quarantine", True),
        ("approve", False),
        ("repair", False),
    ]
    assert report["levels"][0]["steps"] == []
    assert report["real"] == []
    asks_a_person = kind == "lustre-hang"
    assert set(report["levels"][1]["steps"]) == (set() if asks_a_person else OUT)
    assert bool(report["plan"]["steps"]) is not asks_a_person
    assert report["budget"] == {"out": 0, "limit": 1, "nodes": 1}
    assert "Traceback" not in message
    after, status = node.remembered(), node.status()
    assert status is not None
    assert (after.faults, after.sightings) == ({}, {})
    assert after.learned == before.learned
    assert (status["verdict"], status["remediation"], status["diagnoses"], node.is_held()) == ("ok", None, [], False)
    assert not node.is_drilled()
    kinds = {event.kind for event in node.events()}
    assert "drill" in kinds
    assert not kinds & {"fault", "decision", "step"}


def test_what_is_said_of_a_drill_says_that_it_is_one(node: DrillNode) -> None:
    """The trail, the log, the metrics, the line of the kernel and the reason of the drain that would be made."""
    counted = node.metric('healthd_drills_total{kind="xid",result="complete"}')
    code, report, _ = node.drill("xid", "95", "--gpu", "3")
    assert code == 0
    (drain,) = [each for each in report["plan"]["steps"] if each.startswith("drain")]
    assert f"healthd: gpu.xid.95 gpu:GPU-51a1a7ed-0000-4000-8000-000000000003 [drill {report['id']}]" in drain
    assert "healthd drill, no error happened" in report["links"][0]["message"]
    told = node.healthd("history", "--socket", str(node.socket)).stdout
    mine = [line for line in told.splitlines() if report["id"] in line]
    assert len(mine) == 2
    assert all(f"drill        DRILL {report['id']}: " in line for line in mine)
    assert f'"message": "DRILL {report["id"]}: ends, complete' in node.log.read_text()
    assert float(node.metric('healthd_drills_total{kind="xid",result="complete"}')) == float(counted) + 1
    assert node.metric('healthd_drill_running{kind="xid"}') == "0.0"
    text = node.healthd("drill", "xid", "--socket", str(node.socket)).stdout
    assert text.startswith("DRILL ")
    assert "COMPLETE in " in text
    assert "* quarantine  quarantine: quarantine for gpu.xid.79" in text


def test_the_text_names_the_gpu_as_operators_do(node: DrillNode) -> None:
    """Its UUID stands in ``--json`` and nowhere in the text; the address behind the name stays."""
    done = node.healthd("drill", "xid", "79", "--gpu", "3", "--socket", str(node.socket))
    assert done.returncode == 0
    assert "GPU-51a1a7ed" not in done.stdout
    assert ": XID 79 on GPU 3 (0000:86:00)" in done.stdout.splitlines()[0]
    assert done.stdout.count("gpu.xid.79 on GPU 3") >= 5


def test_a_job_level_error_is_a_whole_chain_that_does_nothing(node: DrillNode) -> None:
    """XID 13 is found, judged and decided: to hold. That is what was to be shown, so it is no missing link."""
    code, report, _ = node.drill("xid", "13")
    assert (code, links(report)[-1], report["plan"]["steps"]) == (0, "plan", [])
    assert {each["action"] for each in report["levels"]} == {"hold"}


# ---------------------------------------------------------------------------------------------------------------------
# what is missing is named


def test_a_check_that_is_off_is_the_link_that_is_missing(make: Make) -> None:
    """The line is played, nobody looks for it, and the drill says which check and where it is switched on."""
    node = make(more='[checks."kernel.xid"]\nenabled = false\n')
    code, report, _ = node.drill("xid")
    assert (code, report["result"], report["missing"]["link"]) == (1, "incomplete", "finding")
    assert report["missing"]["why"] == 'check kernel.xid is not enabled here: [checks."kernel.xid"] enabled'
    assert links(report) == ["injected"]
    text = node.healthd("drill", "xid", "--socket", str(node.socket)).stdout
    assert "INCOMPLETE: no finding; healthd drained and repaired nothing" in text


def test_a_blind_reader_is_the_link_that_is_missing(make: Make, tmp_path: Path) -> None:
    """What the reader hands on proves nothing while it cannot read the kernel's own log."""
    node = make(kmsg=str(tmp_path / "nowhere"))
    code, report, _ = node.drill("xid", "--force")
    assert (code, report["missing"]["link"]) == (1, "read")
    assert "No such file" in report["missing"]["why"]


def test_a_check_that_looks_too_rarely_is_the_link_that_is_missing(patient: DrillNode) -> None:
    """Where the time is over before the finding, the last look says how far it was."""
    code, report, _ = patient.drill("lustre-hang", "--timeout", "2")
    assert (code, report["missing"]["link"], report["limit_s"]) == (1, "finding", 2.0)
    assert (
        f"lustre.io is unknown: {patient.share}: statvfs {patient.share} probe: no answer" in report["missing"]["why"]
    )


# ---------------------------------------------------------------------------------------------------------------------
# refusals


def test_a_node_with_a_job_is_not_drilled_unless_forced(node: DrillNode) -> None:
    """A process on a GPU is work; by --force it is drilled all the same, and the report says so."""
    busy = with_line(healthy_state(INSTANCE_TYPE), "gpu3.nvmlDeviceGetComputeRunningProcesses", "4711 1048576 0 0")
    write_state(node.machine.nvml, busy)
    try:
        code, report, _ = node.drill("xid")
        assert (code, report["result"], report["links"]) == (2, "refused", [])
        assert report["missing"]["why"].startswith("the GPUs are in use: GPU 3 by process 4711; ")
        forced, report, _ = node.drill("xid", "--force")
        assert (forced, report["result"], report["forced"]) == (0, "complete", True)
        assert "begins by --force" in node.log_text()
    finally:
        write_state(node.machine.nvml, healthy_state(INSTANCE_TYPE))


def test_unknown_is_not_idle(make: Make) -> None:
    """Where NVML does not tell who holds the GPUs, nobody knows that nobody does."""
    node = make()
    write_state(node.machine.nvml, with_library_fault(healthy_state(INSTANCE_TYPE), "driver_not_loaded"))
    code, report, _ = node.drill("xid")
    assert (code, report["result"]) == (2, "refused")
    assert report["missing"]["why"].startswith("cannot read which processes hold the GPUs: ")


def test_one_drill_at_a_time(patient: DrillNode) -> None:
    """The second is refused while the first runs, and --force changes nothing about that."""
    first = patient.begin_drill("nvml-hang")
    code, report, _ = patient.drill("xid", "--force")
    patient.end_drill(first)
    assert (code, report["missing"]["why"]) == (2, "a drill (nvml-hang) is running on this node; wait for its end")
    assert patient.drill("xid")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "the following arguments are required: KIND"),
        (("gpu-fire",), "invalid choice"),
        (("xid", "--mount", "/fsx"), "xid takes no --mount"),
        (("xid", "--gpu", "8"), "has no GPU '8'; expected one of: 0 (0000:53:00)"),
    ],
)
def test_what_cannot_be_played_is_a_mistake_of_usage(node: DrillNode, arguments: tuple[str, ...], words: str) -> None:
    """Exit 64, with what was expected; nothing is played and nothing is in the trail."""
    before = len(node.events())
    answer = node.healthd("drill", *arguments, "--socket", str(node.socket))
    assert (answer.returncode, words in answer.stderr) == (64, True), answer.stderr
    assert [event for event in node.events()[before:] if event.kind == "drill"] == []


def test_what_can_be_played_is_told_without_a_daemon(tmp_path: Path) -> None:
    """And a drill needs one: without it the command says how to start it."""
    alone = RunningNode(tmp_path / "alone", "n1")
    told = alone.healthd("drill", "--list")
    assert told.returncode == 0
    assert all(f"{kind}" in told.stdout for kind in KINDS)
    silent = alone.healthd("drill", "xid", "--socket", str(alone.socket))
    assert (silent.returncode, "no daemon answers at" in silent.stderr) == (69, True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_a_stranger_may_not_drill(node: DrillNode) -> None:
    """Everybody may read; a drill is not for everybody. The refusal is in the trail."""

    answer = node.as_nobody("drill", "xid")
    assert (answer.returncode, "uid 65534 may not act here" in answer.stderr) == (77, True), answer.stderr
    assert "refused drill: uid 65534" in node.log_text()


# ---------------------------------------------------------------------------------------------------------------------
# beside what is real


def test_a_real_fault_during_a_drill_is_acted_on(make: Make) -> None:
    """The node is drained for the real one, by its own reason, while the drill goes on; the report names it as real."""
    node = make(hang_s=6)
    client = node.begin_drill("nvml-hang")
    node.machine.gpu_falls_off_the_bus(3)
    node.wait(node.is_held, 10, "the node is out for the real fault")
    assert node.is_drilled(), "the drill still ran when the node was taken out"
    check = node.check()
    assert check["verdict"] == "critical"
    out, _ = client.communicate(timeout=limit_s(20))
    report = json.loads(out)
    assert (client.returncode, report["result"]) == (0, "complete")
    assert any(each.startswith("gpu.xid.79 on gpu:GPU-51a1a7ed") for each in report["real"])
    assert any("is open for gpu.xid.79" in each for each in report["notes"])
    status = node.status()
    assert status is not None
    assert (status["remediation"]["code"], "drill" in status["remediation"]["text"]) == ("gpu.xid.79", False)
    assert {each["code"] for each in status["diagnoses"]} & set(FOUND_AS.values()) == {"gpu.xid.79"}


def test_no_message_is_sent_for_a_drill(make: Make) -> None:
    """People are told of what is real; a real message during a drill names the drill and is about none of it."""
    with receiving() as receiver:
        node = make(more=f'[notify]\nwebhook_url = "{receiver.url}"\n', mode="observe")
        client = node.begin_drill("nvml-hang")
        node.machine.kernel_says("NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, real")
        out, _ = client.communicate(timeout=limit_s(20))
        assert json.loads(out)["result"] == "complete"
        node.wait(lambda: receiver.taken, 20, "the real fault is told")
        time.sleep(6)  # a round of the notifier after the drill
        told = json.dumps(receiver.taken)
    assert "gpu.xid.79" in told
    assert "nvml.unresponsive" not in told


def test_a_message_that_is_asked_for_says_what_it_is(make: Make, node: DrillNode) -> None:
    """With --notify one message goes out; a receiver that does not take it is exit code 1, none at all a mistake."""
    with receiving() as receiver:
        told = make(more=f'[notify]\nwebhook_url = "{receiver.url}"\n')
        code, report, _ = told.drill("xid", "--notify")
        assert (code, report["messages"]) == (0, [{"to": "webhook", "delivered": True, "why": ""}])
        (message,) = receiver.taken
        assert (message["drill"], message["news"], message["sender"]["verdict"]) == (True, [], "ok")
        assert message["sender"]["notices"][0].startswith(f"DRILL {report['id']}, no real fault and no action: XID 79")
        receiver.answers.append((503, {}))
        code, report, _ = told.drill("xid", "--notify")
        assert (code, report["result"]) == (1, "complete")
        assert "answered 503" in report["messages"][0]["why"]
    nobody = node.healthd("drill", "xid", "--notify", "--socket", str(node.socket))
    assert (nobody.returncode, "--notify has no receiver" in nobody.stderr) == (64, True)


def test_a_prolog_passes_while_a_drill_runs(patient: DrillNode) -> None:
    """As often as it is asked, no job is refused and the verdict is that of the node."""
    client = patient.begin_drill("nvml-hang")
    hooks = [patient.healthd("hook", "prolog", "--socket", str(patient.socket), SLURM_JOB_ID="17") for _ in range(3)]
    verdict, still = patient.check()["verdict"], patient.is_drilled()
    patient.end_drill(client)
    assert [hook.returncode for hook in hooks] == [0, 0, 0]
    assert (verdict, still) == ("ok", True)
    assert "prolog refused" not in patient.log_text()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """The parts of a daemon at rest, on a simulated node that may be taken out, every check having looked once."""
    machine = SimulatedMachine(tmp_path / "machine")
    machine.config.write_text(machine.config.read_text().replace('mode = "repair"', 'mode = "quarantine"'))
    checks = {name: check.settings for name, check in discover().items()}
    config = load(machine.config, checks=checks, environ={}).config
    made = acting_agent(config, source="daemon", environ={}, changed=lambda: None)
    made.checkup.judge_kernel((), None)
    verdict_once_known(made)
    yield made
    made.close()


def verdict_once_known(agent: Agent) -> Verdict:
    """The node's verdict when every check has answered: on a busy machine a worker starts more slowly than a check
    waits, and what was seen is soon old."""
    end = time.monotonic() + limit_s(30)
    while (report := agent.checkup.report(deadline_s=limit_s(20))).verdict is Verdict.UNKNOWN:
        unknown = [view.outcome.check for view in report.checks if not view.outcome.result.is_whole]
        assert time.monotonic() < end, unknown
        wait([agent.checkup.start(name) for name in unknown if agent.checkup.checks[name].on == "interval"])
    return report.verdict


def drills_of(agent: Agent, wake: Callable[[Drills], None], *, turns: bool = True) -> Drills:
    """Drills whose reader hands on what is injected at once. ``wake`` is called when the fault is open in the drill;
    ``turns``: the engine comes round after that."""
    assert agent.engine is not None
    assert agent.store is not None

    def inject(text: str) -> None:
        made.saw((KernelRecord(boot_id="b", sequence=0, time=datetime.now(UTC), text=text),))
        made.came_round()  # of a turn that began before the fault was there

    def woken() -> None:
        wake(made)
        if turns:
            made.came_round()

    made = Drills(
        checkup=agent.checkup,
        engine=agent.engine,
        orchestrator=agent.orchestrator,
        open_remediation=agent.store.open_remediation,
        inject=inject,
        wake=woken,
        say=lambda *_, **__: None,
    )
    return made


def test_at_the_very_moment_of_the_fault_the_prolog_passes(agent: Agent) -> None:
    """While a fault that would take the node out is open in the drill's memory, the hook lets the job pass, the
    verdict is ok, and a turn of the engine finds nothing to do."""
    seen: list[tuple[int, Verdict, str]] = []

    def meanwhile(_: Drills) -> None:
        hook = hook_answer(agent, Namespace(kind="prolog"), {"SLURM_JOB_ID": "17"})
        assert agent.engine is not None
        message = agent.engine.reconcile(datetime.now(UTC))
        seen.append((hook.answer.code, verdict_once_known(agent), message))

    request = DrillRequest(kind=KINDS["xid"], who="uid 0", number=79, timeout_s=limit_s(60))
    report = drills_of(agent, meanwhile).run(request, lambda _: None)
    assert (report.ended, [level.action for level in report.levels]) == (
        Ended.COMPLETE,
        ["hold", "quarantine", "repair", "repair"],
    )
    assert seen == [(0, Verdict.OK, "nothing calls for taking the node out")]
    assert agent.monitor.history.faults == {}
    assert agent.engine is not None
    assert (agent.engine.stats.decided.total(), agent.engine.stats.refused.total()) == (0, 0)


def test_an_engine_that_does_not_come_round_is_the_link_that_is_missing(agent: Agent) -> None:
    """A fault that nobody decides about is not handled, however well it was found."""
    drills = drills_of(agent, lambda _: None, turns=False)
    report = drills.run(DrillRequest(kind=KINDS["xid"], who="uid 0", number=79, timeout_s=0.5), lambda _: None)
    assert (report.ended, report.missing) == (Ended.INCOMPLETE, DrillStage.DECISION)
    assert report.why == "the engine has not reconciled since; see `healthd status`"


def test_a_time_limit_shorter_than_the_interval_is_named_as_the_reason(agent: Agent) -> None:
    """The scheduler of such a node works, and its log has no error."""
    drills = drills_of(agent, lambda _: None)
    report = drills.run(DrillRequest(kind=KINDS["nvml-hang"], who="uid 0", timeout_s=0.5), lambda _: None)
    assert (report.ended, report.missing) == (Ended.INCOMPLETE, DrillStage.READ)
    assert report.why == "nvml.probe runs every 15 s, and was not due within 0.5 s (--timeout)"


def test_a_look_under_way_is_joined(agent: Agent) -> None:
    """A check that is due again while it waits for an answer looks once, as the daemon's own does."""
    drills = drills_of(agent, lambda _: None)
    running = threading.Event()

    def is_due() -> None:
        while not drills.running:
            running.wait(0.01)
        for _ in range(3):
            drills.due("nvml.probe")

    thread = threading.Thread(target=is_due)
    thread.start()
    report = drills.run(DrillRequest(kind=KINDS["nvml-hang"], who="uid 0", timeout_s=5.5), lambda _: None)
    thread.join()
    assert (report.ended, report.missing) == (Ended.INCOMPLETE, DrillStage.FINDING)
    assert [words for _, words in report.check_runs] == [report.why.removeprefix("its last run: ")]
    assert "no answer to 'ask' within 5 s" in report.why


def test_a_daemon_that_stops_ends_a_drill_and_begins_no_other(agent: Agent) -> None:
    """The report says how far it came; a drill that is asked for afterwards is refused with the reason."""

    def stops(drills: Drills) -> None:
        drills._tell(_end("the daemon is stopping"))

    drills = drills_of(agent, stops, turns=False)
    order = DrillRequest(kind=KINDS["xid"], who="uid 0", number=79)
    report = drills.run(order, lambda _: None)
    assert (report.ended, report.missing, report.why) == (
        Ended.INTERRUPTED,
        DrillStage.DECISION,
        "the daemon is stopping",
    )
    drills.close("the daemon is stopping")
    refused = drills.run(order, lambda _: None)
    assert (refused.ended, refused.why) == (Ended.REFUSED, "the daemon is stopping")


def _end(words: str) -> Any:
    from healthd.drill.rehearsal import DrillEvent

    return DrillEvent(what="end", at=time.monotonic(), text=words)


# ---------------------------------------------------------------------------------------------------------------------
# how it ends


def test_the_banner_stands_while_it_runs_and_goes_with_it(patient: DrillNode) -> None:
    """Status, page and check say that a drill runs, what is played and that none of it is in what follows."""
    client = patient.begin_drill("nvml-hang")
    status, text = patient.status(), patient.healthd("check", "--socket", str(patient.socket)).stdout
    running = patient.metric('healthd_drill_running{kind="nvml-hang"}')
    patient.end_drill(client)
    assert status is not None
    (banner,) = [each for each in status["notices"] if each.startswith("DRILL ")]
    assert "NVML does not answer, started by uid " in banner
    assert banner.endswith("everything below is real and not part of the drill")
    assert "! DRILL " in text
    assert running == "1.0"
    assert patient.metric('healthd_drill_running{kind="nvml-hang"}') == "0.0"


def test_ctrl_c_ends_it(patient: DrillNode) -> None:
    """Who asked goes away: the daemon notices, says so, and its worker that never answers is gone."""
    client = patient.begin_drill("lustre-hang", "--timeout", "120")
    patient.end_drill(client)
    assert client.returncode == 130
    assert "ends, interrupted: its client is gone" in patient.log_text()
    assert patient.process is not None
    daemon = psutil.Process(patient.process.pid)
    patient.wait(lambda: not any(map(is_silent, daemon.children())), 10, "its worker is gone")


def is_silent(process: psutil.Process) -> bool:
    """Whether it is a worker that never answers, and lives."""
    try:
        return "healthd.probe.silence" in process.cmdline()
    except psutil.Error:
        return False


def test_a_drill_does_not_survive_a_kill(make: Make) -> None:
    """kill -9 in the middle: the daemon that comes back knows nothing of it, and neither does its verdict."""
    node = make(hang_s=60)
    client = node.begin_drill("nvml-hang")
    node.kill()
    _, output = client.communicate(timeout=limit_s(20))
    assert (client.returncode, "incomplete" in output) == (69, True)
    node.start()
    status = node.status()
    assert status is not None
    assert not node.is_drilled()
    assert (status["verdict"], status["diagnoses"], status["remediation"]) == ("ok", [], None)
    assert node.metric('healthd_drill_running{kind="nvml-hang"}') == "0.0"
    assert node.remembered().faults == {}


def test_sigterm_ends_it_at_once(make: Make) -> None:
    """A daemon that is stopped does not wait for a drill, and the trail says that it was cut short."""
    node = make(hang_s=60)
    client = node.begin_drill("nvml-hang")
    began = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - began < limit_s(3.0)
    client.communicate(timeout=limit_s(20))
    assert client.returncode in (1, 69), "the report, or a daemon that ended before its answer"
    assert ": ends, interrupted: " in node.log_text()
