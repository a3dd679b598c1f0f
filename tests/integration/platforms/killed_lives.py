"""Plays the life of a case again and again, on a real Slurm node and against AWS's endpoints, with a kill -9 in each.

A life is one node's: a fault, the repair that its policy calls for, the platform's answer, the way back. Its agent is a
process (``killed_agent``); this side starts it, sees how it ended, plays the platform's part when the platform was
really asked, and counts from outside what was asked for. Lives run side by side, one to a node.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from healthd.store import Store
from tests.integration.aws.moto_server import dummy_env
from tests.integration.platforms.killed_agent import Order, Rest
from tests.integration.platforms.killed_owners import Owner, Site
from tests.integration.slurm.slurm_lab import LabError, SlurmLab

ROOT = Path(__file__).resolve().parents[3]
MACHINE_TYPE = "p5.48xlarge"
LONGER_THAN_ANY_TIMEOUT_S = 20_000.0
_PROCESSES = 12  # of one life; more than that is a loop
_ORPHAN_ENDS_WITHIN_S = 20.0

# Counts what Slurm is really asked for, by whichever process asks.
_SCONTROL = '#!/bin/sh\necho "$*" >>"$KILLED_STORY/scontrol"\nexec {real} "$@"\n'
_SYSTEMCTL = """#!/bin/sh
case "$1" in
is-active) test -e "$KILLED_MACHINE/services/$2" && echo active || echo inactive;;
stop) rm -f "$KILLED_MACHINE/services/$2";;
start) : >"$KILLED_MACHINE/services/$2";;
esac
"""
_NVIDIA_SMI = """#!/bin/sh
case "$1" in
--gpu-reset)
    test -z "$(ls "$KILLED_MACHINE/services")" || { echo "In use by another client" >&2; exit 19; }
    echo reset >>"$KILLED_STORY/resets"; rm -f "$KILLED_MACHINE/fault";;
