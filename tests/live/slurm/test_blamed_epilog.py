"""Whose fault the end of a job was, told to a real slurmctld: by the Epilog (25.11 and newer), and as AdminComment."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_hooks import OUT_OF_TIME, Hooked, run_script, wrapped_hooks
from tests.live.slurm.test_spine import PCI, quarantine, reason
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, Running, RunningNode, command_line

pytestmark = [pytest.mark.slurm, pytest.mark.process]

EXPEDITES = "expedited requeue"
# A job that ends when it is told to, and runs on after a requeue.
JOB = (
    '[ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && exec sleep 600; '
    "touch {flag}.runs; while [ ! -e {flag} ]; do sleep 0.02; done; exit {code}"
)
ROUNDS = 5
TRIES = 5


@pytest.fixture(scope="module")
def hooked_lab(
    slurm_lab_factory: Callable[..., SlurmLab], tmp_path_factory: pytest.TempPathFactory
) -> tuple[SlurmLab, Path]:
    """A cluster whose slurmctld asks its Epilogs, where it can; the wrappers are those of test_hooks."""
    conf, hooks = wrapped_hooks(tmp_path_factory.mktemp("blaming"), "Prolog", "Epilog")
    del conf["HealthCheckProgram"], conf["HealthCheckInterval"], conf["HealthCheckNodeState"]
    conf["SlurmctldParameters"] = "enable_expedited_requeue"
    return slurm_lab_factory(nodes=5, conf=conf), hooks


@pytest.fixture
def hooked(hooked_lab: tuple[SlurmLab, Path], tmp_path: Path) -> Iterator[Hooked]:
    """The cluster, clean, and no healthd on it yet."""
    lab, hooks = hooked_lab
    lab.reset()
    made = Hooked(lab, tmp_path, hooks)
    yield made
    lab.cancel()
    made.end()


@pytest.fixture
def expediting(hooked: Hooked) -> Hooked:
    """The same, where Slurm knows expedited requeue."""
    if not hooked.lab.has(EXPEDITES):
        pytest.skip(f"Slurm {hooked.lab.version} has no expedited requeue (25.11 and newer)")
    return hooked


class ToldJob(Struct, kw_only=True):
    """A job of two nodes that ends when it is told to."""

    lab: SlurmLab
    id: str
    flag: Path
    nodes: tuple[str, ...]

    def end(self) -> float:
        """Have it end. When that was, monotonic."""
        self.flag.touch()
        return time.monotonic()

    def shows(self) -> dict[str, str]:
        """The job as slurmctld shows it."""
        return self.lab.job(self.id)

    @property
    def comment(self) -> str:
        """Its AdminComment; "" for none."""
        lines = self.lab.scontrol("show", "job", self.id).stdout.splitlines()
        found = [line.strip().removeprefix("AdminComment=") for line in lines if "AdminComment=" in line]
        return found[0] if found else ""

    def wait_again(self) -> None:
        """Wait until it runs again."""
        self.lab.wait(
            lambda: self.shows()["JobState"] == "RUNNING" and self.shows()["Restarts"] == "1",
            30,
            f"job {self.id} to run again",
        )


def two_nodes(hooked: Hooked, *options: str, code: int = 3, name: str = "end") -> ToldJob:
    """A job on n0001 and n0002 that runs."""
    flag = hooked.folder / name
    job = hooked.lab.submit("", JOB.format(flag=flag, code=code), "-N2", "--ntasks=2", "--exclusive", *options)
    fields = hooked.lab.wait_job(job, "RUNNING")
    assert fields["NodeList"] == "n[0001-0002]"
    hooked.lab.wait(Path(f"{flag}.runs").exists, 20, "the job is past its prologs")
    return ToldJob(lab=hooked.lab, id=job, flag=flag, nodes=("n0001", "n0002"))


def epilog_of(hooked: Hooked, name: str, text: str) -> None:
    """Shell text in the place of a node's Epilog; its prolog passes."""
    (hooked.hooks / name).mkdir(exist_ok=True)
    hooked.before_each_hook(name, f"case $0 in *epilog.sh) {text};; *) exit 0;; esac")


@pytest.fixture
def own_epilogs(expediting: Hooked) -> Iterator[Hooked]:
    """Epilogs that the test writes; they are gone after it."""
    yield expediting
    for folder in expediting.hooks.iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


