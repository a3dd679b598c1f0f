"""kill -9 of a Slurm hook, and of the daemon that it asks, before everything that either does to the world outside.

The shipped scripts, the hook, the daemon's socket, its store and a real slurmctld; what is killed is a process that
really dies. A hook's life is played once undisturbed, which lists its boundaries; then once for each of them. Wherever
one dies: a job is refused, and a node blamed, only behind healthd's own drain, which stands; the verdict is written
down and told once; a node counts once; and the script ends.

`make test-exhaustive` plays all of these lives, `make test` a sample of them (tests/support/sampling.py).
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import Struct

from healthd.agent.job_verdicts import BLAMED, NOTES
from healthd.core.check import discover
from healthd.remediation.decide.blame_limit import drained_before
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.state.store import Store
from tests.live.slurm.killed_hooks import DIE_AT, LATER, OCCURRENCE, PART, PROGRAM, READY, STORY
from tests.live.slurm.slurm_lab import SlurmLab
from tests.live.slurm.test_hooks import OUT_OF_TIME, SCRIPTS
from tests.live.slurm.test_spine import PCI, quarantine
from tests.support.forked_healthd import ForkedHealthd, server_of
from tests.support.killing import Kill, Played
from tests.support.limits import limit_s, pauses
from tests.support.running import OFF_THE_BUS, RunningNode
from tests.support.sampling import of_this_run

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

CHECK = "kernel.xid"
ENDS_WITHIN_S = 26.0
"""A script asks twice at most, for 13 s each."""
KILLS_OF_EACH = 2
TRIES = 5
WORDS = {"epilog": "blame healthd: ", "prolog": "print healthd: "}
HOOKS = {
    "epilog": ("epilog", True),
    "epilog, no daemon": ("epilog", False),
    "prolog": ("prolog", True),
    "prolog, no daemon": ("prolog", False),
}
"""The lives: which hook, and whether a daemon runs."""

# The hook that the scripts start: it has the process that forks hooks start it, with its own streams, and ends as that.
_CONNECTOR = """#!{python} -IS
import _socket, json, os, sys
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.connect({path!r})
order = {{"arguments": [*sys.argv[1:], "--config", {config!r}, "--socket", {socket!r}], "environ": dict(os.environ)}}
fds = b"".join(each.to_bytes(4, sys.byteorder) for each in (0, 1, 2))
server.sendmsg([json.dumps(order).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
server.recv(100)
code = int(server.recv(100))
os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
"""


class Ending(Struct, frozen=True, kw_only=True):
    """What a life left. ``code``: of the script; ``words``: whether healthd's own went with it. ``ours``: whether the
    drain was ours when the script ended, and was at the end; ``slots``: of this node. ``counted``: how many more nodes
    count as drained within the hour. ``verdicts`` on this job in the audit trail, ``comments`` in its AdminComment;
    ``blamed``: whether the node's summary names its run.
    """

    code: int
    words: bool
    ours: tuple[bool, bool] = (True, True)
    slots: int = 1
    counted: int
    verdicts: int
    comments: int
    blamed: bool


ENDINGS = {
    "epilog": Ending(code=1, words=True, counted=0, verdicts=1, comments=1, blamed=True),
    "prolog": Ending(code=1, words=True, counted=1, verdicts=0, comments=0, blamed=False),
}


class Site:
    """The cluster, the job, and for each kind of hook the node that it runs on and what that has on its disk."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.lab, self.folder, self._numbers = lab, folder, itertools.count(1)
        self.job = lab.submit("", "exec true", "--hold")
        self.nodes = dict(zip(("epilog", "prolog"), lab.nodes, strict=True))
        self.before: dict[str, RunningNode] = {}
        for kind in self.nodes:
            self._prepare(kind)

    def new(self, kind: str) -> RunningNode:
        """A node, which has what that of another life had before its hook."""
        others = "".join(f'[checks."{each}"]\nenabled = false\n' for each in discover() if each != CHECK)
        sections = quarantine(more="blame_in_epilog = true") + f'conf = "{self.lab.conf}"\n' + others
        node = RunningNode(self.folder / str(next(self._numbers)), self.nodes[kind], sections=sections)
        if (before := self.before.get(kind)) is not None:
            shutil.copy(before.kmsg, node.kmsg)
            if before.state_dir.exists():
                shutil.copytree(before.state_dir, node.state_dir)
        return node

    def slurm(self, node: str) -> SlurmOrchestrator:
        return SlurmOrchestrator(node=node, conf=str(self.lab.conf))

    def comment(self) -> str:
        """The job's AdminComment."""
        return self.lab.client("squeue", "-h", "-t", "all", "-j", self.job, "-O", "admin_comment:|").stdout

    def clean(self, node: str) -> None:
        """Nothing of healthd's is left on this node."""
        self.lab.scontrol("update", f"nodename={node}", "state=undrain")
        for slot in self.slurm(node).slots():
            if slot.node == node:
                self.slurm(node).give_back(slot)
        self.lab.forget(node)

    def _prepare(self, kind: str) -> None:
        """The GPU is lost. Before an epilog healthd has drained the node for that, before a prolog it is to."""
        node = self.new(kind)
        node.kernel_says(OFF_THE_BUS.format(pci=PCI))
        self.before[kind] = node
        if kind == "epilog":
            life = Life(self, "epilog")
            door = life.door(None, acts=True)
            life.until(life.has_drained, "drained")
            end(door)
            self.before[kind] = life.node


class Life:
    """One hook of one job, on a node whose GPU fell off the bus while the job ran."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, (self.kind, self.has_daemon) = site, HOOKS[name]
        self.node = site.new(self.kind)
        self.story = self.node.folder
        self._connector()

    def play(self, kill: Kill | None = None) -> Played[Ending]:
        """To the end, with the daemon that comes after the one that died."""
        counted, door = self.counted(), self.door(kill) if self.has_daemon else None
        code, out, err = self._hook(kill)
        is_ours = self.is_ours()
        if door is not None:
            self.until(lambda: door.poll() is not None or self.has_told(), "its daemon tells")
            end(door)
        successor = self.door(None, part=LATER, acts=self.kind == "prolog")
        self.until(self.has_told if self.kind == "epilog" else self.has_drained, "the next daemon goes on")
        end(successor)
        with closing(self.store()) as store:
            verdicts = len(store.events_of_job(self.site.job))
            blamed = f'"{self.site.job}:1"' in store.fact(BLAMED)
        ending = Ending(
            code=code,
            words=WORDS[self.kind] in out,
            ours=(is_ours, self.is_ours()),
            slots=len([slot for slot in self.site.slurm(self.node.name).slots() if slot.node == self.node.name]),
            counted=self.counted() - counted,
            verdicts=verdicts,
            comments=self.site.comment().count(f"healthd: node {self.node.name} gpu"),
            blamed=blamed,
        )
        killed_at = (kill.boundary, kill.occurrence) if kill is not None and self.was_killed(kill) else None
        return Played(ending=ending, passed=tuple(self.passed()), killed_at=killed_at, told=out + err)

    def close(self) -> None:
        """Nothing of it is left for the next."""
        self.site.lab.scontrol("update", f"jobid={self.site.job}", "admincomment=")
        if self.kind == "prolog":
            self.site.clean(self.node.name)

    def door(self, kill: Kill | None, *, part: str = "door", acts: bool = False) -> ForkedHealthd:
        """A daemon, once it listens."""
        (self.story / READY).unlink(missing_ok=True)
        arguments = ["door", str(self.node.config), *(["acts"] if acts else [])]
        with (self.story / "door.log").open("ab") as log, open(os.devnull, "rb") as nothing:
            streams = [nothing.fileno(), log.fileno(), log.fileno()]
            made = ForkedHealthd(arguments, {**os.environ, **self._order(part, kill)}, streams, program=PROGRAM)
        self.until((self.story / READY).exists, "the daemon listens")
        return made

    def has_told(self) -> bool:
        """Whether no sentence waits for slurmctld."""
        with closing(self.store()) as store:
            return store.fact(NOTES) in ("", "[]")

    def has_drained(self) -> bool:
        """Whether its store knows the drain, and it stands."""
        with closing(self.store()) as store:
            remediation = store.open_remediation()
        return remediation is not None and remediation.hold is not None and self.is_ours()

    def is_ours(self) -> bool:
        hold = self.site.slurm(self.node.name).view().hold
        return hold is not None and hold.text.startswith(f"healthd: gpu.xid.79 gpu:{PCI}")

    def counted(self) -> int:
        """How many nodes healthd drained within the hour, as another node counts them for max_blamed_per_hour."""
        return drained_before(self.site.slurm(self.node.name).snapshot(), "zzz", datetime.now(UTC))

    def store(self) -> Store:
        return Store(self.node.state_dir / "healthd.db", now=datetime.now(UTC))

    def passed(self) -> list[str]:
        path = self.story / "passed"
        return path.read_text().splitlines() if path.exists() else []

    def was_killed(self, kill: Kill) -> bool:
        return self.passed().count(kill.boundary) >= kill.occurrence

    def _hook(self, kill: Kill | None) -> tuple[int, str, str]:
        """Run the shipped script as Slurm does. (exit code, stdout, stderr)."""
        job = {
            "SLURM_JOB_ID": self.site.job,
            "SLURM_JOB_USER": "root",
            "SLURM_JOB_NODELIST": self.node.name,
            "SLURM_JOB_EXIT_CODE2": "3:0",
            "SLURM_JOB_START_TIME": str(int(time.time()) - 3600),
            "SLURM_JOB_RESTART_COUNT": "1",  # one more than slurmctld knows of: the job runs again already
        }
        slurm = {"SLURMD_NODENAME": self.node.name, "SLURM_CONF": str(self.site.lab.conf)}
        done = subprocess.run(
            [SCRIPTS / f"{self.kind}.sh"],
            env={**job, **slurm, "HEALTHD": str(self.story / "healthd"), **self._order("hook", kill)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s(ENDS_WITHIN_S),
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def _order(self, part: str, kill: Kill | None) -> dict[str, str]:
        at = kill.boundary if kill is not None and kill.boundary.startswith(f"{part}: ") else ""
        occurrence = str(kill.occurrence if kill is not None else 1)
        return {STORY: str(self.story), PART: part, DIE_AT: at, OCCURRENCE: occurrence}

    def _connector(self) -> None:
        path = self.story / "healthd"
        names = {"config": str(self.node.config), "socket": str(self.node.socket)}
        path.write_text(_CONNECTOR.format(python=sys.executable, path=server_of(PROGRAM), **names))
        path.chmod(0o755)

    def until(self, condition: Callable[[], object], what: str) -> None:
        until_s, pause_s = time.monotonic() + limit_s(5), pauses()
        while not condition():
            assert time.monotonic() < until_s, f"{what}\n{(self.story / 'door.log').read_text()[-3000:]}"
            time.sleep(next(pause_s))


@pytest.fixture(scope="module")
def site(slurm_lab_factory: Callable[..., SlurmLab], tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A cluster whose slurmctld asks its Epilogs; on a Slurm that does not know of that, healthd takes it for one."""
    lab = slurm_lab_factory(nodes=2, conf={"SlurmctldParameters": "enable_expedited_requeue"})
    return Site(lab, tmp_path_factory.mktemp("k"))


@pytest.fixture(scope="module")
def plain(site: Site) -> dict[str, Played[Ending]]:
    """Each life, undisturbed."""
    return {name: played(site, name) for name in HOOKS}


@pytest.fixture(scope="module")
def kills(plain: dict[str, Played[Ending]]) -> dict[str, list[Kill]]:
    """Where each life is cut."""
    everywhere = {name: life.kills() for name, life in plain.items()}
    return of_this_run().of(everywhere, kind=lambda _: "any", least=KILLS_OF_EACH)


def played(site: Site, name: str, kill: Kill | None = None) -> Played[Ending]:
    """One life. A hook that ran out of its time on a busy machine says so, and its job passes: another is played."""
    for left in range(TRIES, 0, -1):
        life = Life(site, name)
        try:
            done = life.play(kill)
        finally:
            life.close()
        if done.ending.code or left == 1 or not any(words in done.told for words in OUT_OF_TIME):
            return done
    raise AssertionError("a life is played to its end")


def end(process: ForkedHealthd) -> None:
    """kill -9, if it has not ended."""
    process.send_signal(signal.SIGKILL)
    process.wait(limit_s(10))


@pytest.mark.parametrize("name", HOOKS)
def test_undisturbed_it_answers_behind_our_drain(plain: dict[str, Played[Ending]], name: str) -> None:
    """Exit 1 with healthd's own words; one drain, and of the epilog one verdict, told once. The list holds every kind
    of act: to the daemon or the lock, to the store, to slurmctld, and of the answer."""
    life = plain[name]
    assert life.ending == ENDINGS[HOOKS[name][0]], life.told
    has_daemon, text = HOOKS[name][1], "\n".join(life.passed)
    for words in ("connect in", "commit ", "during scontrol update", "sendall in sent" if has_daemon else "flock in"):
        assert words in text


@pytest.mark.parametrize("name", HOOKS)
def test_killed_at_any_boundary_it_ends_in_the_same_place(
    site: Site, kills: dict[str, list[Kill]], name: str, record_property: Callable[[str, object], None]
) -> None:
    """A hook that was killed is asked again, and one whose daemon was judges by itself: nothing is blamed or refused
    without our drain, no verdict is lost or told twice, and no node counts twice."""
    wrong = []
    for kill in kills[name]:
        life = played(site, name, kill)
        missed = life.killed_at is None and may_be_missing(kill)
        if not (missed or life.killed_at is not None) or life.ending != ENDINGS[HOOKS[name][0]]:
            wrong.append(f"{kill}: killed at {life.killed_at}: {life.ending}\n{life.told}")
    record_property("killed_hooks", f"{name}: {len(kills[name])} kills")
    assert not wrong, f"{len(wrong)} of {len(kills[name])}:\n" + "\n".join(wrong)


def may_be_missing(kill: Kill) -> bool:
    """What is said of a remediation, and what a check saw, is written as often as it changes; an answer may come in one
    piece or in two."""
    return kill.occurrence > 1 or "commit save_" in kill.boundary
