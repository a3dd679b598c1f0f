"""A real healthd daemon in a process of its own, with a folder of its own: what scenario tests and benchmarks start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from healthd.api.client import ask
from healthd.api.wire import Request
from healthd.core.errors import NoDaemon
from healthd.core.model import Event
from healthd.state.store import Store
from tests.support import forked_healthd
from tests.support.forked_healthd import ForkedHealthd
from tests.support.limits import limit_s, pauses

ROOT = Path(__file__).resolve().parents[2]

OFF_THE_BUS = "NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
UNCONTAINED = "NVRM: Xid (PCI:{pci}): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"
RECOVERED = "NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
NOBODY = 65534
QUARANTINES = """
[remediation]
mode = "quarantine"
settle_s = 0.5
opt_out_file = ""
[orchestrator]
kind = "local"
"""
"""Sections of a node that is taken out at once, on an orchestrator of its own."""
# The interpreter may lie where only root may go, so the privilege is dropped inside.
_AS_NOBODY = f"""
import os, sys
from healthd.api.client import ask
from healthd.api.wire import Request

os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
answer = ask(sys.argv[1], Request(arguments=tuple(sys.argv[2:])), print)
sys.stdout.write(answer.out)
sys.stderr.write(answer.err)
sys.exit(answer.code)
"""


def _no_progress(text: str) -> None:
    """What is asked here takes no time that would have to be reported."""


HEEDS_SIGINT = ("env", "--default-signal=INT")
"""Before a command that a test ends by SIGINT: whoever runs in the background, as CI may, ignores it, and so would a
child."""


def command_line(
    arguments: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run healthd with these arguments to its end, forked where its environment allows it."""
    if forked_healthd.fits(environ):
        return forked_healthd.run(arguments, environ, timeout_s)
    argv = [sys.executable, "-m", "healthd", *arguments]
    return subprocess.run(
        argv, env=dict(environ), capture_output=True, text=True, timeout=timeout_s, check=False, cwd="/"
    )


class Running:
    """A healthd in a process of its own, by the verb that keeps running.

    ``as_program``: started as in service. Otherwise it is forked from a process that has it loaded.
    """

    process: subprocess.Popen[bytes] | ForkedHealthd | None = None
    as_program = False

    def begin(self, verb: str, config: Path, log: Path, environ: Mapping[str, str]) -> None:
        """Start it; what it says goes to ``log``."""
        arguments = [verb, "--config", str(config)]
        with log.open("ab") as message, open(os.devnull, "rb") as nothing:
            if forked_healthd.fits(environ) and not self.as_program:
                self.process = ForkedHealthd(arguments, environ, [nothing.fileno(), message.fileno(), message.fileno()])
                return
            argv = [sys.executable, "-m", "healthd", *arguments]
            self.process = subprocess.Popen(
                argv, stdin=nothing, stderr=message, stdout=message, env=dict(environ), cwd="/", start_new_session=True
            )

    def kill(self) -> None:
        """kill -9: no last words."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """SIGTERM, and the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int | None:
        process, self.process = self.process, None
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(number)
        return process.wait(timeout=limit_s(60.0))


