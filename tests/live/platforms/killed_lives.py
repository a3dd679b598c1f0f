"""Plays the life of a remediation again and again, on a real Slurm node and against AWS's endpoints, with a kill -9 in
each.

A life is one node's: a fault, the repair that its policy calls for, the platform's answer, the way back. Its agent is a
process (``killed_agent``); this side (``killing``) plays the platform's part when the platform was really asked.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from msgspec import Struct

from tests.live.platforms.killed_agent import Rest
from tests.live.platforms.killed_owners import Owner, Site
from tests.live.slurm.slurm_lab import LabError, SlurmLab
from tests.support import killing
from tests.support.killing import Nursery

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


class Scenario(Struct, frozen=True, kw_only=True):
    """One platform with one repair. ``code`` and ``remedy``: of what the node has. ``own_children``: undisturbed, AWS's
    child is started as in service: by one scenario for each service of AWS, because each start loads boto3."""

    owner: type[Owner]
    code: str
    remedy: str
    own_children: bool = False


class Ending(Struct, frozen=True, kw_only=True):
    """Where a life ended, as it is seen from outside, and in the store of the machine that is there now."""

    state: str
    reason: str
    slots: tuple[str, ...]
    ends: tuple[str, ...]
    open_remediation: bool
    asked: int
    drains: int
    services: tuple[str, ...] = ()


class Life(killing.Life[Ending]):
    """One life of a remediation on one node. Its folder also holds ``scontrol``, every call of it.

    ``undisturbed``: nothing is killed, and slurmd is started as in service; so is AWS's child, if the scenario says so.
    """

    def __init__(
        self, *, scenario: Scenario, node: str, folder: Path, site: Site, nursery: Nursery, undisturbed: bool
    ) -> None:
        super().__init__(node, folder, nursery)
        self.site, self.carried_out = site, 0
        self.own_children = undisturbed and scenario.own_children
        self.owner = scenario.owner(site, node, folder, in_full=undisturbed)
        self.new_machine(self.owner.launches())
        self.breaks(scenario.code, scenario.remedy)

    def goes_on(self, rest: Rest) -> bool:
        """The platform does what it was asked for, and nothing else comes."""
        if self._is_due():
            self._carry_out()
        elif rest.phase == "intended" and rest.step in ("reboot", "replace"):
            self.waits_in_vain()
        elif not rest.step and not rest.calling:
            return False
        else:
            time.sleep(0.3)  # Slurm shows some things late
        return True

    def is_followed(self) -> None:
        """Another machine comes behind the name, whether it was asked for or not: the disk of the first is lost.

        What nobody asked for leaves the node in Slurm as it was.
        """
        asked = self._is_due()
        self.new_machine(self.owner.launches())
        if asked:
            self.carried_out += 1
            self.owner.acts()

    def ending(self) -> Ending:
        record, (ends, is_open) = self.site.record(self.node), self.in_store()
        return Ending(
            state=record.state,
            reason=record.reason,
            slots=self.site.slots_of(self.node),
            ends=ends,
            open_remediation=is_open,
            asked=self.owner.asked(),
            drains=sum("state=drain" in call for call in self.owner.scontrol_calls()),
            services=tuple(sorted(path.name for path in (self.machine / "services").iterdir())),
        )

    def close(self) -> None:
        """Its endpoint serves no more, and its node is as before."""
        self.owner.close()
        self.site.sweep(self.node)

    def new_machine(self, instance: str) -> None:
        super().new_machine(instance)
        (self.machine / "services").mkdir()
        for service in SERVICES:
            (self.machine / "services" / service).touch()
        for name, text in (("systemctl", _SYSTEMCTL), ("nvidia-smi", _NVIDIA_SMI)):
            (self.machine / "bin" / name).write_text(text)
            (self.machine / "bin" / name).chmod(0o755)

    def configuration(self) -> str:
        return f"""{self.sections(reset_services=SERVICES)}
[orchestrator]
kind = "slurm"
[orchestrator.slurm]
conf = "{self.site.lab.conf}"
bin_dir = "{self.site.tools}"
timeout_s = 20.0
unanswered_s = 20.0
[provisioner]
{self.owner.provisioner()}
"""

    def _is_due(self) -> bool:
        """Whether the platform was asked for something that it has not done."""
        return bool(self.owner.asks) and self.owner.asked() > self.carried_out

    def _carry_out(self) -> None:
        self.carried_out += 1
        if self.owner.replaces:
            self.new_machine(self.owner.launches())
        else:
            self.boots()
            self.is_repaired()
        self.owner.acts()


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
