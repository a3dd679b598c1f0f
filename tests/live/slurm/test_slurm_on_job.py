"""``on_job`` on a real slurmctld with real jobs: signal, grace, requeue, by one daemon, and what is left alone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.slurm.job_comments import append_comment, notify_owner, read_job
from healthd.remediation.orchestrators.slurm.jobs import SlurmJobs
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from tests.live.slurm.interposed import Interposed
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, RunningNode
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.slurm, pytest.mark.process]

PCI = "0000:05:00"
ROW_REMAP = "NVRM: Xid (PCI:{pci}): 63, pid=4242, name=python3, Row Remapper: New row marked for remapping"
SECTIONS = """
[remediation]
mode = "quarantine"
settle_s = 0.5
opt_out_file = ""
[budget]
max_out = 8
settle_s = 0.2
[policy]
on_job = "{on_job}"
same_fault_nodes = 1000
storm_nodes = 100
storm_share = "100%"
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
timeout_s = 5
unanswered_s = 10
{more}
"""
SIGNAL = "signal:USR1 then requeue after 2s"
TWO_NODES = ("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--requeue")
# Each trap leaves a mark once it is set: until then the signal would end its process, and nothing would hear it.
SET = "touch {heard}.$SLURMD_NODENAME"
GANG = f"exec srun bash -c 'trap \"echo $SLURMD_NODENAME >>{{heard}}\" USR1; {SET}; while :; do sleep 0.1; done'"


def traps_set(heard: Path, nodes: Sequence[str]) -> bool:
    """Whether a job has left the mark of SET on each of these nodes."""
    return all(heard.with_name(f"{heard.name}.{node}").exists() for node in nodes)


class Gang:
    """Jobs and daemons of one test."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.lab, self.folder, self.heard = lab, folder, folder / "heard"
        self.running: list[RunningNode] = []

    def job(self, script: str, *options: str) -> tuple[str, list[str]]:
        """A job of two nodes, or as ``options`` say, that runs; and its nodes."""
        job = self.lab.run_job("", script, *(options or TWO_NODES))
        self.lab.wait(lambda: bool(self.nodes_of(job)), 10.0, f"the nodes of job {job}")
        return job, self.nodes_of(job)

    def listening(self, script: str = "", *options: str, batch_only: bool = False) -> tuple[str, list[str]]:
        """The same, once the traps of its steps, or that of its batch script alone, are set; GANG for no script."""
        job, nodes = self.job(script or GANG.format(heard=self.heard), *options)
        self.lab.wait(lambda: traps_set(self.heard, nodes[:1] if batch_only else nodes), 20.0, f"traps of job {job}")
        return job, nodes

    def nodes_of(self, job: str) -> list[str]:
        """Where it runs now; none while it waits."""
        nodes = self.lab.job(job).get("NodeList", "(null)")
        return [] if nodes == "(null)" else self.lab.scontrol("show", "hostnames", nodes).stdout.split()

    def daemon(self, name: str, on_job: str = SIGNAL, more: str = "") -> RunningNode:
        """A daemon on this node."""
        sections = SECTIONS.format(on_job=on_job, more=more)
        node = RunningNode(self.folder / name, name, sections=sections, environ=self.lab.env())
        self.running.append(node)
        node.start()
        return node

    def heard_by(self) -> list[str]:
        """The nodes whose step heard the signal, once for each time."""
        return sorted(self.heard.read_text().split()) if self.heard.exists() else []

    def runs_again_without(self, job: str, bad: str, *, restarts: int = 1) -> None:
        """Wait until the job's next run is on nodes that are not ``bad``; well before slurmctld's own delay is over."""
        self.lab.wait(lambda: self.lab.job(job).get("Restarts") == str(restarts), 30.0, f"job {job} is requeued")
        self.lab.wait_job(job, "RUNNING", within_s=30.0)
        assert bad not in self.nodes_of(job)