# ---------------------------------------------------------------------------------------------------------------------
# what slurmctld does with the exit code of an Epilog: the contract that healthd relies on


def test_without_a_failed_epilog_an_expedited_job_is_held(own_epilogs: Hooked) -> None:
    """Row 1: both epilogs exit 0, and Slurm takes the job's failure for its own."""
    job = two_nodes(own_epilogs, "--requeue=expedite")
    job.end()
    own_epilogs.lab.wait(lambda: job.shows()["Reason"] == "job_requeued_in_held_state", 30, "held")
    assert job.shows()["JobState"] in ("REQUEUE_HOLD", "PENDING")


def test_a_failed_epilog_runs_the_job_again_elsewhere(own_epilogs: Hooked) -> None:
    """Row 2: the node of the epilog is drained as "Epilog error", and the job runs on its good node and a spare."""
    epilog_of(own_epilogs, "n0001", "exit 1")
    job = two_nodes(own_epilogs, "--requeue=expedite")
    job.end()
    job.wait_again()
    assert job.shows()["NodeList"] == "n[0002-0003]"
    assert reason(own_epilogs.lab, "n0001") == "Epilog error"


def test_a_drain_of_before_keeps_its_reason(own_epilogs: Hooked) -> None:
    """Row 3: behind a drain and a reservation the same, and reason, user and stamp stay."""
    lab = own_epilogs.lab
    epilog_of(own_epilogs, "n0001", "exit 1")
    job = two_nodes(own_epilogs, "--requeue=expedite")
    lab.update("n0001", "state=drain", "reason=healthd: gpu.xid.79 gpu:0000:05:00 [0a1b2c3d]")
    slot = ("reservationname=healthd-cluster-0", "nodes=n0001", "starttime=now", "duration=UNLIMITED", "users=root")
    assert lab.scontrol("create", "reservation", *slot, "flags=MAINT,IGNORE_JOBS,STATIC_ALLOC").returncode == 0
    before = lab.shows("n0001", "Reason")
    job.end()
    job.wait_again()
    assert lab.shows("n0001", "Reason") == before


def test_a_completed_job_is_not_run_again(own_epilogs: Hooked) -> None:
    """Row 4: exit 0 and a failed epilog: the node is drained, the job is completed."""
    epilog_of(own_epilogs, "n0001", "exit 1")
    job = two_nodes(own_epilogs, "--requeue=expedite", code=0)
    job.end()
    own_epilogs.lab.wait(lambda: job.shows()["JobState"] == "COMPLETED", 30, "completed")
    own_epilogs.lab.wait(lambda: reason(own_epilogs.lab, "n0001") == "Epilog error", 30, "drained")


def test_a_job_without_expedite_is_not_run_again(own_epilogs: Hooked) -> None:
    """Row 5: plain --requeue and a failed epilog: the node is drained, the job has failed."""
    epilog_of(own_epilogs, "n0001", "exit 1")
    job = two_nodes(own_epilogs, "--requeue")
    job.end()
    own_epilogs.lab.wait(lambda: job.shows()["JobState"] == "FAILED", 30, "failed")
    own_epilogs.lab.wait(lambda: reason(own_epilogs.lab, "n0001") == "Epilog error", 30, "drained")


def test_a_node_set_down_expedites_its_job(own_epilogs: Hooked) -> None:
    """Row 6: no epilog is asked, and the job runs again at once."""
    job = two_nodes(own_epilogs, "--requeue=expedite")
    own_epilogs.lab.update("n0001", "state=down", "reason=dead psu")
    job.wait_again()
    assert "n0001" not in job.shows()["NodeList"]


# ---------------------------------------------------------------------------------------------------------------------
# healthd's Epilog


def judged_by_all(node: RunningNode) -> None:
    """Every check of the node has run: before that the end of a job is unknown."""
    node.wait(lambda: node.check()["verdict"] in ("ok", "warning"), 60, "no check is unknown")


def gpu_lost(hooked: Hooked, node: RunningNode) -> None:
    """XID 79 on this node, and our drain."""
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    hooked.lab.wait(lambda: "DRAIN" in hooked.lab.state(node.name), 20, f"{node.name} drained")


