"""efa.counters: the device's own trouble, and the fabric's. Trees are constructed from amzn-drivers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from healthd.checks.efa_counters import COUNTERS, NO_COMPLETION, efa_counters
from healthd.core.check import NoSettings
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import REMEDY_RANK, ClearsBy, Remedy, Result, Severity, Status
from healthd.testing import Entry, FakeNode, pci_tree
from tests.support.over_time import open_codes

EFA = ("0000:4f:00", "0000:50:00")
DEVICE, PORT = "hw_counters", "ports/1/hw_counters"
NITRO_V4 = (
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
)


def path(device: int, place: str, counter: str) -> str:
    return f"bus/pci/devices/{EFA[device]}.0/infiniband/rdmap{0x4F + device}s0/{place}/{counter}"


def tree(*, minute: int = 0, without: tuple[str, ...] = ()) -> dict[str, Entry]:
    """Two devices after so many minutes: alive, and nothing else has happened to them since they began at 7."""
    entries = pci_tree(efa=EFA)
    for device in range(2):
        for row in COUNTERS.values():
            if row.name not in without:
                value = 60 * minute if row.name == "keep_alive_rcvd" else 7
                entries[path(device, {"device": DEVICE, "port": PORT}[row.place], row.name)] = str(value)
    return entries


def run(entries: Mapping[str, Entry]) -> Result:
    return efa_counters(FakeNode(sys=dict(entries)), NoSettings())


def after(*changes: Mapping[str, Entry]) -> list[set[str]]:
    """The open codes after each minute, these entries being changed in it."""
    return open_codes("efa.counters", [run({**tree(minute=minute), **change}) for minute, change in enumerate(changes)])


def test_alive_and_quiet() -> None:
    """Devices that live and lose nothing are ok, and whatever they counted before is a baseline."""
    result = run(tree())
    assert result.status is Status.OK
    assert len(result.readings) == 2 * len(COUNTERS)
    assert after(*[{}] * 10) == [set()] * 10


def test_no_keep_alive() -> None:
    """A device whose keep-alives stand still for three minutes is found, and no longer once they move."""
    dead = {path(1, DEVICE, "keep_alive_rcvd"): "300"}
    found = after({}, *[dead] * 5, *[{path(1, DEVICE, "keep_alive_rcvd"): str(900 + n)} for n in range(2)])
    assert found[3] == set()
    assert found[5] == {"efa.counters.keep_alive"}
    assert found[-1] == set()


def test_a_keep_alive_is_judged_beside_one_that_comes() -> None:
    """Where no device shows a sign of life none is told from another, and a lone device has no sibling; a fault that is
    open stays while all are silent, and ends when its device lives."""
    both = {path(device, DEVICE, "keep_alive_rcvd"): "300" for device in range(2)}
    assert after({}, *[both] * 9) == [set()] * 10
    dead = {path(1, DEVICE, "keep_alive_rcvd"): "60"}
    frozen = {**dead, path(0, DEVICE, "keep_alive_rcvd"): "360"}
    found = after(
        {}, *[dead] * 6, *[frozen] * 9, *[{path(1, DEVICE, "keep_alive_rcvd"): str(960 + n)} for n in (0, 60)]
    )
    assert found[6:] == [*[{"efa.counters.keep_alive"}] * 10, set(), set()]
    lone = [run({key: each for key, each in tree().items() if EFA[1] not in key}) for _ in range(9)]
    assert open_codes("efa.counters", lone) == [set()] * 9


def test_a_command_without_an_answer_stays() -> None:
    """It is found when it happens, and only a reboot ends it: what is loaded again in the log is the driver of the
    GPUs."""
    found = after({}, {path(0, DEVICE, "no_completion_cmds"): "8"}, *[{path(0, DEVICE, "no_completion_cmds"): "8"}] * 3)
    assert found == [set(), *[{"efa.counters.no_completion"}] * 4]
    assert NO_COMPLETION.clears_by is ClearsBy.REBOOT


def test_refused_commands_are_told_where_they_are_many() -> None:
    """A program that asks for what cannot be has one refused; hundreds within minutes are the device's, until calm."""
    assert after({}, {path(0, DEVICE, "cmds_err"): "8"})[-1] == set()
    many = {path(0, DEVICE, "cmds_err"): "800"}
    found = after({}, *[many] * 12)
    assert (found[1], found[-1]) == ({"efa.counters.command_error"}, set())