@pytest.fixture
def gang(slurm: SlurmLab, tmp_path: Path) -> Iterator[Gang]:
    """A maker of jobs and daemons on the shared cluster; jobs of root write into its folder."""
    made = Gang(slurm, tmp_path)
    yield made
    for node in made.running:
        node.stop()


def test_signal_then_grace_then_requeue_on_good_nodes(gang: Gang) -> None:
    """Every step hears the signal once, two seconds later the job is requeued, and it runs at once without the node
    that has the fault. All of its nodes are named."""
    job, nodes = gang.listening()
    node = gang.daemon(nodes[0])
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    gang.runs_again_without(job, nodes[0])
    assert gang.heard_by() == sorted(nodes)
    said = node.log_text()
    hosts = gang.lab.scontrol("show", "hostlist", ",".join(nodes)).stdout.strip()
    assert f"job {job} of root on {hosts}, which cannot go on after gpu.xid.79: {SIGNAL}" in said
    assert f"ReservationName=healthd-job:{job}:0 " in gang.lab.scontrol("-o", "show", "reservation").stdout
    node.wait(lambda: ": requeued" in node.log_text(), 20.0, "the requeue is read back")
    assert "DRAIN" in gang.lab.state(nodes[0])
    time.sleep(3.0)
    assert gang.lab.job(job)["Restarts"] == "1", "and no second time"


def test_the_batch_script_alone_hears_a_signal_to_b(gang: Gang) -> None:
    """As ``sbatch --signal=B:USR1``."""
    script = (
        f"trap 'echo batch >>{gang.heard}' USR1; {GANG.format(heard=gang.heard).removeprefix('exec ')} & wait; wait"
    )
    job, nodes = gang.listening(script)
    gang.daemon(nodes[0], "signal:B:USR1 then requeue after 2s").kernel_says(OFF_THE_BUS.format(pci=PCI))
    gang.runs_again_without(job, nodes[0])
    assert gang.heard_by() == ["batch"]


@pytest.mark.parametrize("ends", ["exit 0", "exit 7"])
def test_a_job_that_checkpoints_and_ends_by_itself(gang: Gang, ends: str) -> None:
    """One that ends in order is not requeued; one that fails by the signal is, and once."""
    script = (
        f'exec srun bash -c \'trap "echo $SLURMD_NODENAME >>{gang.heard}; {ends}" USR1; '
        f"{SET.format(heard=gang.heard)}; while :; do sleep 0.1; done'"
    )
    job, nodes = gang.listening(script)
    node = gang.daemon(nodes[0], "signal:USR1 then requeue after 5m")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    if ends == "exit 7":
        gang.runs_again_without(job, nodes[0])
        return
    node.wait(lambda: "it completed (COMPLETED); not requeued" in node.log_text(), 30.0, "it is left")
    assert gang.lab.job(job).get("Restarts", "0") == "0"


def test_a_job_that_requeues_itself_is_not_requeued_again(gang: Gang) -> None:
    """Its handler calls scontrol requeue, as those of many frameworks do."""
    script = f"trap 'scontrol requeue $SLURM_JOB_ID' USR1; {SET.format(heard=gang.heard)}; while :; do sleep 0.1; done"
    job, nodes = gang.listening(script, batch_only=True)
    node = gang.daemon(nodes[0], "signal:B:USR1 then requeue after 10s")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "not requeued again" in node.log_text(), 30.0, "it is left")
    time.sleep(3.0)
    assert gang.lab.job(job)["Restarts"] == "1"


def test_a_job_that_the_fault_ended_is_requeued_at_once(gang: Gang) -> None:
    """It failed before the node was drained; without healthd it would stay FAILED."""
    once = f"while ! test -e {gang.folder}/fault; do sleep 0.05; done; exit 3"
    job, nodes = gang.job(f'test -n "$SLURM_RESTART_COUNT" && exec sleep 600; {once}')
    node = gang.daemon(nodes[0], "requeue after 5m", "")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    (gang.folder / "fault").touch()
    gang.runs_again_without(job, nodes[0])
    assert "which failed (FAILED)" in node.log_text()