def test_a_lost_gpu_moves_the_job_to_a_spare(
    expediting: Hooked, record_property: Callable[[str, object], None]
) -> None:
    """XID 79 in a job of two nodes: drained with our reason, running on a spare, and the AdminComment says so."""
    again_s, said_s = [], []
    lab = expediting.lab
    for number in range(ROUNDS):
        hooked = Hooked(lab, expediting.folder / str(number), expediting.hooks)
        hooked.folder.mkdir()
        node = hooked.node("n0001", quarantine())
        job = two_nodes(hooked, "--requeue=expedite")
        gpu_lost(hooked, node)
        ended_s = job.end()
        job.wait_again()
        again_s.append(time.monotonic() - ended_s)
        lab.wait(lambda: "requeued" in job.comment, 20, "the AdminComment")  # noqa: B023
        said_s.append(time.monotonic() - ended_s)
        assert job.shows()["NodeList"] == "n[0002-0003]"
        assert reason(lab, "n0001").startswith(f"healthd: gpu.xid.79 gpu:{PCI}")
        assert f"healthd: node n0001 gpu:{PCI} XID 79 " in job.comment
        assert job.comment.endswith("; drained; requeued")
        assert hooked.calls("n0001", "epilog")[0][0] == 1
        assert f"epilog of job {job.id} blames this node to Slurm" in node.log_text()
        lab.cancel()
        hooked.end()
        lab.reset()
    figures = (
        f"after the job's end: running again p50 {statistics.median(again_s):.2f} s, max {max(again_s):.2f} s; "
        f"AdminComment p50 {statistics.median(said_s):.2f} s, max {max(said_s):.2f} s ({ROUNDS} rounds)"
    )
    record_property("blamed_epilog", figures)
    sys.stderr.write(f"\n{figures}\n")
    assert statistics.median(again_s) <= limit_s(2)


def test_a_job_that_fails_by_itself_is_held(expediting: Hooked) -> None:
    """No finding on either node: the epilogs exit 0, Slurm holds the job, and its comment says why."""
    for name in ("n0001", "n0002"):
        judged_by_all(expediting.node(name, quarantine()))
    job = two_nodes(expediting, "--requeue=expedite", code=7)
    job.end()
    expediting.lab.wait(lambda: job.shows()["Reason"] == "job_requeued_in_held_state", 30, "held")
    assert [expediting.calls(name, "epilog")[0][0] for name in job.nodes] == [0, 0]
    expediting.lab.wait(lambda: job.comment != "", 60, "the AdminComment")
    assert job.comment == "healthd: no node fault seen on 2 nodes; held"


def test_an_unknown_node_blames_nobody(expediting: Hooked) -> None:
    """A node whose kernel log cannot be read exits 0, and the comment does not say that it was fine."""
    expediting.node("n0001", '[sources]\nkmsg = "/nowhere/kmsg"\n' + quarantine())
    judged_by_all(expediting.node("n0002", quarantine()))
    job = two_nodes(expediting, "--requeue=expedite")
    job.end()
    expediting.lab.wait(lambda: job.shows()["Reason"] == "job_requeued_in_held_state", 30, "held")
    assert expediting.calls("n0001", "epilog")[0][0] == 0
    expediting.lab.wait(lambda: job.comment != "", 60, "the AdminComment")
    assert job.comment == "healthd: not known whose fault: n0001 of 2 nodes could not tell; held"
    assert "DRAIN" not in expediting.lab.state("n0001")


def test_past_the_limit_of_an_hour_the_epilog_passes(expediting: Hooked) -> None:
    """max_blamed_per_hour = 1: another node that healthd drained before uses it up, and the audit says so."""
    lab = expediting.lab
    node = expediting.node("n0001", quarantine(more="max_blamed_per_hour = 1"))
    job = two_nodes(expediting, "--requeue=expedite")
    lab.update("n0005", "state=drain", "reason=healthd: gpu.xid.48 gpu:0000:06:00 [0a1b2c3d]")
    time.sleep(1.1)  # stamps have whole seconds
    gpu_lost(expediting, node)
    job.end()
    lab.wait(lambda: job.shows()["Reason"] == "job_requeued_in_held_state", 30, "held")
    assert expediting.calls("n0001", "epilog")[0][0] == 0
    told = "healthd drained 1 other nodes within the hour; max_blamed_per_hour is 1"
    node.wait(lambda: told in node.log_text(), 10, "the audit says so")
    lab.wait(lambda: job.comment.endswith("; drained; held"), 20, "the verdict is in the AdminComment all the same")