class RunningNode(Running):
    """One node with a daemon. ``sections`` are further TOML tables of its configuration, as text.

    The kernel log is a growing file that the test writes; everything else is this machine, unless ``sections`` says
    otherwise.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        sections: str = "",
        environ: Mapping[str, str] | None = None,
        kmsg: str = "",
        http: str = "",
    ) -> None:
        self.folder, self.name, self._http = folder, name, http
        folder.mkdir(parents=True, exist_ok=True)
        self.kmsg = Path(kmsg) if kmsg else folder / "kmsg"
        self.socket, self.state_dir, self.config = folder / "s", folder / "state", folder / "config.toml"
        self.log = folder / "log"
        self._sequence = 0
        if not kmsg:
            self.kmsg.touch()
        self._environ = {
            **os.environ,
            "AWS_EC2_METADATA_DISABLED": "true",
            **(environ or {}),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [(environ or {}).get("PYTHONPATH")])]),
        }
        self.configure(sections)

    def configure(self, sections: str) -> None:
        """Write the configuration; a running daemon reads it when it is started again."""
        daemon = f'[daemon]\nsocket = "{self.socket}"\nstate_dir = "{self.state_dir}"\nhttp = "{self._http}"\n'
        base = f'[node]\nname = "{self.name}"\n{daemon}'
        sources = "" if "[sources]" in sections else f'[sources]\nkmsg = "{self.kmsg}"\n'
        self.config.write_text(base + sources + sections)

    def see(self, name: str, value: str) -> None:
        """Set a variable of its environment for the next start; "" takes it away."""
        self._environ.pop(name, None)
        if value:
            self._environ[name] = value

    def start(self, *, within_s: float = 20.0) -> None:
        """Start the daemon and wait until it answers."""
        self.begin("run", self.config, self.log, self._environ)
        self.wait(lambda: self._listens() and self.status() is not None, within_s, "the daemon answers")

    def well(self, within_s: float = 30.0) -> None:
        """Wait until every check has looked and all is well: before that NVML may tell of a fault that a test makes
        before the kernel log does, and in other words."""
        self.wait(lambda: self._verdict() == "ok", within_s, "every check has looked, and all is well")

    def _verdict(self) -> str:
        """The verdict, or "" while nobody answers: a daemon starts again by itself where the metadata service of a busy
        machine was too late for its start."""
        try:
            answer = ask(str(self.socket), Request(arguments=("check", "--json")), _no_progress)
        except NoDaemon:
            return ""
        return str(json.loads(answer.out)["verdict"]) if answer is not None else ""

    def _listens(self) -> bool:
        """Whether anybody is at the socket: cheaper to ask than by a process of its own, and often to be asked."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    # -- the kernel ---------------------------------------------------------------------------------------------------

    def kernel_says(self, text: str, *, clock_by_s: int = 0) -> float:
        """Append one record of the kernel itself; returns the wall-clock time just before.

        ``clock_by_s``: by how much this node's wall clock is off. Where a real one is set, the kernel's time of its
        boot is moved with it, which dates the records; here that is the machine's own, and stays.
        """
        self._sequence += 1
        microseconds = max(0, int((time.monotonic() + clock_by_s) * 1e6))
        at = time.time()
        with self.kmsg.open("a") as log:
            log.write(f"4,{self._sequence},{microseconds},-;{text}\n")
        return at

    def kernel_say(self, texts: Sequence[str]) -> None:
        """Append many records at once."""
        microseconds = int(time.monotonic() * 1e6)
        with self.kmsg.open("a") as log:
            for text in texts:
                self._sequence += 1
                log.write(f"4,{self._sequence},{microseconds},-;{text}\n")

    # -- asking -------------------------------------------------------------------------------------------------------

    def healthd(self, *arguments: str, timeout_s: float = 60.0, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command line in a process of its own."""
        return command_line(arguments, {**self._environ, **environ}, limit_s(timeout_s))

    def as_nobody(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What the daemon answers another user. Needs root. Asked from inside the node's folder: another session of
        pytest may close the folders above it at any moment."""
        self.folder.chmod(self.folder.stat().st_mode | 0o011)
        argv, environ = [sys.executable, "-c", _AS_NOBODY, self.socket.name, *arguments], {"PYTHONPATH": str(ROOT)}
        return subprocess.run(
            argv, env=environ, capture_output=True, text=True, timeout=limit_s(30.0), check=False, cwd=self.folder
        )

    def open_to_all(self) -> None:
        """Let other users reach its folder below the test's own, which pytest keeps to its owner."""
        for path in (self.folder, *self.folder.parents):
            if path.owner() == "root" and path != Path("/"):
                path.chmod(path.stat().st_mode | 0o011)

    def check(self, *names: str) -> dict[str, Any]:
        """The verdict, as the daemon gives it. Asked from here: tests ask until something is so, and a process for each
        time takes the core from what they wait for."""
        answer = ask(str(self.socket), Request(arguments=("check", *names, "--json")), _no_progress)
        assert answer is not None, f"{self.name}: no daemon listens"
        data: dict[str, Any] = json.loads(answer.out)
        return data

    def status(self) -> dict[str, Any] | None:
        """What ``healthd status`` says, or None while nobody answers. Asked from here, as ``check``."""
        try:
            answer = ask(str(self.socket), Request(arguments=("status", "--json")), _no_progress)
        except NoDaemon:
            return None
        if answer is None or answer.code != 0:
            return None
        data: dict[str, Any] = json.loads(answer.out)
        return data

    def events(self) -> tuple[Event, ...]:
        """The audit trail, read from the database."""
        store = Store(self.state_dir / "healthd.db", now=datetime.now(UTC))
        try:
            return store.events()
        finally:
            store.close()

    def log_text(self) -> str:
        """All sentences of the audit trail, one a line."""
        return "\n".join(f"{event.kind}: {event.text}" for event in self.events())

    def wait(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Poll until it is so; fail with the end of the daemon's log."""
        end, pause_s = time.monotonic() + limit_s(within_s), pauses()
        while not condition():
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(
                    f"{self.name}: the daemon ended with {self.process.returncode}:\n{self._log_end()}"
                )
            if time.monotonic() > end:
                raise AssertionError(f"{self.name}: not within {limit_s(within_s):g} s: {what}\n{self._log_end()}")
            time.sleep(next(pause_s))

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "(no log)"