@pytest.mark.parametrize("option", ["--no-requeue", "salloc"])
def test_a_job_that_cannot_be_requeued_is_left_and_said(gang: Gang, option: str) -> None:
    """No signal, no reservation; it goes on. The same of a job without a batch script."""
    if option == "salloc":
        done = gang.lab.client("salloc", "--no-shell", *TWO_NODES[:3])
        job = (done.stderr + done.stdout).partition("job allocation ")[2].split()[0]
        nodes, words = gang.nodes_of(job), "no batch job"
    else:
        job, nodes = gang.listening("", *TWO_NODES[:3], option)
        words = "it forbids requeue"
    node = gang.daemon(nodes[0])
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: words in node.log_text(), 20.0, "it is left and said")
    time.sleep(4.0)
    assert (gang.lab.job(job)["JobState"], gang.lab.job(job).get("Restarts", "0"), gang.heard_by()) == (
        "RUNNING",
        "0",
        [],
    )
    assert "healthd-job:" not in gang.lab.scontrol("-o", "show", "reservation").stdout


def test_a_requeued_job_that_slurm_holds_waits_for_its_release(gang: Gang) -> None:
    """Its owner has held it while it ran: it goes on, and its requeue leaves it waiting without a priority. Daemon and
    ``healthd job`` say what holds it, and the release is what starts it."""
    job, nodes = gang.job("exec sleep 600")
    assert gang.lab.scontrol("uhold", job).returncode == 0
    node = gang.daemon(nodes[0], "requeue after 0s")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    release = f"release it by `scontrol release {job}`"
    node.wait(lambda: f"Slurm holds it (JobHeldUser): {release}" in node.log_text(), 30.0, "the hold is said")
    told = node.healthd("job", job).stdout
    assert f"job       {job} of root: PENDING, held (JobHeldUser)" in told
    assert f"next      {release}: Slurm holds it" in told
    assert gang.lab.job(job)["JobState"] == "PENDING"
    assert gang.lab.scontrol("release", job).returncode == 0
    gang.lab.start_requeued(job)
    gang.runs_again_without(job, nodes[0])


def test_a_job_whose_start_failed_is_held(slurm_lab_factory: Callable[..., SlurmLab], tmp_path: Path) -> None:
    """By slurmctld itself, where the Prolog of its node fails. The release starts it."""
    broken, prolog = tmp_path / "broken", tmp_path / "prolog"
    prolog.write_text(f"#!/bin/sh\ntest ! -e {broken}\n", encoding="utf-8")
    prolog.chmod(0o755)
    broken.touch()
    lab = slurm_lab_factory(nodes=2, conf={"Prolog": str(prolog)})
    client = SlurmOrchestrator(node="n0001", conf=str(lab.conf))
    job = lab.submit("", "exec sleep 600", "--requeue")
    lab.wait(lambda: read_job(client, job).held, 30.0, "slurmctld holds the job")
    held = read_job(client, job)
    assert (held.state, held.reason) == ("PENDING", "launch failed requeued held")
    broken.unlink()
    assert lab.scontrol("release", job).returncode == 0
    lab.start_requeued(job)
    lab.wait_job(job, "RUNNING", within_s=30.0)
    assert not read_job(client, job).held


def test_a_part_of_a_heterogeneous_job_is_left_and_said(gang: Gang) -> None:
    """slurmctld requeues all of it or nothing, and the node with the fault speaks for one part."""
    one = ("--nodes=1", "--ntasks=1", "--exclusive")
    job, nodes = gang.job("exec sleep 600", *one, ":", *one)
    node = gang.daemon(nodes[0])
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "it is a part of a heterogeneous job" in node.log_text(), 20.0, "it is left and said")
    assert (gang.lab.job(job)["JobState"], gang.lab.job(job)["Restarts"]) == ("RUNNING", "0")
    client = SlurmOrchestrator(node=nodes[0], conf=str(gang.lab.conf))
    for part in ("+0", "+1"):
        assert append_comment(client, f"{job}{part}", f"of part {part}") == ""
    written = {part: read_job(client, f"{job}{part}").said for part in ("+0", "+1")}
    assert {part: [each for each in said if each.startswith("of part")] for part, said in written.items()} == {
        "+0": ["of part +0"],
        "+1": ["of part +1"],
    }


