"""The shipped hook scripts on a real Slurm: what refuses a job, what lets it pass, and what its owner gets to read."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from healthd.cli.hook import DEADLINE_S
from tests.live.slurm.interposed import Interposed
from tests.live.slurm.slurm_conf import hooks_we_ship
from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_spine import PCI, quarantine, reason
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.running import NOBODY, OFF_THE_BUS, RECOVERED, ROOT, UNCONTAINED, RunningNode

pytestmark = [pytest.mark.slurm, pytest.mark.process]

SCRIPTS = ROOT / "packaging" / "slurm"
# The interpreter may lie where only root may go, so the privilege is dropped inside.
AS_NOBODY = f"""
import __future__, os, sys, _socket, healthd.__main__
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(healthd.__main__.main())
"""
OBSERVE = '[orchestrator]\nkind = "slurm"\n'
# Of the smallest machine that is measured on.
CORES = 2
# What a hook says that had no time: its own deadline, that of the lock, and that of the script around it.
OUT_OF_TIME = ("deadline passed", "another healthd uses it", "without a refusal", "without a verdict")

# What Slurm is told to run: the shipped script, for the healthd of the node that the hook runs on, if it has one.
HOOK = """#!/bin/sh
here={hooks}/$SLURMD_NODENAME
[ -d "$here" ] || exit 0
[ -e "$here/first" ] && . "$here/first"
began=$(/usr/bin/date +%s%N)
HEALTHD=$here/healthd {script} >>"$here/out" 2>>"$here/err"
code=$?
echo "{kind} $code $((($(/usr/bin/date +%s%N) - began) / 1000000))" >>"$here/calls"
exit $code
"""
HEALTHD = """#!/bin/sh
cd / && PYTHONPATH={root} exec {python} -m healthd "$@" --config {config} --socket {socket}
"""


class Hooked:
    """A cluster whose hooks ask healthd, and the healthd of single nodes."""

    def __init__(self, lab: SlurmLab, folder: Path, hooks: Path) -> None:
        self.lab, self.folder, self.hooks = lab, folder, hooks
        self.running: list[RunningNode] = []

    def node(self, name: str, sections: str, *, start: bool = True, **environ: str) -> RunningNode:
        """A node whose hooks ask this healthd from now on; its daemon runs only if it is started."""
        node = RunningNode(self.folder / name, name, sections=sections, environ={**self.lab.env(), **environ})
        self.running.append(node)
        here = self.hooks / name
        here.mkdir()
        paths = {"root": ROOT, "python": sys.executable, "config": node.config, "socket": node.socket}
        (here / "healthd").write_text(HEALTHD.format(**paths))
        (here / "healthd").chmod(0o755)
        if start:
            node.start()
        return node

    def before_each_hook(self, name: str, words: str) -> None:
        """Shell text that runs on a node just before its hooks."""
        (self.hooks / name / "first").write_text(words + "\n")

    def calls(self, name: str, kind: str) -> list[tuple[int, int]]:
        """(exit code, milliseconds) of each hook of a kind so far."""
        path = self.hooks / name / "calls"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(code), int(took)) for called, code, took in lines if called == kind]

    def log_text(self, name: str) -> str:
        """What a node's hooks wrote to stderr."""
        return (self.hooks / name / "err").read_text()

    def end(self) -> None:
        """End the daemons, and let the hooks find nothing."""
        for node in self.running:
            if node.process is not None:
                node.process.send_signal(signal.SIGCONT)
            node.stop()
            (self.hooks / node.name).rename(node.folder / "hooks")


def wrapped_hooks(folder: Path, *settings: str) -> tuple[dict[str, str], Path]:
    """slurm.conf with the hooks that we ship, those of ``settings`` behind a wrapper that leads each node to its own
    healthd; and the folder in which a node's is found."""
    conf = hooks_we_ship()
    for setting in settings:
        kind = Path(conf[setting]).stem
        wrapper = folder / f"{kind}.sh"
        wrapper.write_text(HOOK.format(hooks=folder / "nodes", script=SCRIPTS / f"{kind}.sh", kind=kind))
        wrapper.chmod(0o755)
        conf[setting] = str(wrapper)
    (folder / "nodes").mkdir()
    conf["SchedulerParameters"] += ",sched_interval=1,batch_sched_delay=0,sched_min_interval=0"
    return conf, folder / "nodes"