@pytest.mark.parametrize("setting", ["observe", "off"])
def test_without_permission_the_epilog_passes(expediting: Hooked, setting: str) -> None:
    """In observe mode, and with blame_in_epilog = false, a node that is to blame exits 0."""
    more = quarantine(more="blame_in_epilog = false")
    node = expediting.node("n0001", '[orchestrator]\nkind = "slurm"\n' if setting == "observe" else more)
    job = two_nodes(expediting, "--requeue=expedite")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: node.check()["verdict"] == "critical", 10, "the fault is open")
    job.end()
    expediting.lab.wait(lambda: job.shows()["Reason"] == "job_requeued_in_held_state", 30, "held")
    assert expediting.calls("n0001", "epilog")[0][0] == 0
    told = f"epilog of job {job.id} does not blame this node to Slurm"
    node.wait(lambda: told in node.log_text(), 10, "the audit says so")


def test_a_comment_of_others_stays(expediting: Hooked) -> None:
    """What an administrator wrote into the AdminComment stands before healthd's sentence."""
    node = expediting.node("n0001", quarantine())
    judged_by_all(node)
    flag = expediting.folder / "end"
    job = expediting.lab.run_job("n0001", JOB.format(flag=flag, code=3), "--requeue=expedite")
    expediting.lab.scontrol("update", f"jobid={job}", "admincomment=ticket 12: by hand")
    told = ToldJob(lab=expediting.lab, id=job, flag=flag, nodes=(node.name,))
    told.end()
    expediting.lab.wait(lambda: "healthd" in told.comment, 30, "the sentence")
    assert told.comment == "ticket 12: by hand; healthd: no node fault seen on 1 node; held"


def test_a_job_that_ends_keeps_no_notice_from_its_neighbour(hooked: Hooked) -> None:
    """Of two jobs on a node that is drained one is in its Epilog: slurmctld takes no comment of it, and one of the
    other."""
    node = hooked.node("n0001", quarantine())
    flag, passed = hooked.folder / "end", hooked.folder / "passed"
    ends = hooked.lab.run_job("n0001", JOB.format(flag=flag, code=3))
    goes_on = hooked.folder / "never"
    job = hooked.lab.run_job("n0001", JOB.format(flag=goes_on, code=0))
    other = ToldJob(lab=hooked.lab, id=job, flag=goes_on, nodes=(node.name,))
    for each in (flag, goes_on):
        hooked.lab.wait(Path(f"{each}.runs").exists, 20, "both jobs are past their prologs")
    epilog_of(hooked, "n0001", f"while ! test -e {passed}; do sleep 0.1; done")
    try:
        flag.touch()
        hooked.lab.wait(lambda: hooked.lab.job(ends)["JobState"] == "COMPLETING", 30, "it ends")
        gpu_lost(hooked, node)
        hooked.lab.wait(lambda: "fault on node n0001 of your job" in other.comment, 30, "the AdminComment")
        missing = f"job {ends}: no notice of the drain: "
        node.wait(lambda: missing in node.log.read_text(), 10.0, "the other's is said to be missing")
        assert "Job has already finished" in node.log.read_text()
    finally:
        passed.touch()
        (hooked.hooks / "n0001/first").unlink()


def test_on_every_slurm_nothing_is_refused_and_nothing_breaks(hooked: Hooked) -> None:
    """XID 79 in a job: on every version the drain stays ours, comment and audit trail name the node."""
    node = hooked.node("n0001", quarantine(more="" if hooked.lab.has(EXPEDITES) else "blame_in_epilog = true"))
    job = two_nodes(hooked)
    gpu_lost(hooked, node)
    before = hooked.lab.shows("n0001", "Reason")
    hooked.lab.wait(lambda: "fault on node n0001 of your job" in job.comment, 30, "the AdminComment")
    job.end()
    hooked.lab.wait(lambda: job.shows()["JobState"] == "FAILED", 30, "failed")
    node.wait(lambda: f"job {job.id} of root ended (exit code 3): node: XID 79" in node.log_text(), 30, "audit")
    assert hooked.lab.shows("n0001", "Reason") == before
    assert "DRAIN" not in hooked.lab.state("n0002")


# ---------------------------------------------------------------------------------------------------------------------
# the head node


