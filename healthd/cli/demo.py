"""``healthd demo``: a real daemon on a SIMULATED p5.48xlarge; XID 79; drained, repaired, verified, back.

The demo plays the machine and its service manager: it makes the GPU fail, and when the daemon requests a reboot it
kills the daemon, boots the machine and starts the daemon again. Everything else is the daemon's own work, and the
timeline comes from its audit store.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from healthd.api.timeline import CHECK, Trail, stored_names, trail_data
from healthd.api.wire import Reply
from healthd.cli.output import end_by_signal, progress, talk
from healthd.core.errors import HealthdError
from healthd.core.json_documents import json_document
from healthd.core.name_lists import number_of
from healthd.remediation.decide.remediation import End, Remediation
from healthd.sim.machine import SimulatedMachine
from healthd.state.store import Store

_TIME_S = 55.0
_FAILS_ON_GPU = 3
_REBOOT_ASKED = "reboot asked for"  # a machine goes down some seconds later; the daemon has written this by then


class DemoError(HealthdError):
    """The demo did not end with the node back in service."""


def answer(options: Namespace) -> Reply:
    """Run the demo. Exit 0 only if the audit store says that the node went out, was repaired and came back."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup a terminal may go
            signal.signal(number, end_by_signal)  # the daemon ends with this, and by nothing else
    folder = Path(tempfile.mkdtemp(prefix="healthd-demo-"))
    machine = SimulatedMachine(folder, reboot_fails=options.fail_provisioner)
    show = _Show(machine, talk if options.json else progress)
    ending = show.as_json if options.json else show.ending
    try:
        with machine.living():
            show.play()
        return Reply(code=0, out=ending())
    except DemoError as error:
        return Reply(code=1, out=ending(), err=f"healthd demo FAILED: {error}\n")
    finally:
        show.stop()
        if options.keep:
            show.say(f"the files of the simulated node are in {folder}")
        else:
            shutil.rmtree(folder)


class _Show:
    def __init__(self, machine: SimulatedMachine, say: Callable[[str], None]) -> None:
        self._machine, self._began, self.say = machine, time.monotonic(), say
        self._daemon: subprocess.Popen[bytes] | None = None

    def play(self) -> None:
        """Healthy; a GPU falls off the bus; play the machine until the remediation ends."""
        self.say(
            "SIMULATED p5.48xlarge: 8 GPUs, 32 EFA devices, Lustre. Constructed, not hardware; the daemon is real."
        )
        self._start()
        self.say(self._wait_healthy())
        self.say(f"XID 79 arrives: GPU {_FAILS_ON_GPU} falls off the bus ...")
        self._machine.driver_reports_loss(_FAILS_ON_GPU)
        self._wait_for_the_fault()  # on a busy machine a check of NVML could come before the line
        self._machine.nvml_loses(_FAILS_ON_GPU)
        remediation = self._wait_for_the_end()
        if remediation.end is not End.RELEASED:
            raise DemoError(f"the remediation ended as {remediation.end}: {remediation.note}")
        self.say(self._wait_healthy())

    def ending(self) -> str:
        """The timeline from the audit store, without the lines of check runs, as ``healthd history``."""
        trail = self._audit()
        lines = ["", "Timeline, from the audit store (SIMULATED node):"]
        lines += [
            f"  {event.at:%H:%M:%S}.{event.at.microsecond // 1000:03d}  {event.kind:<9} {trail.names.plain(event.text)}"
            for event in trail.events
            if event.kind != CHECK
        ]
        took = time.monotonic() - self._began
        ends = ", ".join(
            f"{remediation.code}: {remediation.end or 'open'} after {number_of(remediation.attempts, 'repair attempt')}"
            for remediation in trail.remediations
        )
        return "\n".join(lines) + f"\n\n{ends or 'no remediation was opened'}; {took:.1f} s in all\n"

    def as_json(self) -> str:
        """The same as data, in the shape of ``healthd history --json``."""
        return json_document({"simulated": True, **trail_data(self._audit())})

    def stop(self) -> None:
        """End the daemon that the demo started."""
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.terminate()
            self._daemon.wait(timeout=20)

    def _start(self) -> None:
        argv = [sys.executable, "-P", "-m", "healthd", "run", "--config", str(self._machine.config)]
        with (self._machine.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(argv, stdout=log, stderr=log)

    def _wait_healthy(self) -> str:
        argv = [sys.executable, "-P", "-m", "healthd", "check", "--socket", str(self._machine.socket)]
        while self._time_is_left("a healthy verdict"):
            answered = (
                subprocess.run(argv, capture_output=True, text=True, check=False)
                if self._machine.socket.exists()
                else None
            )
            if answered is not None and answered.returncode == 0:
                return answered.stdout.rstrip()
            time.sleep(0.2)
        raise AssertionError("unreachable: the deadline raises")

    def _wait_for_the_fault(self) -> None:
        while self._time_is_left("a fault"):
            if any(event.kind == "fault" for event in self._audit().events):
                return
            time.sleep(0.05)

    def _wait_for_the_end(self) -> Remediation:
        while self._time_is_left("the remediation ends"):
            trail = self._audit()
            if self._machine.reboot_is_wanted and any(_REBOOT_ASKED in event.text for event in trail.events):
                self._power_cycle()
            ended = [remediation for remediation in trail.remediations if remediation.end is not None]
            if ended:
                return ended[-1]
            time.sleep(0.2)
        raise AssertionError("unreachable: the deadline raises")

    def _power_cycle(self) -> None:
        """The effect of a reboot on a daemon: killed without warning, and started on the new boot by its service
        manager."""
        assert self._daemon is not None  # noqa: S101 - narrows the type: play() started it
        self._daemon.kill()
        self._daemon.wait()
        self._machine.reboot()
        self.say("the machine reboots: it kills the daemon, and systemd starts it again")
        self._start()

    def _time_is_left(self, what: str) -> bool:
        if time.monotonic() - self._began > _TIME_S:
            raise DemoError(f"no result within {_TIME_S:g} s: {what}")
        if self._daemon is not None and (code := self._daemon.poll()) is not None:
            raise DemoError(
                f"the daemon ended with exit code {code}: {(self._machine.folder / 'log').read_text()[-2000:]}"
            )
        return True

    def _audit(self) -> Trail:
        path = self._machine.state_dir / "healthd.db"
        if not path.exists():
            return Trail(events=())
        store = Store(path, now=datetime.now(UTC))
        try:
            return Trail(events=store.events(), remediations=store.remediations(), names=stored_names(store))
        finally:
            store.close()