@pytest.fixture(scope="module")
def hooked_lab(
    slurm_lab_factory: Callable[..., SlurmLab], tmp_path_factory: pytest.TempPathFactory
) -> tuple[SlurmLab, Path]:
    """One cluster for this file. The wrappers are not the product: they lead each node's hooks to its own healthd."""
    conf, hooks = wrapped_hooks(tmp_path_factory.mktemp("hooks"), "Prolog", "Epilog", "HealthCheckProgram")
    return slurm_lab_factory(nodes=4, conf=conf), hooks


@pytest.fixture
def hooked(hooked_lab: tuple[SlurmLab, Path], tmp_path: Path) -> Iterator[Hooked]:
    """The cluster, clean, and no healthd on it yet."""
    lab, hooks = hooked_lab
    lab.reset()
    made = Hooked(lab, tmp_path, hooks)
    yield made
    made.end()


def run_script(
    kind: str, *, healthd: str, lab: SlurmLab, job: str = "4711", scripts: Path = SCRIPTS
) -> tuple[int, str, str, float]:
    """Run a shipped script as Slurm does: no PATH, no HOME. (exit code, stdout, stderr, seconds)."""
    slurm = {"SLURMD_NODENAME": "n0001", "SLURM_JOB_ID": job, "SLURM_CONF": str(lab.conf)}
    began = time.monotonic()
    done = subprocess.run(
        [scripts / f"{kind}.sh"],
        env={**slurm, "HEALTHD": healthd},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s(30),
        check=False,
    )
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


# ---------------------------------------------------------------------------------------------------------------------
# with a daemon


def test_a_critical_node_refuses_the_job_and_it_runs_elsewhere(hooked: Hooked) -> None:
    """The prolog makes a drain that was not made yet: our reason, the owner told behind what others wrote to the job,
    the job not held, run elsewhere."""
    opt_out = hooked.folder / "opt-out"
    opt_out.touch()
    node = hooked.node("n0001", quarantine().replace('opt_out_file = ""', f'opt_out_file = "{opt_out}"'))
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "opted out" in node.log_text(), 10.0, "the fault is open, and held")
    hooked.before_each_hook("n0001", f"/usr/bin/rm -f {opt_out}")
    job = hooked.lab.submit("", "exec sleep 600", "--hold")
    hooked.lab.scontrol("update", f"jobid={job}", "admincomment=ticket 12: by hand")
    hooked.lab.scontrol("release", job)
    hooked.lab.wait(lambda: "DRAIN" in hooked.lab.state("n0001"), 15.0, "drained by the prolog")
    assert reason(hooked.lab, "n0001").startswith(f"healthd: gpu.xid.79 gpu:{PCI}")
    fields = hooked.lab.wait_job(job, "PENDING")
    assert (fields["Restarts"], fields["Reason"].count("held")) == ("1", 0)
    assert hooked.calls("n0001", "prolog")[0][0] == 1
    shown = hooked.lab.scontrol("show", "job", job).stdout
    told = f"healthd: node n0001 is not fit for job {job}: healthd: gpu.xid.79"
    assert f"AdminComment=ticket 12: by hand; {told}" in shown, shown
    node.wait(lambda: f"hook: prolog refused job {job}" in node.log_text(), 5.0, "the refusal is in the audit")
    hooked.lab.start_requeued(job)
    assert hooked.lab.wait_job(job, "RUNNING")["BatchHost"] != "n0001"


def test_the_words_of_a_refusal_survive_a_write_of_the_daemon_at_the_same_time(hooked: Hooked, tmp_path: Path) -> None:
    """slurmctld has no append: a comment that was read before the prolog wrote comes back; the prolog reads again."""
    job = hooked.lab.run_job("n0002")
    by_others = "ticket 12: by hand; healthd: drained"
    clients = Interposed(tmp_path / "bin", f'/usr/bin/scontrol update jobid={job} admincomment="{by_others}"')
    clients.at(3, "after")  # notify, squeue, update
    script = tmp_path / "prolog.sh"
    script.write_text((SCRIPTS / script.name).read_text().replace("\nPATH=", f"\nPATH={clients.folder}:", 1))
    script.chmod(0o755)
    healthd = tmp_path / "healthd"
    healthd.write_text("#!/bin/sh\necho print healthd: node n0002 is not fit\nexit 1\n")
    healthd.chmod(0o755)
    assert run_script("prolog", healthd=str(healthd), lab=hooked.lab, job=job, scripts=tmp_path)[0] == 1
    assert clients.calls()[2].startswith("scontrol update")
    shown = hooked.lab.scontrol("show", "job", job).stdout
    assert f"AdminComment={by_others}; healthd: node n0002 is not fit" in shown, shown