class Head(Running):
    """A controller on the head node, the notices for owners that it sent, and the command line there."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.notices, self.config, self.log = folder / "notices", folder / "head.toml", folder / "head.log"
        self._without_slurm = folder / "without-slurm.toml"
        state = f'[controller]\nstate_dir = "{folder / "controller"}"\nhttp = ""\n'
        command = f'[notify]\nowner_command = ["/usr/bin/tee", "-a", "{self.notices}"]\n'
        slurm = f'[orchestrator]\nkind = "slurm"\n[orchestrator.slurm]\nconf = "{lab.conf}"\n'
        platform = '[provisioner]\nkind = "ec2"\n[provisioner.aws]\nregion = "us-east-1"\n'  # no request is made of it
        self.config.write_text(state + command + slurm + platform)
        self._without_slurm.write_text(f'{state}[orchestrator]\nkind = "local"\n')
        self.begin("controller", self.config, self.log, dict(os.environ))

    def told(self) -> dict[str, dict[str, str]]:
        """The notices, by job."""
        lines = self.notices.read_text().splitlines() if self.notices.exists() else []
        assert len(lines) == len({json.loads(line)["job"] for line in lines}), "each owner is told once"
        return {json.loads(line)["job"]: json.loads(line) for line in lines}

    def job(self, job: str, *, forgotten: bool = False) -> dict[str, Any]:
        """``healthd job``; ``forgotten``: as when slurmctld does not know the job any more."""
        config = self._without_slurm if forgotten else self.config
        done = command_line(["job", job, "--json", "--config", str(config)], os.environ, limit_s(60))
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def test_a_head_node_keeps_the_verdict_that_slurmctld_refuses(hooked: Hooked) -> None:
    """Two plain jobs that fail, without accounting: one by its node, one by itself. The ledger has both verdicts, also
    when slurmctld has forgotten the jobs, and each owner is told once."""
    nodes = [hooked.node(name, quarantine()) for name in ("n0001", "n0002", "n0003")]
    for node in nodes:
        judged_by_all(node)
    head = Head(hooked.lab, hooked.folder)
    try:
        job = two_nodes(hooked)
        flag = hooked.folder / "own"
        own = ToldJob(
            lab=hooked.lab,
            id=hooked.lab.run_job("n0003", JOB.format(flag=flag, code=7)),
            flag=flag,
            nodes=("n0003",),
        )
        gpu_lost(hooked, nodes[0])
        job.end()
        own.end()
        hooked.lab.wait(lambda: {job.id, own.id} <= head.told().keys(), 150, "both owners are told")
        told = head.told()
        assert told[job.id]["text"].startswith(f"your job {job.id} was ended by a fault of node n0001 (")
        assert (told[job.id]["verdict"], told[own.id]["verdict"], told[own.id]["user"]) == ("node", "job", "root")
        for forgotten in (False, True):
            found = {each: head.job(each, forgotten=forgotten) for each in (job.id, own.id)}
            assert [found[each]["verdict"] for each in (job.id, own.id)] == ["node", "job"]
            (end,) = found[job.id]["ledger"]
            assert (end["state"], end["nodes"], end["code"]) == ("FAILED", "n[0001-0002]", "gpu.xid.79")
            assert end["sentence"].startswith("node n0001 ")
            (end,) = found[own.id]["ledger"]
            assert (end["sentence"], end["ending"]) == ("no node fault seen on 1 node", "exit code 7")
    except AssertionError:
        sys.stderr.write(head.log.read_text()[-3000:])
        raise
    finally:
        head.stop()


# ---------------------------------------------------------------------------------------------------------------------
# a hook that is killed


@pytest.mark.parametrize(
    "trouble",
    [
        "exit 1",  # a Python that ends with a traceback
        "echo 'blame healthd: no'; exit 0",  # the words without the code
        "echo 'blame nobody'; exit 1",  # the code without the words
        "kill -9 $$",
        "exec sleep 60",
        "exit 127",
    ],
)
def test_our_own_trouble_blames_no_node(hooked: Hooked, trouble: str, tmp_path: Path) -> None:
    """Whatever ends healthd's hook, without its words and its code together the Epilog exits 0."""
    fake = tmp_path / "healthd"
    fake.write_text(f"#!/bin/sh\n{trouble}\n")
    fake.chmod(0o755)
    code, out, _, _ = run_script("epilog", healthd=str(fake), lab=hooked.lab)
    assert (code, out) == (0, "")