def test_a_suspended_job_is_acted_on_once_it_runs_again(gang: Gang) -> None:
    """Its checkpoint is not lost: slurmctld takes no signal for it meanwhile. One node of it may resume later than the
    grace is long."""
    job, nodes = gang.listening()
    assert gang.lab.scontrol("suspend", job).returncode == 0
    node = gang.daemon(nodes[0])
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "alone of its nodes" in node.log_text(), 20.0, "the job is taken")
    time.sleep(3.0)
    assert (gang.lab.job(job)["JobState"], gang.lab.job(job)["Restarts"]) == ("SUSPENDED", "0")
    assert gang.lab.scontrol("resume", job).returncode == 0
    gang.runs_again_without(job, nodes[0])
    assert gang.heard_by()


def test_a_job_that_depends_on_a_requeued_one_waits_for_its_next_run(gang: Gang) -> None:
    """Where that was requeued before it failed, and so before slurmctld gave the dependency up."""
    done = gang.folder / "done"
    job, nodes = gang.job(f"while ! test -e {done}; do sleep 0.05; done")
    then = gang.lab.submit("", "exec sleep 600", f"--dependency=afterok:{job}")
    node = gang.daemon(nodes[0], "requeue after 0s", "")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    gang.runs_again_without(job, nodes[0])
    assert gang.lab.job(then)["JobState"] == "PENDING"
    done.touch()
    gang.lab.wait_job(then, "RUNNING", within_s=60.0)


def test_of_two_nodes_of_one_gang_one_acts(gang: Gang) -> None:
    """Both have XID 79 in the same moment; each step hears one signal, the job is requeued once, off both nodes."""
    job, nodes = gang.listening()
    both = [gang.daemon(name) for name in nodes]
    for node in both:
        node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    gang.runs_again_without(job, nodes[0])
    assert nodes[1] not in gang.nodes_of(job)
    assert gang.heard_by() == sorted(nodes)
    said = [node.log_text() for node in both]
    assert sum("alone of its nodes" in text for text in said) == 1
    assert sum("left to another of its nodes" in text for text in said) == 1


def test_a_warning_touches_no_job(gang: Gang) -> None:
    """XID 63 takes the node out, and its job goes on to its end."""
    job, nodes = gang.listening()
    node = gang.daemon(nodes[0])
    node.kernel_says(ROW_REMAP.format(pci=PCI))
    gang.lab.wait(lambda: "DRAIN" in gang.lab.state(nodes[0]), 15.0, "drained")
    time.sleep(4.0)
    assert (gang.lab.job(job)["JobState"], gang.heard_by()) == ("RUNNING", [])


def test_two_jobs_on_one_node_are_left_alone(gang: Gang) -> None:
    """Which of them the fault ended is not known."""
    first = gang.lab.run_job("n0001")
    second = gang.lab.run_job("n0001")
    node = gang.daemon("n0001")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "which of them the fault ended is not known" in node.log_text(), 20.0, "they are left and said")
    assert f"{first} of root on n0001, {second} of root on n0001" in node.log_text()
    assert [gang.lab.job(job)["JobState"] for job in (first, second)] == ["RUNNING", "RUNNING"]