def test_in_observe_mode_the_job_runs_and_the_refusal_is_visible(hooked: Hooked) -> None:
    """Observe: exit 0, the node untouched; audit, log and metrics all say that the node was critical."""
    (port,) = free_ports(1)
    node = hooked.node("n0001", OBSERVE, HEALTHD_DAEMON_HTTP=f"127.0.0.1:{port}")
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: node.check()["verdict"] == "critical", 10.0, "the fault is open")
    job = hooked.lab.run_job("n0001")
    message = f"prolog let job {job} pass: verdict critical, but observe mode refuses no job"
    node.wait(lambda: message in node.log_text(), 10.0, "it is in the audit")
    assert message in node.log.read_text()
    assert "DRAIN" not in hooked.lab.state("n0001")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=limit_s(10)) as page:
        metrics = page.read().decode()
    assert 'healthd_hooks_total{answer="passed",kind="prolog",verdict="critical"} 1.0' in metrics
    assert 'healthd_decisions_total{action="hold"}' in metrics


def test_an_unknown_verdict_lets_the_job_pass(hooked: Hooked) -> None:
    """A node that cannot be judged is not a broken one: the job runs, and the audit says what was not known."""
    node = hooked.node("n0001", '[sources]\nkmsg = "/nowhere/kmsg"\n' + quarantine())
    node.wait(lambda: node.check()["verdict"] == "unknown", 10.0, "unknown")
    job = hooked.lab.run_job("n0001")
    node.wait(lambda: f"prolog let job {job} pass: verdict unknown" in node.log_text(), 10.0, "it is in the audit")
    assert hooked.lab.state("n0001") != "IDLE+DRAIN"


def test_over_the_fleet_limit_the_job_passes(hooked: Hooked) -> None:
    """At the limit nothing more is taken out, by a prolog neither: exit 0, and the limit is named."""
    hooked.lab.update("n0004", "state=drain", "reason=admin: psu")
    node = hooked.node("n0001", quarantine(max_out=1))
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "at the fleet limit" in node.log_text(), 10.0, "held")
    job = hooked.lab.run_job("n0001")
    message = f"prolog let job {job} pass: verdict critical, but healthd has not drained the node: at the fleet limit"
    node.wait(lambda: message in node.log_text(), 10.0, "it is in the audit")
    assert "DRAIN" not in hooked.lab.state("n0001")
    assert hooked.lab.job(job)["JobState"] == "RUNNING"


def test_the_epilog_ends_the_fault_of_its_job(hooked: Hooked) -> None:
    """XID 43 of the job's process is open while it runs and over with its epilog; another process's fault stays."""
    node = hooked.node("n0001", quarantine())
    pid_file = hooked.folder / "pid"
    job = hooked.lab.run_job("n0001", f"echo $$ >{pid_file}; exec sleep 600")
    hooked.lab.wait(lambda: pid_file.exists() and pid_file.read_text() != "", 5.0, "the job's pid")
    for pci, pid in ((PCI, int(pid_file.read_text())), ("0000:06:00", os.getpid())):
        node.kernel_says(f"NVRM: Xid (PCI:{pci}): 43, pid={pid}, name=sleep, Ch 00000010")
    node.wait(lambda: len(findings(node, "gpu.xid.43")) == 2, 5.0, "both faults are open")
    hooked.lab.cancel(job)
    node.wait(lambda: hooked.calls("n0001", "epilog"), 15.0, "the epilog ran")
    assert hooked.calls("n0001", "epilog")[0][0] == 0
    assert findings(node, "gpu.xid.43") == ["gpu:0000:06:00"]
    assert "DRAIN" not in hooked.lab.state("n0001")


def findings(node: RunningNode, code: str) -> list[str]:
    """The components on which a code is open."""
    checks = node.check("kernel.xid")["checks"]
    return [finding["component"] for check in checks for finding in check["findings"] if finding["code"] == code]


