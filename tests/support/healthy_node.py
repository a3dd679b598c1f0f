"""What surrounds a simulated node that is well: its tools, its clock, its mounts, and the lines of its simulated NVML.

Values only; nothing here asserts anything. Constructed from documentation, as ``healthd.sim`` is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from healthd.checklib.tables import InstanceProfile
from healthd.core.errors import SourceError
from healthd.core.node import CommandResult, FileProbe, KernelClock, Space
from healthd.sim import nvml_state, tree
from healthd.sim.host import disk_names

ROOM = Space(total_bytes=100, available_bytes=50, total_inodes=100, available_inodes=50, read_only=False)
QUICK = FileProbe(size_bytes=1 << 18, write_s=0.004, read_s=0.002, unlink_s=0.001)
CLOCK = KernelClock(synchronised=True, offset_s=0.0)
CHRONY = "A9FEA97B,169.254.169.123,4,1764000000.1,0.000001,0.0,0.0,-12.3,0.0,0.02,0.0003,0.0002,16.2,Normal"
ALLOWANCES = "NIC statistics:\n     bw_in_allowance_exceeded: 0\n     conntrack_allowance_exceeded: 0"
GDRAPI = "/usr/lib/x86_64-linux-gnu/libgdrapi.so.2"
INSTALLED = ("cat", "/opt/amazon/efa_installed_packages")
FI_INFO = ("/opt/amazon/efa/bin/fi_info", "-p", "efa")
TRACKING = ("chronyc", "-c", "tracking")
ETHTOOL = ("ethtool", "-S", "eth0")
LDCONFIG = ("/sbin/ldconfig", "-p")
FABRIC_TOOLS: Mapping[tuple[str, ...], str] = {
    INSTALLED: (
        "# EFA installer version: 1.44.0\n# Packages installed:\n"
        "libfabric-aws-2.3.1-1.x86_64 libnccl-ofi-1.17.1-1.x86_64"
    ),
    LDCONFIG: f"\tlibgdrapi.so.2 (libc6,x86-64) => {GDRAPI}",
    ("readlink", "-f", GDRAPI): f"{GDRAPI}.5",
}
SMART = '{"critical_warning": 0, "media_errors": 0}'
EBS_STATS = ("nvme", "amzn", "stats", "/dev/nvme0n1", "-o", "json")
EBS_NONE = json.dumps(
    {f"{what}_performance_exceeded_{of}": 0 for what in ("ebs_volume", "ec2_instance_ebs") for of in ("iops", "tp")}
)


def answered(argv: tuple[str, ...], stdout: str, *, code: int = 0, stderr: str = "") -> CommandResult:
    """What a command that ended by itself had to say."""
    return CommandResult(argv=argv, code=code, stdout=stdout, stderr=stderr, duration_s=0.01)


def smart_log(disk: str) -> tuple[str, ...]:
    """The command that asks a disk for its SMART log."""
    return ("nvme", "smart-log", "-o", "json", f"/dev/{disk}")


def domains_of(profile: InstanceProfile) -> tuple[str, ...]:
    """The RDMA devices of a type, as libfabric lists them."""
    return tuple(f"rdmap{int(address.split(':')[1], 16)}s0" for address in tree.layout_of(profile).efa)


def fi_info(devices: tuple[str, ...]) -> str:
    """What ``fi_info -p efa`` prints for these devices."""
    return "".join(f"provider: efa\n    fabric: efa\n    domain: {device}-rdm\n" for device in devices)


class Tools(dict[tuple[str, ...], CommandResult | SourceError]):
    """The commands of a healthy host: chronyd in step, every unit active, nothing exceeded, no disk that warns.

    ``units``: properties of systemd units that are not as those of a healthy one.
    """

    def __init__(self, profile: InstanceProfile) -> None:
        texts = {TRACKING: CHRONY, ETHTOOL: ALLOWANCES, EBS_STATS: EBS_NONE, **FABRIC_TOOLS}
        texts[FI_INFO] = fi_info(domains_of(profile))
        texts |= dict.fromkeys(map(smart_log, disk_names(profile)), SMART)
        self.units: dict[str, Mapping[str, str]] = {}
        super().__init__({argv: answered(argv, text) for argv, text in texts.items()})

    def get(self, argv: Any, default: Any = None) -> Any:
        """The answer; systemctl's is put together from the units that it is asked for."""
        if argv[:2] != ("systemctl", "show"):
            return super().get(argv, default)
        blocks = [self._unit(name) for name in argv[argv.index("--") + 1 :]]
        return answered(argv, "\n\n".join(blocks))

    def _unit(self, name: str) -> str:
        well = {"Id": name, "LoadState": "loaded", "ActiveState": "active", "NRestarts": "0"}
        return "\n".join(f"{key}={value}" for key, value in {**well, **self.units.get(name, {})}.items())


def nvml_lines(profile: InstanceProfile) -> dict[str, str]:
    """The state of the simulated NVML for a healthy machine of this type: its GPUs, at their addresses."""
    first = {key.removeprefix("gpu0."): value for key, value in _P5.items() if key.startswith("gpu0.")}
    state = {key: value for key, value in _P5.items() if key.startswith("lib.")}
    for index, address in enumerate(tree.layout_of(profile).gpus):
        own = {
            "uuid": nvml_state.uuid(index),
            "pci": f"0000{address.upper()}",
            "nvmlDeviceGetSerial": f"1650000{index:06}",
        }
        state |= {f"gpu{index}.{name}": value for name, value in {**first, **own}.items()}
    return state


_P5 = nvml_state.healthy_state()