def test_the_gpus_of_a_job_are_those_that_slurm_gave_it(slurm_lab_factory: Callable[..., SlurmLab]) -> None:
    """Of a node of four GPUs one job has two and another one."""
    lab = slurm_lab_factory(nodes=1, conf={"GresTypes": "gpu"})
    (name,) = lab.nodes
    lab.ctld_stop()
    lab.conf.write_text(lab.conf.read_text().replace(f"NodeName={name} ", f"NodeName={name} Gres=gpu:4 "))
    for index in range(4):
        (lab.root / f"gpu{index}").touch()
    (lab.root / "gres.conf").write_text(f"Name=gpu File={lab.root}/gpu[0-3]\n")
    lab.ctld_start()
    lab.slurmd_stop(name)
    lab.slurmd_start(name)
    lab.wait(lambda: lab.shows(name, "Gres") == "gpu:4" and lab.states()[name] == "IDLE", 30.0, "a node with GPUs")
    jobs = SlurmJobs(SlurmOrchestrator(node=name, conf=str(lab.conf)))
    first = lab.run_job(name, "exec sleep 600", "--gres=gpu:2")
    second = lab.run_job(name, "exec sleep 600", "--gres=gpu:1")
    assert (set(jobs.gpus(first)), set(jobs.gpus(second))) == ({0, 1}, {2})


BEFORE = ("healthd-job:", "--signal=USR1", "requeue ", "starttime=now")
AFTER = ("intends to act on job", "alone of its nodes", "intends to send USR1", "intends the requeue")
KILLS_IN_A_SAMPLE = 1


@pytest.mark.parametrize("before", of_this_run().some("before", BEFORE, KILLS_IN_A_SAMPLE))
def test_a_daemon_that_is_killed_before_an_act_acts_once(gang: Gang, before: str, tmp_path: Path) -> None:
    """kill -9 between the intent and the act: the signal counts as sent, and the job is requeued once."""
    wires = Interposed(tmp_path / "bin", "kill -9 $PPID; exit 1")
    wires.before(before)
    _killed(gang, f'bin_dir = "{wires.folder}"', lambda: wires.folder.joinpath("match").read_text().strip() == "")


@pytest.mark.parametrize("said", of_this_run().some("after", AFTER, KILLS_IN_A_SAMPLE))
def test_a_daemon_that_is_killed_after_a_record_acts_once(gang: Gang, said: str) -> None:
    """kill -9 as soon as the trail has it, before its act or just after."""
    _killed(gang, "", lambda: said in gang.running[-1].log_text())


def _killed(gang: Gang, more: str, reached: Callable[[], bool]) -> None:
    job, nodes = gang.listening()
    node = gang.daemon(nodes[0], more=more)
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    end_s = time.monotonic() + limit_s(30.0)
    while not reached():
        assert time.monotonic() < end_s, "the boundary was never reached"
        time.sleep(0.01)
    node.kill()
    node.start()
    gang.lab.wait(lambda: gang.lab.job(job).get("Restarts") == "1", 60.0, "requeued")
    gang.lab.wait(lambda: gang.lab.job(job)["JobState"] in ("RUNNING", "PENDING"), 30.0, "its next run")
    assert gang.heard_by() in ([], sorted(nodes))
    time.sleep(3.0)
    assert gang.lab.job(job)["Restarts"] == "1"
    assert nodes[0] not in gang.nodes_of(job)


def test_a_hanging_slurmctld_that_applies_the_requeue_late_applies_it_once(gang: Gang, tmp_path: Path) -> None:
    """It stops just before the requeue arrives, and goes on after the client has given up."""
    job, nodes = gang.listening()
    pid = gang.lab.pid("slurmctld")
    wires = Interposed(tmp_path / "bin", f"kill -STOP {pid}")
    wires.before("requeue ")
    node = gang.daemon(nodes[0], more=f'bin_dir = "{wires.folder}"')
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    try:
        node.wait(lambda: "requeue: no answer" in node.log_text(), 40.0, "the requeue got no answer")
    finally:
        gang.lab.ctld_resume()
    gang.runs_again_without(job, nodes[0])
    time.sleep(12.0)
    assert gang.lab.job(job)["Restarts"] == "1"


