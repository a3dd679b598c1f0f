"""efa.devices: what was launched must be there; what could have been launched need not."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.efa_devices import EfaDevicesSettings, efa_devices
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Remedy, Result, Severity, Status
from healthd.testing import Entry, FakeNode, codes, fake_pci, pci_tree
from tests.support.over_time import codes_after_relearn, diagnoses, open_codes

EFA = tuple(f"0000:{bus:02x}:00" for bus in (0x4F, 0x50, 0x51, 0x52))
LONG_UP = {"uptime": "86400.00 8294400.00"}


def run(
    sys: dict[str, Entry] | None = None, *, instance_type: str | None = None, proc: Any = None, **settings: Any
) -> Result:
    tree = pci_tree(gpus=[fake_pci(0)], efa=EFA) if sys is None else sys
    node = FakeNode(sys=tree, proc=LONG_UP if proc is None else proc, instance_type=instance_type)
    return efa_devices(node, EfaDevicesSettings(**settings))


def without(sys: dict[str, Entry], part: str) -> dict[str, Entry]:
    return {path: entry for path, entry in sys.items() if part not in path}


def test_all_there() -> None:
    """As many as configured, each with driver, uverbs and GPUDirect, is ok; nothing is learned."""
    result = run(expected=4)
    assert (result.status, result.readings) == (Status.OK, ())


def test_one_less_than_this_instance_had() -> None:
    """Without a configured number the most there ever were decides: it is missing, on an unknown type, and at launch
    with fewer than usual; the table's warning is the same fault."""
    all_there, one_gone, bare = pci_tree(efa=EFA), pci_tree(efa=EFA[:3]), pci_tree()
    assert open_codes("efa.devices", [run(all_there), run(one_gone), run(all_there)]) == [set(), {"efa.missing"}, set()]
    assert open_codes("efa.devices", [run(all_there), run(bare)]) == [set(), {"efa.missing"}]
    looks = [run(tree, instance_type="p5.48xlarge") for tree in (all_there, one_gone)]
    assert open_codes("efa.devices", looks) == [{"efa.below_usual"}, {"efa.below_usual", "efa.missing"}]
    (only,) = diagnoses("efa.devices", looks)
    assert (only.code, only.remedy) == ("efa.missing", Remedy.REBOOT_NODE)


def test_the_last_device_was_detached_on_purpose() -> None:
    """After relearn none is expected, and none is missing; not while EFA may still be starting, or PCI is hidden."""
    one, none = pci_tree(gpus=[fake_pci(0)], efa=EFA[:1]), pci_tree(gpus=[fake_pci(0)])
    looks = [run(one), run(none), run(none)]
    assert open_codes("efa.devices", looks)[-1] == {"efa.missing"}
    assert codes_after_relearn("efa.devices", looks, run(none)) == set()
    assert codes_after_relearn("efa.devices", looks, run(none, proc={"uptime": "20.00 0.00"})) == {"efa.missing"}
    assert codes_after_relearn("efa.devices", looks, run({"bus": "", **without(none, "bus/pci")})) == {"efa.missing"}
    assert open_codes("efa.devices", [*looks, run(none, expected=0)])[-1] == set()


def test_what_is_configured_is_not_learned() -> None:
    """A number that was configured lower since is right at once."""
    before, after = run(pci_tree(efa=EFA)), run(pci_tree(efa=EFA[:3]), expected=3)
    assert open_codes("efa.devices", [before, after]) == [set(), set()]


def test_nothing_is_learned_while_efa_starts() -> None:
    """Devices that come late are not missing, though nothing says how many there must be."""
    young = run(pci_tree(efa=EFA[:3]), proc={"uptime": "20.00 0.00"})
    assert (young.status, young.readings) == (Status.OK, ())
    assert open_codes("efa.devices", [run(pci_tree(efa=EFA)), young]) == [set(), set()]


def test_another_type_under_the_same_id_is_learned_anew() -> None:
    """A stopped instance may be made another type; fewer devices are then no loss."""
    before = run(pci_tree(efa=EFA), instance_type="p4d.24xlarge")
    assert open_codes("efa.devices", [before, run(pci_tree(efa=EFA[:1]), instance_type="p5.4xlarge")]) == [set(), set()]


def test_fewer_than_configured() -> None:
    """A shortfall against the operator's number is critical and calls for a reboot."""
    (finding,) = run(expected=8).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "efa.missing",
        Severity.CRITICAL,
        Remedy.REBOOT_NODE,
    )
    assert str(finding.component) == "node"


def test_fewer_than_usual_is_only_a_warning() -> None:
    """A shortfall against the table alone never acts: the count is chosen at launch."""
    (finding,) = run(instance_type="p5.48xlarge").findings
    assert (finding.code, finding.severity, finding.remedy) == ("efa.below_usual", Severity.WARNING, Remedy.WATCH)


def test_the_operators_number_replaces_the_table() -> None:
    """With a configured number the table has no say, and more than configured is no fault."""
    assert run(instance_type="p5.48xlarge", expected=4).status is Status.OK
    assert run(expected=2).status is Status.OK


