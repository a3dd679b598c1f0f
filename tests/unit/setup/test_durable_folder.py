"""Whether the state directory outlives a boot: mount tables and sysfs as they are, without a machine."""

from __future__ import annotations

import pytest

from healthd.core.node import Mount
from healthd.setup.durable_folder import not_lasting
from healthd.testing import FakeLink, FakeTree

STORE, EBS = "Amazon EC2 NVMe Instance Storage", "Amazon Elastic Block Store"
STATE = "/var/lib/healthd"


def mount(point: str, fstype: str = "ext4", source: str = "/dev/nvme0n1p1", device: str = "259:1") -> Mount:
    return Mount(point=point, fstype=fstype, source=source, options=frozenset(), device=device)


SYS = FakeTree(
    {
        "class/nvme/nvme0/model": EBS,
        "class/nvme/nvme1/model": STORE,
        "class/nvme/nvme2/model": f"{STORE}   ",
        "class/block/md0/slaves/nvme1n1": "",
        "class/block/md0/slaves/nvme2n1": "",
        "class/block/dm-0/slaves/md0": "",
        "dev/block/253:0": FakeLink("../../devices/virtual/block/dm-0"),
    }
)


@pytest.mark.parametrize(
    ("mounts", "why"),
    [
        ((mount("/"),), ""),
        ((), ""),
        ((mount("/", "overlay"),), "is on overlay"),
        ((mount("/"), mount("/var/lib", "tmpfs")), "is on tmpfs"),
        ((mount("/", "tmpfs"), mount("/var/lib/healthd")), ""),
        ((mount("/"), mount("/var/lib/health", "tmpfs")), ""),
        ((mount("/var", "tmpfs"), mount("/var")), ""),
        ((mount("/"), mount("/var", "xfs", "/dev/nvme1n1", "259:9")), "is on the instance store (nvme1n1)"),
        ((mount("/", "xfs", "/dev/md0", "9:0"),), "is on the instance store (nvme1n1, nvme2n1)"),
        ((mount("/", "xfs", "/dev/mapper/vg-var", "253:0"),), "is on the instance store (nvme1n1, nvme2n1)"),
        ((mount("/", "nfs4", "head:/export", "0:51"),), ""),
        ((mount("/", "ext4", "/dev/nvme9n1", "259:7"),), ""),
    ],
)
def test_what_a_boot_or_a_stop_empties_is_said(mounts: tuple[Mount, ...], why: str) -> None:
    """Memory, a layer of a container, the instance store, also below a RAID and a logical volume: the mount that is
    nearest, and of two on one point the one above."""
    message = not_lasting(STATE, mounts, SYS)
    assert (why in message) if why else message == ""
