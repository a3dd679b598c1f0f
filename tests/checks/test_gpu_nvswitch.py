"""gpu.nvswitch: bridges of NVIDIA's on the PCI bus, counted by instance type. Trees are constructed."""

from __future__ import annotations

import pytest

from healthd.checklib.tables import instance_types
from healthd.checks.gpu_nvswitch import gpu_nvswitch
from healthd.core.check import NoSettings
from healthd.core.errors import SourceUnreadable
from healthd.core.model import Result, Status
from healthd.testing import FakeNode, codes, fake_pci, pci_tree
from tests.support.over_time import open_codes

TYPES = instance_types()
WITH = sorted(name for name, profile in TYPES.items() if profile.nvswitches)


def run(instance_type: str, switches: int) -> Result:
    """So many NVSwitches beside eight GPUs, and a bridge of another maker's."""
    sys = pci_tree(gpus=[fake_pci(index) for index in range(8)])
    bridges = {f"0000:d{number}:00.0": "0x10de" for number in range(switches)} | {"0000:e0:00.0": "0x8086"}
    for name, vendor in bridges.items():
        sys |= {f"bus/pci/devices/{name}/vendor": vendor, f"bus/pci/devices/{name}/class": "0x068000"}
        sys |= {f"bus/pci/devices/{name}/device": "0x22a3"}
    return gpu_nvswitch(FakeNode(instance_type=instance_type, sys=sys), NoSettings())


def test_only_types_that_show_them_are_judged() -> None:
    """P4 and P5 with NVSwitch have some on PCI; P6, UltraServers and all G types have none, and are never judged."""
    assert set(WITH) == {f"{name}xlarge" for name in ("p4d.24", "p4de.24", "p5.48", "p5e.48", "p5en.48")}
    for name in TYPES.keys() - set(WITH):
        for switches in (0, 1, 8):
            assert run(name, switches).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("instance_type", WITH)
def test_fewer_than_the_type_has(instance_type: str) -> None:
    """All of them, and more, are ok; any fewer are a warning."""
    whole = TYPES[instance_type].nvswitches
    assert [codes(run(instance_type, number)) for number in (whole, whole + 1)] == [[], []]
    for number in range(1, whole):
        (finding,) = run(instance_type, number).findings
        assert (finding.code, finding.evidence["limit"]) == ("gpu.nvswitch.missing", whole)


def test_a_guest_that_sees_none() -> None:
    """None from the beginning is a guest that is not shown them; none where there were four are four that are lost."""
    none, all_four = run("p5.48xlarge", 0), run("p5.48xlarge", 4)
    assert (none.status, none.findings) == (Status.OK, ())
    assert open_codes("gpu.nvswitch", [none, none, all_four, none, all_four]) == [
        set(),
        set(),
        set(),
        {"gpu.nvswitch.missing"},
        set(),
    ]


def test_a_hidden_bus_is_no_loss() -> None:
    """A /sys without any device is no evidence."""
    with pytest.raises(SourceUnreadable):
        gpu_nvswitch(FakeNode(instance_type="p5.48xlarge", sys={"bus/pci/devices/": ""}), NoSettings())