def test_epilog_and_health_check_never_fail_for_a_finding(hooked: Hooked) -> None:
    """On a critical node both exit 0 and say the verdict: an Epilog that fails would drain with "Epilog error"."""
    node = hooked.node("n0001", OBSERVE)
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: node.check()["verdict"] == "critical", 10.0, "the fault is open")
    for kind in ("epilog", "health-check-program"):
        code, out, err, took_s = run_script(kind, healthd=str(hooked.hooks / "n0001/healthd"), lab=hooked.lab)
        assert (code, out, err) == (0, "", f"healthd: {kind}: verdict critical\n")
        assert took_s < limit_s(1.0), "as long as Slurm waits for a hook at least"
    job = hooked.lab.submit("n0001", "exit 0")
    hooked.lab.wait(lambda: len(hooked.calls("n0001", "epilog")) == 1, 15.0, f"the epilog of {job}")
    hooked.lab.wait_state("n0001", "IDLE")


def test_a_plain_user_may_look_and_not_act(hooked: Hooked) -> None:
    """check and status answer anybody; a hook of a user without the right does nothing, says so, and exits 0."""
    node = hooked.node("n0001", quarantine())
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "out until it is healthy" in node.log_text(), 10.0, "drained")

    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        node.open_to_all()  # each time: another run of pytest that begins closes the folder of both
        argv = [sys.executable, "-c", AS_NOBODY, *arguments, "--socket", str(node.socket)]
        return subprocess.run(argv, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, cwd="/")

    assert asked("check").returncode == 1
    assert asked("status").returncode == 0
    refused = asked("hook", "prolog")
    assert (refused.returncode, refused.stdout) == (0, "")
    assert f"hook prolog did nothing: uid {NOBODY} may not act here" in refused.stderr


# ---------------------------------------------------------------------------------------------------------------------
# our own trouble


@pytest.mark.parametrize("trouble", ["config", "state_dir", "missing", "traceback", "exit 77"])
def test_our_own_trouble_never_refuses_a_job(hooked: Hooked, trouble: str) -> None:
    """No daemon, and healthd broken in one way or another: every hook exits 0 soon, with a line on stderr."""
    node = hooked.node("n0001", quarantine(), start=False)
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    healthd = hooked.hooks / "n0001/healthd"
    match trouble:
        case "config":
            node.config.write_text("[remediation]\nmode = 3\nmood = \n")
        case "state_dir":
            node.state_dir.write_text("a file where the folder should be")
        case "missing":
            healthd.unlink()
        case "traceback":
            healthd.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import nowhere'\n")
        case exit_77:
            healthd.write_text(f"#!/bin/sh\n{exit_77}\n")
    for kind in ("prolog", "epilog", "health-check-program"):
        code, out, err, took_s = run_script(kind, healthd=str(healthd), lab=hooked.lab)
        assert (code, out) == (0, "")
        assert "healthd: " in err or kind != "prolog"
        assert took_s < limit_s(2)
    assert "DRAIN" not in hooked.lab.state("n0001")


def test_a_hung_daemon_does_not_hold_a_job_up_for_long(hooked: Hooked) -> None:
    """The daemon stopped by a signal: the job waits 9 s and what a start takes for its prolog, and runs."""
    node = hooked.node("n0001", quarantine())
    assert node.process is not None
    node.process.send_signal(signal.SIGSTOP)
    hooked.lab.run_job("n0001")
    hooked.lab.wait(lambda: bool(hooked.calls("n0001", "prolog")), 15.0, "the prolog ends")
    ((code, took_ms),) = hooked.calls("n0001", "prolog")
    assert code == 0
    assert took_ms < limit_s(DEADLINE_S + 1) * 1000
    passes = ("the daemon did not answer: timed out; the job passes", *OUT_OF_TIME)
    assert any(why in hooked.log_text("n0001") for why in passes)


# ---------------------------------------------------------------------------------------------------------------------
# without a daemon


def refused_by_prolog(hooked: Hooked, name: str) -> str:
    """What srun printed of the prolog that refused its job. On a busy machine a prolog may run out of its time: its job
    passes, the log says so, and the next one tries."""
    while True:
        told = hooked.lab.client("srun", f"--nodelist={name}", "--ntasks=1", "hostname").stderr
        *passed, (code, took_ms) = hooked.calls(name, "prolog")
        assert took_ms < limit_s(10) * 1000
        if code == 1:
            return told
        assert any(why in hooked.log_text(name) for why in OUT_OF_TIME)
        assert len(passed) < 20, "a prolog that has the machine for itself refuses its job"


