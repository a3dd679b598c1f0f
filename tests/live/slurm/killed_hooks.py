"""The processes behind one Slurm hook, each of which can be killed before anything that it does to the world outside.

A process traces its own calls into C (``sys.setprofile``). Each that sends, receives, writes, locks, commits or starts
a command that acts is a boundary, and so is such a command that has just been started: it goes on without the process
that wanted it. Between two of them lie readings alone, which leave the disk and the cluster as they are. Nothing of
healthd is changed for that, and the list is made by a life that is not disturbed.

As a program this forks such processes: ``hook KIND …`` is the hook as ``healthd hook`` runs it, ``door`` the daemon's
side of one: its socket, its verdicts and its reports to slurmctld.
"""

from __future__ import annotations

import gc
import linecache
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from healthd.agent.agent import Agent, acting_agent, catch_up_kernel_log
from healthd.api.server import Server
from healthd.config.load import load as load_config
from healthd.core.check import discover
from tests.live.platforms.killed_agent import Line, Order
from tests.support.forked_healthd import become, fork_for_each, load

PROGRAM = "tests.live.slurm.killed_hooks"
STORY, DIE_AT, OCCURRENCE, PART = "KILLED_STORY", "KILLED_AT", "KILLED_OCCURRENCE", "KILLED_PART"
LATER = "later"
"""The part of a daemon that comes after the one of the hook: its boundaries are no part of the list."""
READY = "ready"
"""The file in the story that a door makes once it listens."""

# By the class or module of a function in C, and its name.
_ACTS = {
    "socket": {"connect", "send", "sendall", "recv", "recv_into", "shutdown", "close"},
    "posix": {"write", "rename", "replace", "unlink", "mkdir", "rmdir", "chmod", "fchmod", "link", "symlink", "kill"},
    "fcntl": {"flock"},
    "TextIOWrapper": {"write"},
    "BufferedWriter": {"write"},
}
_SHELL_WORDS = 4
"""Of run_command, before the tool: the shell, -c, its text, and its name."""


class Trace:
    """Has this process pass a boundary of its part, ``door`` or ``hook``, before each act while it ``is_on``."""

    def __init__(self, line: Line, part: str) -> None:
        self._line, self._part, self.is_on = line, part, False

    def begin(self) -> None:
        """In this thread, and in each that is started from now on."""
        sys.setprofile(self._profile)
        threading.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, function: Any) -> None:
        if not self.is_on or event not in ("c_call", "c_return"):
            return
        if function.__name__ == "fork_exec":
            if what := _command(frame):
                self._line.passing(f"{self._part}: {'before' if event == 'c_call' else 'during'} {what}")
        elif event == "c_call" and (what := _act(frame, function)):
            self._line.passing(f"{self._part}: {what}")


def _act(frame: FrameType, function: Any) -> str:
    """What this call does to the world outside, in words; "" for nothing."""
    name, owner = function.__name__, function.__self__
    kind = owner.__name__ if isinstance(owner, type(sys)) else type(owner).__name__
    if kind == "Connection" and name == "execute":
        writes = frame.f_code.co_name == "_transaction" and frame.f_locals.get("writes")
        is_commit = writes and "COMMIT" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        return f"commit {_wanted_by(frame)}" if is_commit else ""
    return f"{name} in {frame.f_code.co_name}" if name in _ACTS.get(kind, ()) else ""


def _wanted_by(frame: FrameType) -> str:
    """The method of the store whose transaction this is."""
    above = frame.f_back
    while above is not None and not above.f_code.co_filename.endswith("state/store.py"):
        above = above.f_back
    return above.f_code.co_name if above is not None else "?"


def _command(frame: FrameType) -> str:
    """The tool and the first words of a command that acts, without what differs from life to life; "" of one that
    reads."""
    above: FrameType | None = frame
    while above is not None and "args" not in above.f_locals:
        above = above.f_back
    argv = list(above.f_locals["args"]) if above is not None else ["?"]
    tool, *words = argv[_SHELL_WORDS:] or argv
    if os.path.basename(tool) in ("sinfo", "squeue") or "show" in words:
        return ""
    return re.sub(r"\d+", "#", " ".join([os.path.basename(tool), *(re.sub("=.*", "", word) for word in words[:4])]))


# ---------------------------------------------------------------------------------------------------------------------
# the daemon's side


class _Log:
    """The daemon's log, which no test reads."""

    def info(self, *_: object, **__: object) -> None:
        """As structlog."""

    warning = error = info


def door(config: Path, story: Path, trace: Trace, *, acts: bool) -> None:
    """A daemon's socket and what is behind it, until SIGTERM. ``acts``: its engine reconciles, too."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    checks = {name: check.settings for name, check in discover().items()}
    settings = load_config(config, checks=checks, environ={}).config
    trace.begin()
    agent = acting_agent(settings, source="daemon", environ=os.environ, changed=lambda: None)
    catch_up_kernel_log(agent)
    agent.checkup.report(deadline_s=20.0)
    server = Server(settings.daemon.socket, agent, group="", log=_Log())
    threading.Thread(target=server.serve, daemon=True).start()
    trace.is_on = os.environ[PART] != LATER
    (story / READY).touch()
    _work(agent, ended, acts=acts)


def _work(agent: Agent, ended: threading.Event, *, acts: bool) -> None:
    verdicts, engine = agent.job_verdicts, agent.engine
    assert verdicts is not None
    assert engine is not None
    while not ended.is_set():
        verdicts.wake.clear()
        wait_s, _ = verdicts.tell()
        if acts:
            engine.reconcile(datetime.now(UTC))
            wait_s = 0.05
        verdicts.wake.wait(min(wait_s, 0.2))


def main(arguments: Sequence[str]) -> int:
    """One process, as it was ordered."""
    story = Path(os.environ[STORY])
    order = Order(story=str(story), machine="", die_at=os.environ[DIE_AT], occurrence=int(os.environ[OCCURRENCE]))
    trace = Trace(Line(order), os.environ[PART])
    if arguments[0] == "door":
        door(Path(arguments[1]), story, trace, acts="acts" in arguments)
        return 0
    from healthd.__main__ import main as healthd

    trace.is_on = True
    trace.begin()
    code = healthd(list(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    load()
    gc.freeze()  # what all share stays shared
    asked = become(*fork_for_each(sys.argv[1]))
    sys.exit(main(asked))