esac
"""
SERVICES = ("nvidia-persistenced", "nvidia-fabricmanager")


class Nursery:
    """A process that forks agents, one after the other."""

    def __init__(self, program: str = "tests.integration.platforms.killed_agent") -> None:
        environ = {**dummy_env(), "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-m", program]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=ROOT, text=True
        )

    def live(self, order: Order) -> Mapping[str, int]:
        """Start an agent, and return how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it; none of its agents lives."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One platform with one repair. ``code`` and ``remedy``: of what the node has."""

    name: str
    owner: type[Owner]
    code: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Where a life ended, as it is seen from outside, and in the store of the machine that is there now."""

    state: str
    reason: str
    slots: tuple[str, ...]
    ends: tuple[str, ...]
    open_case: bool
    asked: int
    drains: int
    services: tuple[str, ...] = ()


@dataclass
class Life:
    """One life of a case on one node, with its folders.

    ``folder`` holds ``passed`` (every boundary), ``said`` (the engine's sentences), ``scontrol`` (every call of it),
    ``time``, and the machines m1, m2, …: each with its own trees sys and proc, its own configuration and its own store.
    ``killed_at``: the boundary's name, and which of that name it was. ``undisturbed``: nobody is killed, and AWS's
    child and slurmd are started as in service.
    """

    scenario: Scenario
    node: str
    folder: Path
    site: Site
    nursery: Nursery
    undisturbed: bool = False
    machines: int = 0
    carried_out: int = 0
    killed_at: tuple[str, int] | None = None
    owner: Owner = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "time").write_text(str(float(int(time.time()))))
        self.owner = self.scenario.owner(self.site, self.node, self.folder, in_full=self.undisturbed)
        self._another_machine(self.owner.launches())
        (self.machine / "fault").write_text(f"{self.scenario.code} {self.scenario.remedy}\n")

    @property
    def machine(self) -> Path:
        """The folder of the machine that is behind the node's name now."""
        return self.folder / f"m{self.machines}"

    def passed(self) -> list[str]:
        """Every boundary so far."""
        path = self.folder / "passed"
        return path.read_text().splitlines() if path.exists() else []

    def told(self) -> str:
        """What the engine said, for whoever reads a failure."""
        lines = (self.folder / "said").read_text().splitlines() if (self.folder / "said").exists() else []
        return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line != before)

    def play(self, *, die_at: str = "", occurrence: int = 1, empty_store: bool = False) -> Ending:
        """To the end, with a kill at a boundary of this name. ``empty_store``: then another machine has the node."""
        for _ in range(_PROCESSES):
            rest = self._live("" if self.killed_at else die_at, occurrence)
            if rest is None:
                if empty_store:
                    self._replaced_after_all()
            elif self._is_due():
                self._carry_out()
            elif rest.phase == "intended" and rest.step in ("reboot", "replace"):
                self._wait_in_vain()
            elif not rest.step and not rest.calling:
                break
            else:
                time.sleep(0.3)  # Slurm shows some things late
        return self._ending()

    def close(self) -> None:
        """Its endpoint serves no more."""
        self.owner.close()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _live(self, die_at: str, occurrence: int) -> Rest | None:
        """One process of the agent: what it came to, or None where it was killed."""
        order = Order(
            story=str(self.folder),
            machine=str(self.machine),
            die_at=die_at,
            occurrence=occurrence,
            own_children=self.undisturbed,
        )
        ended = self.nursery.live(order)
        if ended["code"]:
            raise AssertionError(f"the agent broke:\n{(self.folder / 'broke').read_text()}\n{self.told()}")
        if ended["signal"]:
            last = self.passed()[-1]
            self.killed_at = (last, self.passed().count(last))
            if last.startswith("during "):
                self.site.wait((self.folder / "orphan-ended").exists, _ORPHAN_ENDS_WITHIN_S, "the orphan's end")
            return None
        return Rest(**json.loads((self.folder / "rest").read_text()))

    # -- the machine --------------------------------------------------------------------------------------------------

    def _another_machine(self, instance: str) -> None:
        """A healthy machine with an empty disk."""
        self.machines += 1
        dmi = self.machine / "sys/devices/virtual/dmi/id"
        for folder in (dmi, self.machine / "proc/sys/kernel/random", self.machine / "dev", self.machine / "services"):
            folder.mkdir(parents=True)
        for name, text in (
            ("sys_vendor", "Amazon EC2"),
            ("product_name", MACHINE_TYPE),
            ("board_asset_tag", instance),
        ):
            (dmi / name).write_text(f"{text}\n")
        for service in SERVICES:
            (self.machine / "services" / service).touch()
        self._boots()
        self._install_tools()
        (self.machine / "config.toml").write_text(self._configuration())

    def _boots(self) -> None:
        (self.machine / "proc/sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")

    def _install_tools(self) -> None:
        tools = self.machine / "bin"
        tools.mkdir()
        for name, text in (("systemctl", _SYSTEMCTL), ("nvidia-smi", _NVIDIA_SMI)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)

    def _configuration(self) -> str:
        return f"""
[node]
name = "{self.node}"
[daemon]
state_dir = "{self.machine}/state"
[sources]
sys_root = "{self.machine}/sys"
proc_root = "{self.machine}/proc"
dev_root = "{self.machine}/dev"
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
conf = "{self.site.lab.conf}"
bin_dir = "{self.site.tools}"
timeout_s = 20.0
[budget]
max_out = "100%"
settle_s = 0.01
replacements_per_hour = 100_000
[policy]
same_fault_nodes = 100_000
[remediation]
mode = "repair"
settle_s = 5.0
verify_timeout_s = 10_000.0
reboot_timeout_s = 10_000.0
replace_timeout_s = 10_000.0
reset_services = {list(SERVICES)}
[provisioner]
{self.owner.provisioner()}
"""

    # -- the platform -------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """Whether the platform was asked for something that it has not done."""
        return bool(self.owner.asks) and self.owner.asked() > self.carried_out

    def _carry_out(self) -> None:
        """The platform does what it was asked for."""
        self.carried_out += 1
        if self.owner.replaces:
            self._another_machine(self.owner.launches())
        else:
            self._boots()
            (self.machine / "fault").unlink(missing_ok=True)
        self.owner.acts()

    def _replaced_after_all(self) -> None:
        """Another machine comes behind the name, whether it was asked for or not: the disk of the first is lost.

        What nobody asked for leaves the node in Slurm as it was.
        """
        asked = self._is_due()
        self._another_machine(self.owner.launches())
        if asked:
            self.carried_out += 1
            self.owner.acts()

    def _wait_in_vain(self) -> None:
        """Nothing was asked for, so nothing comes: time passes until the engine gives up waiting."""
        now = float((self.folder / "time").read_text())
        (self.folder / "time").write_text(str(now + LONGER_THAN_ANY_TIMEOUT_S))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _ending(self) -> Ending:
        record = self.site.record(self.node)
        store = Store(self.machine / "state/healthd.db", now=datetime.now(UTC))
        try:
            cases, still_open = store.cases(), store.open_case()
        finally:
            store.close()
        return Ending(
            state=record.state,
            reason=record.reason,
            slots=self.site.slots_of(self.node),
            ends=tuple(str(case.end) for case in cases),
            open_case=still_open is not None,
            asked=self.owner.asked(),
            drains=sum("state=drain" in call for call in self.owner.scontrol_calls()),
            services=tuple(sorted(path.name for path in (self.machine / "services").iterdir())),
        )


def cluster(nodes: int) -> SlurmLab:
    """A cluster whose nodes have the names that HyperPod gives, and AWS's own service model asks for."""
    names = tuple(f"ip-10-1-0-{number}" for number in range(1, nodes + 1))
    return SlurmLab(names=names, conf={"RebootProgram": "/bin/true", "SlurmdTimeout": "300"})


def install_counting_scontrol(folder: Path) -> None:
    """A folder of Slurm's clients in which each scontrol is written down by the story that it belongs to."""
    folder.mkdir()
    search = os.pathsep.join(("/usr/bin", "/usr/local/bin", "/opt/slurm/bin"))
    for tool in ("scontrol", "sinfo", "squeue"):
        real = shutil.which(tool, path=search)
        if real is None:
            raise LabError(f"{tool} is not in {search}")
        if tool == "scontrol":
            (folder / tool).write_text(_SCONTROL.format(real=real))
            (folder / tool).chmod(0o755)
        else:
            (folder / tool).symlink_to(real)