def test_the_words_and_the_code_together_blame_the_node(hooked: Hooked, tmp_path: Path) -> None:
    """The protocol: exit 1, and a line that begins with "blame healthd: "."""
    fake = tmp_path / "healthd"
    fake.write_text("#!/bin/sh\necho 'blame healthd: node n0001 is to blame'\nexit 1\n")
    fake.chmod(0o755)
    code, out, _, _ = run_script("epilog", healthd=str(fake), lab=hooked.lab)
    assert (code, out) == (1, "blame healthd: node n0001 is to blame\n")


def test_a_hook_that_is_killed_is_asked_again(hooked: Hooked) -> None:
    """kill -9 of the hook once its daemon has judged: slurmd gets the answer of the next one. The
    drain stays ours, and the audit trail has one verdict. What else may be killed where: test_killed_hooks.py."""
    node = hooked.node("n0001", quarantine(more="blame_in_epilog = true"))
    job = two_nodes(hooked)
    gpu_lost(hooked, node)
    before = hooked.lab.shows("n0001", "Reason")
    healthd = hooked.hooks / "n0001/healthd"
    asks = healthd.read_text().replace(" exec ", " ")
    killed = f"[ -e {hooked.folder}/killed ] && exit $code\n: >{hooked.folder}/killed\nkill -9 $$\n"
    healthd.write_text(f"{asks}code=$?\n{killed}")
    job.end()
    hooked.lab.wait(lambda: bool(hooked.calls("n0001", "epilog")), 30, "the epilog")
    assert hooked.calls("n0001", "epilog")[0][0] == 1
    assert hooked.lab.shows("n0001", "Reason") == before
    told = f"job {job.id} of root ended (exit code 3): node: XID 79"
    node.wait(lambda: told in node.log_text(), 10, "the audit")
    assert node.log_text().count(told) == 1


def test_a_daemon_killed_after_its_answer_still_tells(expediting: Hooked) -> None:
    """kill -9 of the daemon right after the epilog's answer: the next one writes the sentence, once."""
    node = expediting.node("n0001", quarantine())
    job = two_nodes(expediting, "--requeue=expedite")
    gpu_lost(expediting, node)
    assert node.process is not None
    pid = node.process.pid
    # The wrapper kills the daemon as soon as the shipped script has its answer, before anything else can be written.
    healthd = expediting.hooks / "n0001/healthd"
    healthd.write_text(healthd.read_text().replace(" exec ", " ") + f"code=$?\nkill -9 {pid}\nexit $code\n")
    job.end()
    job.wait_again()
    assert expediting.calls("n0001", "epilog")[0][0] == 1
    node.process.wait(limit_s(10))
    node.start()
    expediting.lab.wait(lambda: "healthd: node n0001" in job.comment, 30, "the AdminComment")
    time.sleep(1)
    assert job.comment.count("healthd: node n0001") == 1


def test_a_daemon_that_hangs_blames_no_node(expediting: Hooked) -> None:
    """SIGSTOP at the job's end: the epilog passes within its deadline, and the drain stays ours."""
    node = expediting.node("n0001", quarantine())
    job = two_nodes(expediting, "--requeue=expedite")
    gpu_lost(expediting, node)
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGSTOP)
    job.end()
    expediting.lab.wait(lambda: bool(expediting.calls("n0001", "epilog")), 40, "the epilog")
    assert expediting.calls("n0001", "epilog")[0][0] == 0
    assert reason(expediting.lab, "n0001").startswith("healthd: gpu.xid.79")


def test_without_a_daemon_the_epilog_judges_by_itself(expediting: Hooked) -> None:
    """A daemon that drained and then ended: the hook finds drain and fault in the store, and blames the node. On a busy
    machine it may run out of its time: that is said, its job is held, and another is tried."""
    lab = expediting.lab
    for number in range(TRIES):
        hooked = Hooked(lab, expediting.folder / str(number), expediting.hooks)
        hooked.folder.mkdir()
        try:
            node = hooked.node("n0001", quarantine())
            job = two_nodes(hooked, "--requeue=expedite")
            gpu_lost(hooked, node)
            node.stop()
            job.end()
            lab.wait(lambda: bool(hooked.calls("n0001", "epilog")), 40, "the epilog")  # noqa: B023
            assert reason(lab, "n0001").startswith("healthd: gpu.xid.79")
            if hooked.calls("n0001", "epilog")[0][0] == 1:
                job.wait_again()
                return
            assert any(why in hooked.log_text("n0001") for why in OUT_OF_TIME)
        finally:
            lab.cancel()
            hooked.end()
        lab.reset()
    raise AssertionError("an epilog that has the machine for itself blames the node")