def test_without_a_daemon_the_prolog_drains_and_a_later_daemon_adopts(hooked: Hooked) -> None:
    """The prolog looks and drains by itself; srun's user reads why; a daemon that starts later releases that drain."""
    names = iter(("n0002", "n0003", "n0004"))
    while True:
        name = next(names)
        node = hooked.node(name, quarantine(), start=False)
        node.kernel_says(UNCONTAINED.format(pci=PCI))
        told = refused_by_prolog(hooked, name)
        if f"srun: healthd: node {name} is not fit for job" in told:
            break  # the script has 2 s to tell srun's user, which a busy machine may need for itself
    assert "gpu.xid.95" in told
    assert "your job goes on" not in told
    drain = hooked.lab.shows(name, "Reason")
    assert drain.startswith("healthd: gpu.xid.95")
    node.start()
    node.wait(lambda: "out until it is healthy" in node.log_text(), 10.0, "adopted")
    assert hooked.lab.shows(name, "Reason") == drain
    node.kernel_says(RECOVERED.format(pci=PCI))
    hooked.lab.wait_state(name, "IDLE")
    node.wait(lambda: "released: back in service" in node.log_text(), 10.0, "it says so")


def test_an_old_line_is_not_judged_again_by_a_hook(hooked: Hooked) -> None:
    """What the daemon had read and seen end does not come back when a hook reads the same log without it."""
    node = hooked.node("n0001", quarantine())
    node.kernel_says("NVRM: Xid (PCI:0000:05:00): 43, pid=4194303, name=gone, Ch 00000010")
    node.wait(lambda: "gpu.xid.43 on gpu:0000:05:00 opened" in node.log_text(), 5.0, "opened")
    run_script("epilog", healthd=str(hooked.hooks / "n0001/healthd"), lab=hooked.lab)
    assert "gpu.xid.43 on gpu:0000:05:00 ended" in node.log_text()
    node.stop()
    opened = node.log_text().count("gpu.xid.43 on gpu:0000:05:00 opened")
    code, *_ = run_script("prolog", healthd=str(hooked.hooks / "n0001/healthd"), lab=hooked.lab)
    assert code == 0
    assert node.log_text().count("gpu.xid.43 on gpu:0000:05:00 opened") == opened


def test_prologs_that_come_together_make_one_drain(hooked: Hooked) -> None:
    """Five at once without a daemon: one drain is made, and each job is refused by it. A hook that runs out of its
    time lets the job pass and says so, which five of them do not where two cores are theirs alone."""
    bin_dir = Interposed(hooked.folder / "bin", ":")
    node = hooked.node("n0001", quarantine(more=f'bin_dir = "{bin_dir.folder}"'), start=False)
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    healthd = str(hooked.hooks / "n0001/healthd")
    ended: list[tuple[int, str]] = []

    def prolog(job: int) -> None:
        code, _, err, _ = run_script("prolog", healthd=healthd, lab=hooked.lab, job=str(job))
        ended.append((code, err))

    threads = [threading.Thread(target=prolog, args=(90_000 + number,)) for number in range(5)]
    before = cpu_of_children_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed = [err for code, err in ended if code != 1]
    assert all(code in (0, 1) for code, _ in ended), ended
    assert all(any(why in err for why in OUT_OF_TIME) for err in passed), passed
    assert cpu_of_children_s() - before < CORES * DEADLINE_S, "on a quiet machine they are not in time"
    refused = lambda: run_script("prolog", healthd=healthd, lab=hooked.lab, job="90006")[0] == 1  # noqa: E731
    hooked.lab.wait(refused, 60.0, "one that has the machine for itself refuses its job")
    assert len([call for call in bin_dir.calls() if "state=drain" in call]) == 1


def cpu_of_children_s() -> float:
    """What this process's children that have ended used, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_before_slurmd_registers_the_health_check_is_quick(hooked: Hooked) -> None:
    """HealthCheckProgram runs before slurmd registers and without a PATH: the node is there again within seconds."""
    hooked.node("n0003", quarantine(), start=False)
    hooked.lab.slurmd_stop("n0003")
    began = time.monotonic()
    hooked.lab.slurmd_start("n0003")
    hooked.lab.wait(lambda: bool(hooked.calls("n0003", "health-check-program")), 15.0, "it ran")
    hooked.lab.wait_state("n0003", "IDLE")
    assert time.monotonic() - began < limit_s(3.0)
    assert hooked.calls("n0003", "health-check-program")[0][0] == 0
