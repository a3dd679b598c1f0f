"""A simulated p5.48xlarge: a folder that healthd takes for a machine, and the events on it.

Everything in it is CONSTRUCTED from published facts; nothing was recorded from hardware, and its readers say so. The
folder holds the trees (``root``), the state of the simulated NVML (``nvml.sim``), the kernel log (``kmsg``) and the
configuration of a real daemon. ``python -m healthd.sim.machine FOLDER`` is its ``reboot`` command.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from healthd.core.model import pci_address
from healthd.sim.nvml import write_state
from healthd.sim.nvml_state import PROFILES, healthy_state, with_gpu_fault
from healthd.sim.tree import build, keep_alives, new_boot

INSTANCE_TYPE = "p5.48xlarge"
NODE = "simulated-p5-48xlarge"
NOT_SIMULATED = (
    "cloud.events",
    "ena.allowances",
    "host.clock",
    "host.services",
    "lustre.io",
    "storage.nvme",
)
"""Checks that are off on the simulated machine: they would read the real clock, tools and EC2."""
_DRIVER_LOADS = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {version}"
_OFF_THE_BUS = "NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class SimulatedMachine:
    """One simulated machine in ``folder``. ``reboot_fails``: its reboot command ends with an error. ``settle_s``: how
    many seconds it must stay healthy before its release; a demo waits that long, so the default is short."""

    def __init__(self, folder: Path, *, reboot_fails: bool = False, settle_s: float = 3.0) -> None:
        self.folder, self._reboot_fails, self._settle_s = folder, reboot_fails, settle_s
        self.root, self.kmsg, self.nvml = folder / "root", folder / "kmsg", folder / "nvml.sim"
        self.config, self.socket, self.state_dir = folder / "config.toml", folder / "healthd.sock", folder / "state"
        self._profile, self._sequence, self._up_s = PROFILES[INSTANCE_TYPE], 0, 0.0
        build(self.root, instance_type=INSTANCE_TYPE)
        self.config.write_text(self._configuration())
        self._come_up()

    @property
    def reboot_is_wanted(self) -> bool:
        """Whether the reboot command was run and the machine has not come up again since."""
        return _reboot_request(self.folder).exists()

    def reboot(self) -> None:
        """Boot again: a new boot id, an empty kernel log, a healthy driver. End the daemon on it first."""
        new_boot(self.root)
        self._come_up()
        _reboot_request(self.folder).unlink()

    def time_passes(self, seconds: float) -> None:
        """Let so many seconds pass: EFA devices send a keep-alive in each of them (efa_counters.csv)."""
        self._up_s += seconds
        keep_alives(self.root, int(self._up_s))

    @contextlib.contextmanager
    def living(self, *, every_s: float = 20.0) -> Iterator[None]:
        """Time passes on the machine as it does here, until the block ends, in steps of ``every_s`` seconds: a third of
        the interval of the checks. A daemon that runs on it for minutes needs that: else no counter would move."""
        over = threading.Event()

        def live() -> None:
            seen_s = time.monotonic()
            while not over.wait(every_s):
                now_s = time.monotonic()
                self.time_passes(now_s - seen_s)
                seen_s = now_s

        thread = threading.Thread(target=live, name="simulated time", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def gpu_falls_off_the_bus(self, *indexes: int) -> None:
        """XID 79 of these GPUs, at once: the kernel log has it, and NVML can no longer reach them."""
        self.driver_reports_loss(*indexes)
        self.nvml_loses(*indexes)

    def driver_reports_loss(self, *indexes: int) -> None:
        """XID 79 of these GPUs in the kernel log."""
        self.kernel_says(*(_OFF_THE_BUS.format(pci=pci_address(self._profile.pci[index])) for index in indexes))

    def nvml_loses(self, *indexes: int) -> None:
        """NVML can no longer reach these GPUs."""
        state = healthy_state(INSTANCE_TYPE)
        for index in indexes:
            state = with_gpu_fault(state, index, "lost")
        write_state(self.nvml, state)

    def kernel_says(self, *texts: str) -> None:
        """Append a record of the kernel's own (facility 0, level 4) for each text, in one write: a daemon that reads
        meanwhile has all of them or none."""
        since_boot_us = int((time.time() - _boot_time(self.root)) * 1e6)
        lines = [f"4,{self._sequence + number},{since_boot_us},-;{text}\n" for number, text in enumerate(texts)]
        with self.kmsg.open("a") as log:
            log.write("".join(lines))
        self._sequence += len(texts)

    def sections(self, *, off: Iterable[str] = NOT_SIMULATED, **sources: object) -> str:
        """The tables of a configuration for a daemon on this machine: where it is read, with further settings of
        ``[sources]``, and the checks that are ``off``."""
        trees = {f"{tree}_root": self.root / tree for tree in ("sys", "proc", "dev")}
        places = {**trees, "kmsg": self.kmsg, "nvml_library": self.nvml, **sources}
        lines = "".join(f'{name} = "{place}"\n' for name, place in places.items())
        return f"[sources]\n{lines}" + "".join(f'[checks."{name}"]\nenabled = false\n' for name in off)

    def _come_up(self) -> None:
        self._sequence, self._up_s = 0, 0.0
        self.kmsg.write_text("")
        write_state(self.nvml, healthy_state(INSTANCE_TYPE))
        self.kernel_says(_DRIVER_LOADS.format(version=self._profile.driver_version))

    def _configuration(self) -> str:
        reboot = [
            sys.executable,
            "-P",
            "-m",
            "healthd.sim.machine",
            str(self.folder),
            *(["--fail"] if self._reboot_fails else []),
        ]
        return f"""# A SIMULATED node: no hardware is behind these paths.
[node]
name = "{NODE}"
[orchestrator]
kind = "local"
[provisioner]
kind = "local"
[provisioner.local]
reboot_command = {reboot!r}
[remediation]
mode = "repair"
settle_s = {self._settle_s:g}
[policy]
canary_repairs = 0
[daemon]
socket = "{self.socket}"
state_dir = "{self.state_dir}"
http = ""
{self.sections()}"""


def _reboot_request(folder: Path) -> Path:
    return folder / "reboot-is-wanted"


def _boot_time(root: Path) -> float:
    for line in (root / "proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise ValueError(f"{root}/proc/stat has no btime line")


def main(arguments: list[str]) -> int:
    """The simulated machine's ``reboot``: request one, or fail with ``--fail``."""
    if "--fail" in arguments:
        sys.stderr.write("simulated reboot: refused, because of --fail\n")
        return 1
    _reboot_request(Path(arguments[0])).touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
