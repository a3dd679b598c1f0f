"""A real Slurm cluster on loopback: one munged, one slurmctld and some slurmd, of this machine's own packages.

For tests that need the true thing. Every lab has its own folder, key and ports, so that several run side by side; no
service of the machine is used or touched. It ends only what it started: its daemons by the handles it holds, and what
they left behind (slurmstepd outlives slurmd) by this lab's SLURM_CONF in the environment.

Facts verified on Slurm 22.05.8 (Debian 12): slurmd takes `-N NAME`, so that many live on one host, and `-b` reports a
new boot; clients find their cluster by SLURM_CONF; the first scheduling pass comes about 3 s after slurmctld starts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

from tests.live.slurm.slurm_conf import conf_text
from tests.support.limits import limit_s, pauses
from tests.support.ports import free_ports
from tests.support.slurm_versions import has, version_in

TOOL_DIRS = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin:/opt/slurm/sbin:/opt/slurm/bin"
NEEDED = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "sbatch", "scancel")


def missing_tools() -> tuple[str, ...]:
    """The programs a lab needs that are not installed here."""
    return tuple(tool for tool in NEEDED if shutil.which(tool, path=TOOL_DIRS) is None)


def skip_reason() -> str:
    """The sentence that says why no lab can run here; empty if one can."""
    missing = missing_tools()
    if missing:
        advice = "apt-get install slurmctld slurmd slurm-client munge"
        return f"no real Slurm here: {', '.join(missing)} not installed ({advice})"
    return "" if os.geteuid() == 0 else "a real Slurm lab needs root: its jobs and hooks run as root"


class LabError(AssertionError):
    """The lab did not come to the state a test waits for. The message holds what it was and the end of the logs."""


class SlurmLab:
    """One cluster with nodes n0001, n0002, …, or of other ``names``. Use it as a context manager, or start and stop it.

    ``conf`` replaces or adds settings of slurm.conf (an empty value removes one); ``lines`` are added to it as they
    are, such as further ``NodeName=`` or ``PartitionName=`` lines. ``env`` is what slurmd passes on to its hooks where
    Slurm does so.
    """

    def __init__(
        self,
        *,
        nodes: int = 8,
        names: Sequence[str] = (),
        cpus: int = 4,
        conf: Mapping[str, str] | None = None,
        lines: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.nodes = tuple(names) or tuple(f"n{number:04d}" for number in range(1, nodes + 1))
        self.root = Path(tempfile.mkdtemp(prefix="healthd-slurm-"))
        self.conf = self.root / "slurm.conf"
        self._cpus, self._settings, self._lines = cpus, dict(conf or {}), tuple(lines)
        self._env = dict(env or {})
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # -----------------------------------------------------------------------------------------------------------------
    # the whole lab

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return once every node is idle. Raises LabError with the logs."""
        for attempt in range(3):
            self._prepare()
            try:
                self._start_daemons()
                return
            except LabError:
                self._end_processes()
                if attempt == 2 or "Address already in use" not in self.log_tail():
                    self.stop()
                    raise

    def stop(self) -> None:
        """End every process of this lab and remove its folder. May be called twice."""
        self._end_processes()
        shutil.rmtree(self.root, ignore_errors=True)

    def reset(self) -> None:
        """All daemons run, no job, no reservation, every node idle, clean, answering, and without a past."""
        self.munged_resume()
        self.ctld_resume()
        self._start_what_ended()
        self.wait(lambda: self.scontrol("ping").returncode == 0, 20, "slurmctld to answer")
        for line in self.scontrol("-o", "show", "reservations").stdout.splitlines():
            if line.startswith("ReservationName="):
                self.scontrol("delete", "reservation", line.partition(" StartTime=")[0].partition("=")[2])
        self.wait(self._is_clean, 40, "a clean cluster")
        self.forget(*self.nodes)

    def forget(self, *nodes: str) -> None:
        """The handoff record of these nodes is gone: what they were out for, and how often they came back."""
        self.update(",".join(nodes), "comment=")

    # -----------------------------------------------------------------------------------------------------------------
    # clients

    def env(self, **more: str) -> dict[str, str]:
        """The environment in which Slurm's clients talk to this lab."""
        return {"PATH": TOOL_DIRS, "SLURM_CONF": str(self.conf), "LC_ALL": "C", "HOME": "/root", **more}

    def client(self, *argv: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a Slurm client; its exit status is the caller's to look at. ``timeout_s``: on a quiet machine."""
        return subprocess.run(
            argv,
            env=self.env(),
            capture_output=True,
            text=True,
            timeout=limit_s(timeout_s),
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
        )

    @cached_property
    def version(self) -> str:
        """Such as ``24.11``."""
        return version_in(self.client("slurmctld", "-V").stdout)

    def has(self, name: str) -> bool:
        """Whether this Slurm has the behaviour of that name in the table of differences."""
        return has(self.version, name)

    def scontrol(self, *args: str) -> subprocess.CompletedProcess[str]:
        """scontrol with these arguments."""
        return self.client("scontrol", *args)

    def update(self, node: str, *settings: str) -> None:
        """``scontrol update nodename=NODE …`` as an administrator would; it must be accepted."""
        done = self.scontrol("update", f"nodename={node}", *settings)
        if done.returncode:
            raise LabError(f"scontrol update {node} {settings}: {done.stderr.strip()}")

    def states(self) -> dict[str, str]:
        """Every node's complete state, in scontrol's words (``IDLE+DRAIN``)."""
        lines = self.scontrol("-a", "-o", "show", "nodes").stdout.splitlines()
        pairs = [(line.split()[0], line.partition(" State=")[2].split()[0]) for line in lines if " State=" in line]
        return {name.partition("=")[2]: state for name, state in pairs}

    def state(self, node: str) -> str:
        """One node's complete state."""
        return self.states()[node]

    def shows(self, node: str, key: str) -> str:
        """What ``scontrol show node`` has after ``key=``, to the end of the line, such as Reason; empty if absent."""
        for line in self.scontrol("show", "node", node).stdout.splitlines():
            if line.strip().startswith(f"{key}="):
                return line.strip().partition("=")[2]
        return ""

    # -----------------------------------------------------------------------------------------------------------------
    # jobs

    def submit(self, node: str = "", script: str = "exec sleep 600", *options: str) -> str:
        """Submit a batch job, on ``node`` if named, and return its id."""
        where = [f"--nodelist={node}"] if node else []
        argv = ["sbatch", "--parsable", "--output=/dev/null", "--ntasks=1", *where, *options, "--wrap", script]
        done = self.client(*argv)
        if done.returncode:
            raise LabError(f"sbatch: {done.stderr.strip()}")
        return done.stdout.strip()

    def run_job(self, node: str = "", script: str = "exec sleep 600", *options: str) -> str:
        """Submit a job and wait until its script runs: slurmctld calls it RUNNING before its Prolog has begun."""
        begun = self.root / "begun" / secrets.token_hex(8)
        job = self.submit(node, f"touch {begun}; {script}", *options)
        self.wait_job(job, "RUNNING")
        self.wait(begun.exists, 20.0, f"the script of job {job} to begin")
        return job

    def job(self, job: str) -> dict[str, str]:
        """The fields of ``scontrol show job``; empty once slurmctld has forgotten it."""
        words = self.scontrol("-o", "show", "job", job).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_job(self, job: str, *states: str, within_s: float = 20.0) -> dict[str, str]:
        """Wait until the job's state is one of ``states`` (COMPLETED, CANCELLED, …) and return its fields."""
        self.wait(lambda: self.job(job).get("JobState") in states, within_s, f"job {job} to be {' or '.join(states)}")
        return self.job(job)

    def start_requeued(self, job: str) -> None:
        """As if slurmctld's two minutes before a requeued job were over. Not at once: a slurmd refuses a credential of
        the second in which it ended the same job, and the job then fails (``decide/on_job.py``)."""
        done = self.scontrol("update", f"jobid={job}", "starttime=now+3")
        if done.returncode:
            raise LabError(f"scontrol update of job {job}: {done.stderr.strip()}")

    def cancel(self, *jobs: str) -> None:
        """Cancel jobs; without a name, all of them."""
        self.client("scancel", "--full", *(jobs or ("--user=root",)))

    # -----------------------------------------------------------------------------------------------------------------
    # faults

    def ctld_stop(self, *, kill: bool = False) -> None:
        """End slurmctld: with its state saved, or by SIGKILL."""
        self._end("slurmctld", signal.SIGKILL if kill else signal.SIGTERM)

    def ctld_start(self) -> None:
        """Start slurmctld again and wait until it answers."""
        self._launch("slurmctld")
        self.wait(lambda: self.scontrol("ping").returncode == 0, 20, "slurmctld to answer")

    def ctld_pause(self) -> None:
        """SIGSTOP slurmctld: it accepts connections and answers nothing."""
        self._signal("slurmctld", signal.SIGSTOP)

    def ctld_resume(self) -> None:
        """SIGCONT slurmctld."""
        self._signal("slurmctld", signal.SIGCONT)

    def munged_pause(self) -> None:
        """SIGSTOP munged: every client hangs, without limit."""
        self._signal("munged", signal.SIGSTOP)

    def munged_resume(self) -> None:
        """SIGCONT munged."""
        self._signal("munged", signal.SIGCONT)

    def munged_stop(self) -> None:
        """End munged; its socket goes away."""
        self._end("munged", signal.SIGTERM)

    def munged_start(self) -> None:
        """Start munged again."""
        self._launch("munged")
        self.wait((self.root / "munge/socket").exists, 10, "munged's socket")

    def slurmd_stop(self, node: str) -> None:
        """End the slurmd of one node; its jobs' slurmstepd live on."""
        self._end(f"slurmd.{node}", signal.SIGTERM)

    def slurmd_start(self, node: str) -> None:
        """Start the slurmd of one node again, as after a restart of the service."""
        self._launch(f"slurmd.{node}")

    def slurmd_boots(self, node: str) -> None:
        """Start the slurmd of one node as after a boot of the machine, and return when slurmctld knows of it.

        slurmd -b tells of a new boot each time that it registers, and slurmctld asks it to after every resume. A real
        boot keeps its time: so once the boot is known, slurmd goes on without -b.
        """
        self._registers(node, "-b")
        self.slurmd_stop(node)
        self._registers(node)

    def reboot(self, node: str) -> None:
        """What slurmctld sees of a reboot: the slurmd ends, and comes back with a new boot time."""
        self.slurmd_stop(node)
        time.sleep(2.2)  # slurmctld compares whole seconds: a boot in the second of the last answer goes unnoticed
        self.slurmd_boots(node)

    # -----------------------------------------------------------------------------------------------------------------
    # waiting, logs

    def wait(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait for a condition. Raises LabError that says what was awaited, the nodes' states and the logs' ends."""
        end_s, pause_s = time.monotonic() + limit_s(within_s), pauses()
        while not condition():
            if time.monotonic() > end_s:
                raise LabError(
                    f"waited {limit_s(within_s):g} s for {what}; nodes: {self._states_or_error()}\n{self.log_tail()}"
                )
            time.sleep(next(pause_s))

    def wait_state(self, node: str, state: str, *, within_s: float = 15.0) -> None:
        """Wait until a node's complete state is exactly ``state``, in scontrol's words."""
        self.wait(lambda: self.states().get(node) == state, within_s, f"{node} to be {state}")

    def log_tail(self, lines: int = 20) -> str:
        """The last lines that each daemon wrote, without the complaints about an MPI plug-in that nobody needs."""
        tails = []
        for path in sorted((self.root / "log").glob("*.out")):
            text = [line for line in path.read_text(errors="replace").splitlines() if "mpi" not in line.lower()]
            tails += [f"--- {path.stem}", *text[-lines:]] if text else []
        return "\n".join(tails)

    def pid(self, daemon: str) -> int:
        """The process of a daemon: ``munged``, ``slurmctld`` or ``slurmd.n0001``."""
        return self._daemons[daemon].pid

    # -----------------------------------------------------------------------------------------------------------------
    # private

    def _registers(self, node: str, *options: str) -> None:
        """Start a slurmd, and wait until slurmctld has its times: those of the boot and of its start, in one line."""
        before = self.shows(node, "BootTime")
        self._launch(f"slurmd.{node}", *options)
        self.wait(lambda: self.shows(node, "BootTime") not in ("", before), 60.0, f"slurmd of {node} to register")

    def _prepare(self) -> None:
        for name in ("log", "run", "state", "spool", "munge", "begun"):
            (self.root / name).mkdir(exist_ok=True)
        self.root.chmod(0o755)  # jobs and hooks of other users read slurm.conf and reach munged's socket
        (self.root / "log").chmod(0o755)
        key = self.root / "munge/key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        ports = free_ports(len(self.nodes) + 1)
        text = conf_text(self.root, dict(zip(self.nodes, ports[1:], strict=True)), ports[0], self._cpus, self._settings)
        self.conf.write_text("\n".join([text, *self._lines, ""]))
        self.conf.chmod(0o644)

    def _start_daemons(self) -> None:
        self.munged_start()
        self.ctld_start()
        for node in self.nodes:
            self.slurmd_start(node)
        self.wait(self._all_idle, 30, "all nodes to be idle")

    def _launch(self, name: str, *flags: str) -> None:
        with open(self.root / "log" / f"{name}.out", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                [*self._argv(name), *flags],
                env=self.env(**self._env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

    def _argv(self, name: str) -> list[str]:
        tool, _, node = name.partition(".")
        path = shutil.which(tool, path=TOOL_DIRS) or tool
        munge = self.root / "munge"
        match tool:
            case "munged":
                files = {
                    "key-file": "key",
                    "socket": "socket",
                    "pid-file": "pid",
                    "log-file": "log",
                    "seed-file": "seed",
                }
                return [
                    path,
                    "-F",
                    "--num-threads=4",
                    *(f"--{option}={munge / file}" for option, file in files.items()),
                ]
            case "slurmctld":
                return [path, "-D", "-f", str(self.conf)]
            case _:
                return [path, "-D", "-f", str(self.conf), "-N", node]

    def _runs(self, name: str) -> bool:
        return name in self._daemons and self._daemons[name].poll() is None

    def _signal(self, name: str, number: signal.Signals) -> None:
        if self._runs(name):
            self._daemons[name].send_signal(number)

    def _end(self, name: str, number: signal.Signals) -> None:
        self._signal(name, signal.SIGCONT)
        self._signal(name, number)
        daemon = self._daemons[name]
        try:
            daemon.wait(limit_s(10))
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(limit_s(5))

    def _end_processes(self) -> None:
        """SIGKILL to all, the daemons first: nothing here is worth saving, and a paused one hears nothing else."""
        for name in self._daemons:
            self._signal(name, signal.SIGKILL)
        for daemon in self._daemons.values():
            daemon.wait(limit_s(10))
        end_s = time.monotonic() + limit_s(5)
        while (left := self._left_behind()) and time.monotonic() < end_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):  # ended between the look and the kill
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._daemons.clear()

    def _left_behind(self) -> list[int]:
        """Processes that carry this lab's SLURM_CONF: slurmstepd, jobs, hooks, slurmctld's helper."""
        record = b"SLURM_CONF=" + str(self.conf).encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = record in (folder / "environ").read_bytes().split(b"\0")
            except OSError:  # ended meanwhile, or not ours to read
                continue
            if is_ours and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        return found

    def _all_idle(self) -> bool:
        """And registered: a slurmctld that has restarted knows no boot time, and calls a node idle that answers."""
        lines = self.scontrol("-a", "-o", "show", "nodes").stdout.splitlines()
        idle = {line.split()[0] for line in lines if " State=IDLE " in line and " BootTime=None " not in line}
        return idle >= {f"NodeName={node}" for node in self.nodes}

    def _start_what_ended(self) -> None:
        for name in ("munged", "slurmctld", *(f"slurmd.{node}" for node in self.nodes)):
            if not self._runs(name):
                self._launch(name)

    def _is_clean(self) -> bool:
        self._start_what_ended()  # a slurmd of the last test may have ended by itself since
        if self.client("squeue", "-h", "-a").stdout.strip():
            self.cancel()
            return False
        if self._all_idle():
            return True
        # state=idle on a healthy node is harmless; it clears DRAIN, DOWN and FAIL without passing through "idle*".
        self.scontrol("cancel_reboot", ",".join(self.nodes))
        self.scontrol("update", f"nodename={','.join(self.nodes)}", "state=idle")
        return self._all_idle()

    def _states_or_error(self) -> str:
        try:
            return str(self.states())
        except subprocess.TimeoutExpired:
            return "slurmctld does not answer"