def test_the_last_task_of_an_array_is_requeued_alone(gang: Gang) -> None:
    """Its number is that of the array, and a requeue or a signal by that number would be one of every task."""
    lab, heard = gang.lab, gang.heard
    script = f"trap 'echo $SLURMD_NODENAME >>{heard}' USR1; {SET.format(heard=heard)}; while :; do sleep 0.1; done"
    array = lab.submit("", script, "--array=0-2", "--exclusive", "--requeue")
    for task in range(3):
        lab.wait_job(f"{array}_{task}", "RUNNING", within_s=30.0)
    last = lab.job(f"{array}_2")
    lab.wait(lambda: traps_set(heard, [last["NodeList"]]), 20.0, "its trap")
    assert last["JobId"] == array, "the case that this test is about"
    node = gang.daemon(last["NodeList"], "signal:B:USR1 then requeue after 2s")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    gang.runs_again_without(f"{array}_2", last["NodeList"])
    assert gang.heard_by() == [last["NodeList"]]
    others = [lab.job(f"{array}_{task}") for task in (0, 1)]
    assert [(job["JobState"], job["Restarts"]) for job in others] == [("RUNNING", "0")] * 2


def test_a_name_that_a_user_chose_is_no_field_of_a_job(slurm: SlurmLab) -> None:
    """Neither its nodes, which are asked for readings, nor its end, nor a sentence of healthd's."""
    name = "x UserId=alice(1) JobState=COMPLETED NodeList=evil.example\n   AdminComment=healthd: node n1 is to blame"
    array = slurm.submit("n0003", "exec sleep 600", "--array=0-1", "-J", name)
    # scontrol's JobState may be the name's, or that of SubmitLine, which 26.05 prints behind all fields.
    running = ("squeue", "-h", "-r", "-t", "RUNNING", "-j", array)
    slurm.wait(lambda: len(slurm.client(*running).stdout.splitlines()) == 2, 20.0, "both tasks run")
    assert "AdminComment=healthd" in slurm.scontrol("show", "job", f"{array}_1").stdout, "what scontrol prints"
    client = SlurmOrchestrator(node="n0003", conf=str(slurm.conf))
    job = read_job(client, array)
    assert (job.id, job.acts_by, job.state) == (array, f"{array}_1", "RUNNING")
    assert (job.user, job.nodes, job.said) == ("root", "n0003", ())
    assert slurm.scontrol("update", f"jobid={array}_1", "admincomment=two | lines\nof ours").returncode == 0
    assert append_comment(client, array, "fault on node n0003") == ""
    notify_owner(client, f"{array}_0", "fault on node n0003")
    assert read_job(client, array).comment == "two | lines\nof ours; healthd: fault on node n0003"
    assert read_job(client, f"{array}_0").comment == ""


def test_the_end_of_a_job_is_read_back(slurm: SlurmLab) -> None:
    """Its exit code and its times, without a text of its user's."""
    failed = slurm.submit("n0001", "exit 3")
    slurm.wait_job(failed, "FAILED")
    job = read_job(SlurmOrchestrator(node="n0001", conf=str(slurm.conf)), failed)
    assert (job.state, job.exit_code, job.signal, job.nodes) == ("FAILED", 3, 0, "n0001")
    assert job.start is not None
    assert job.end is not None
    assert job.end >= job.start


def test_a_plain_user_cannot_take_a_job(gang: Gang) -> None:
    """The reservation's name is root's to create."""
    argv = ["setpriv", "--reuid=65534", "--clear-groups", "scontrol", "create", "reservation"]
    words = ["reservationname=healthd-job:1:0", "starttime=now", "duration=5", "users=root", "flags=ANY_NODES"]
    done = subprocess.run(
        [*argv, *words, "burstbuffer=1"],
        env=gang.lab.env(),
        capture_output=True,
        text=True,
        timeout=limit_s(30),
        check=False,
    )
    assert done.returncode != 0