@pytest.mark.parametrize(
    "counter", ["rx_drops", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"]
)
def test_trouble_of_the_fabric(counter: str) -> None:
    """A burst of 160 in a minute is borne, 161 are a warning, which ten calm minutes end."""
    where = path(0, PORT, counter)
    assert after({}, {where: "167"})[-1] == set()
    found = after({}, {where: "168"}, *[{where: "168"}] * 11)
    assert (found[1], found[9], found[-1]) == ({"efa.counters.fabric"}, {"efa.counters.fabric"}, set())


def test_retransmitted_packets() -> None:
    """Of packets a thousand more are borne."""
    assert after({}, {path(0, PORT, "retrans_pkts"): "1067"})[-1] == set()
    assert after({}, {path(0, PORT, "retrans_pkts"): "1068"})[-1] == {"efa.counters.fabric"}


@pytest.mark.parametrize("counter", ["retrans_bytes", "rdma_read_wr_err", "rdma_write_wr_err"])
def test_counters_without_a_published_limit_are_readings(counter: str) -> None:
    """No number is made up."""
    assert after({}, {path(0, PORT, counter): str(10**12)})[-1] == set()


def test_counters_that_start_again() -> None:
    """A counter that went back to zero starts a new baseline, and nothing is found."""
    reset = {path(0, PORT, "rx_drops"): "0", path(0, DEVICE, "cmds_err"): "0", path(0, DEVICE, "keep_alive_rcvd"): "1"}
    assert after({}, {}, reset) == [set()] * 3


def test_nothing_here_takes_a_node_out() -> None:
    """All of it is unproven on hardware."""
    for row in COUNTERS.values():
        if row.limit:
            assert row.limit.code.severity is Severity.WARNING
            assert REMEDY_RANK[row.limit.code.remedy] < REMEDY_RANK[Remedy.RESET_GPU]


def test_p4d_has_fewer_counters() -> None:
    """Nitro v3 does not count retransmissions, which is no fault."""
    result = run(tree(without=NITRO_V4))
    assert (result.status, len(result.readings)) == (Status.OK, 2 * (len(COUNTERS) - 5))


@pytest.mark.parametrize(
    "refused", [SourceUnreadable("/sys/x: cannot be read (EINVAL)"), SourceMissing("/sys/x: not supported (ENOTSUP)")]
)
def test_a_counter_that_the_driver_refuses(refused: SourceError) -> None:
    """These two errors are a driver's way to say that it has no such number."""
    assert run({**tree(), path(0, PORT, "rx_drops"): refused}).status is Status.OK


def test_a_device_without_counters_is_unknown() -> None:
    """A device that counts nothing was not seen; its sibling was."""
    entries = {key: entry for key, entry in tree().items() if "rdmap80s0" not in key or "counters" not in key}
    result = run(entries)
    assert (result.status, len(result.undecided)) == (Status.UNKNOWN, 1)
    assert len(result.readings) == len(COUNTERS)


@pytest.mark.parametrize("entry", [SourceUnreadable("/sys/x: cannot be read (EIO)"), "-1"])
def test_a_counter_that_cannot_be_read_hides_no_other(entry: Entry) -> None:
    """Its device is unknown, and the other counters are judged, of that device too."""
    broken: dict[str, Entry] = {path(0, PORT, "rx_drops"): entry}
    result = run({**tree(), **broken})
    assert (result.status, len(result.readings)) == (Status.UNKNOWN, 2 * len(COUNTERS) - 1)
    (gap,) = result.undecided
    assert gap.startswith("efa:rdmap79s0: /sys/")
    for device in range(2):
        unanswered: dict[str, Entry] = {path(device, DEVICE, "no_completion_cmds"): "8"}
        assert after(broken, {**broken, **unanswered})[1] == {NO_COMPLETION.code}