def test_none_at_all() -> None:
    """None where several are usual is a warning; none where one may be is a choice; none configured is none needed."""
    bare = pci_tree(gpus=[fake_pci(0)])
    assert codes(run(bare, instance_type="p5.48xlarge")) == ["efa.below_usual"]
    assert run(bare, instance_type="g5.48xlarge").status is Status.NOT_APPLICABLE
    assert run(bare).status is Status.NOT_APPLICABLE
    assert run(bare, instance_type="p5.48xlarge", expected=0).status is Status.NOT_APPLICABLE
    assert codes(run(bare, expected=1)) == ["efa.missing"]


def test_ena_is_not_efa() -> None:
    """Amazon's plain network device has the same vendor and is not counted."""
    ena: dict[str, Entry] = {
        "bus/pci/devices/0000:00:05.0/vendor": "0x1d0f",
        "bus/pci/devices/0000:00:05.0/device": "0xec20",
    }
    assert run({**pci_tree(), **ena}).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("device", ["0xefa0", "0xefa1", "0xefa2", "0xefa3", "0xefa4"])
def test_every_generation_counts(device: str) -> None:
    """All published device ids are EFA."""
    tree = {**pci_tree(efa=EFA), f"bus/pci/devices/{EFA[0]}.0/device": device}
    assert run(tree, expected=4).status is Status.OK


def test_a_device_that_the_driver_gave_up() -> None:
    """A device on the bus without an RDMA device, while the driver runs, is lost to the driver and named."""
    tree = without(pci_tree(efa=EFA), f"{EFA[2]}.0/infiniband")
    (finding,) = run(tree, expected=4).findings
    assert (finding.code, finding.remedy) == ("efa.driver_lost", Remedy.REBOOT_NODE)
    assert str(finding.component) == f"efa:{EFA[2]}.0"


def test_a_driver_that_is_not_loaded_reboots_nobody() -> None:
    """Without the driver module it is one finding for a person, not four lost devices."""
    tree = without(without(pci_tree(efa=EFA), "infiniband"), "module/efa")
    (finding,) = run(tree, expected=4).findings
    assert (finding.code, finding.severity, finding.remedy) == (
        "efa.driver_absent",
        Severity.CRITICAL,
        Remedy.ASK_HUMAN,
    )


def test_a_device_without_uverbs() -> None:
    """A device that no program can open is critical, a person's business, and named by its RDMA name."""
    tree = without(pci_tree(efa=EFA), f"{EFA[1]}.0/infiniband_verbs")
    (finding,) = run(tree, expected=4).findings
    assert (finding.code, finding.remedy, str(finding.component)) == (
        "efa.no_verbs",
        Remedy.ASK_HUMAN,
        "efa:rdmap80s0",
    )
    assert finding.lasting_s == 60.0, "a driver that is being loaded makes it a moment after the RDMA device"


@pytest.mark.parametrize("p2p", ["", None])
def test_no_gpudirect(p2p: str | None) -> None:
    """An empty or absent p2p attribute is one warning for the node, if it has GPUs and the setting asks for it."""
    tree = without(pci_tree(gpus=[fake_pci(0)], efa=EFA), "p2p")
    if p2p is not None:
        tree |= {f"bus/pci/devices/{address}.0/p2p": p2p for address in EFA}
    (finding,) = run(tree, expected=4).findings
    assert (finding.code, finding.severity) == ("efa.no_gpudirect", Severity.WARNING)
    assert len(finding.evidence["devices"]) == 4
    assert run(tree, expected=4, gpudirect=False).status is Status.OK
    assert run(without(pci_tree(efa=EFA), "p2p"), expected=4).status is Status.OK


def test_the_port_state_is_never_asked() -> None:
    """A port that could not even be read changes nothing: its state is hard-coded in the driver."""
    tree = pci_tree(efa=EFA)
    for address in EFA:
        tree[f"bus/pci/devices/{address}.0/infiniband/x/ports/1/state"] = SourceUnreadable("EIO")
    assert run(tree, expected=4).status is Status.OK


@pytest.mark.parametrize(("uptime_s", "status"), [(30, Status.UNKNOWN), (119, Status.UNKNOWN), (121, Status.FINDINGS)])
def test_late_starters(uptime_s: int, status: Status) -> None:
    """Shortly after boot a shortfall is unknown, and a finding afterwards."""
    assert run(expected=8, proc={"uptime": f"{uptime_s}.00 0.00"}).status is status


def test_the_uptime_is_asked_only_about_trouble() -> None:
    """A node whose devices are all there, as configured, needs no uptime."""
    assert run(expected=4, proc={}).status is Status.OK
    with pytest.raises(SourceMissing):
        run(expected=8, proc={})


@pytest.mark.parametrize("sys", [{"": SourceUnreadable("/sys: EIO")}, {"bus/pci/devices/": ""}, {}])
def test_an_unreadable_bus_is_unknown(sys: dict[str, Entry]) -> None:
    """A bus that cannot be listed, or that lists nothing, is unknown and no missing device."""
    with pytest.raises(SourceError):
        run(sys, instance_type="p5.48xlarge")
    with pytest.raises(SourceError):
        run(sys, expected=4)


def test_one_unreadable_device_is_unknown() -> None:
    """A device whose vendor cannot be read may be an EFA, so the count cannot be told."""
    tree = {**pci_tree(efa=EFA), f"bus/pci/devices/{EFA[0]}.0/vendor": SourceUnreadable("EIO")}
    with pytest.raises(SourceUnreadable):
        run(tree, expected=4)
