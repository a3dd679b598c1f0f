"""host.network: what is switched on has a link and a way out. Inputs are constructed."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from healthd.checks.host_network import HostNetworkSettings, host_network
from healthd.core.check import discover
from healthd.core.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.core.model import Outcome, Result, Severity, Status
from healthd.judge.history import History, observe
from healthd.testing import Entry, FakeLink, FakeNode
from healthd.testing import codes as codes_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
V4 = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t512\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t512\t00FFFFFF\t0\t0\t0"""
HALF = V4.replace("512\t00000000", "512\t00000080")  # 0.0.0.0/1, as a VPN sets it, is no default route
NONE = V4.splitlines()[0]
ZEROS = "0" * 32
V6 = f"{ZEROS} 00 {ZEROS} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0"
V6_LO = f"{ZEROS} 00 {ZEROS} 00 {ZEROS} ffffffff 00000001 00000000 00200200       lo"


def interface(name: str, state: str = "up", flags: str = "0x1003", driver: str = "ena") -> dict[str, Entry]:
    counters = dict.fromkeys(("rx_errors", "tx_errors", "rx_dropped", "tx_dropped"), "0")
    return {
        f"class/net/{name}/operstate": state,
        f"class/net/{name}/flags": flags,
        **({f"class/net/{name}/device/driver": FakeLink(f"../../bus/pci/drivers/{driver}")} if driver else {}),
        **{f"class/net/{name}/statistics/{counter}": value for counter, value in counters.items()},
    }


ETH0, LOOPBACK = interface("eth0"), interface("lo", "unknown", driver="")


def run(
    sys: dict[str, Entry] | None = None,
    *,
    route: str | SourceError = V4,
    proc: dict[str, Entry] | None = None,
    **settings: Any,
) -> Result:
    tree = {**LOOPBACK, **ETH0} if sys is None else sys
    return host_network(FakeNode(sys=tree, proc={"net/route": route, **(proc or {})}), HostNetworkSettings(**settings))


codes = partial(codes_of, family="host.network.")


def test_up() -> None:
    """An ENA interface with a link and a default route is ok, and its errors are counted."""
    result = run()
    assert result.status is Status.OK
    assert {(reading.component.id, reading.name) for reading in result.readings} == {
        ("eth0", f"network_{name}_total") for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
    }


@pytest.mark.parametrize("state", ["down", "lowerlayerdown", "dormant", "notpresent"])
def test_a_link_that_is_down(state: str) -> None:
    """Switched on without a link is a warning of that interface; the other one is fine."""
    (finding,) = run({**ETH0, **interface("eth1", state)}).findings
    assert (finding.code, str(finding.component)) == ("host.network.link_down", "interface:eth1")
    assert finding.severity is Severity.WARNING


def test_what_is_switched_off_or_of_another_driver_is_not_looked_at() -> None:
    """An interface that nobody uses, and one of a container, may be down."""
    assert run({**ETH0, **interface("eth1", "down", flags="0x1002")}).status is Status.OK
    assert run({**ETH0, **interface("veth1", "down", driver="")}).status is Status.OK
    assert run(interface("veth1", "down", driver="")).status is Status.NOT_APPLICABLE


def test_interfaces_by_name() -> None:
    """A named interface is looked at whatever its driver, and must be there."""
    tree = {**ETH0, **interface("bond0", "down", driver="")}
    assert codes(run(tree, interfaces=("bond0", "eth7"))) == ["link_down", "missing"]


@pytest.mark.parametrize(
    ("v4", "v6", "found"),
    [(V4, "", []), (HALF, "", ["no_route"]), (NONE, V6, []), (NONE, V6_LO, ["no_route"]), (NONE, "", ["no_route"])],
)
def test_a_way_out(v4: str, v6: str, found: list[str]) -> None:
    """A default route of either protocol will do; the kernel's own refusal on lo is none."""
    assert codes(run(route=v4, proc={"net/ipv6_route": v6})) == found
    assert codes(run(route=v4, proc={"net/ipv6_route": v6}, default_route=False)) == []


def test_a_kernel_without_ipv6() -> None:
    """Without IPv6 the IPv4 table alone decides."""
    assert codes(run(route=NONE)) == ["no_route"]


@pytest.mark.parametrize(("count", "found"), [("80", []), ("81", ["conntrack"])])
def test_tracked_connections(count: str, found: list[str]) -> None:
    """Past 80 % of the table is a finding."""
    proc: dict[str, Entry] = {
        "sys/net/netfilter/nf_conntrack_count": count,
        "sys/net/netfilter/nf_conntrack_max": "100",
    }
    assert codes(run(proc=proc)) == found


def test_errors_are_judged_by_growth() -> None:
    """A hundred within the hour are none; another is a finding."""
    history, seen = History(), []
    for errors in ("7", "107", "108"):
        result = run({**ETH0, "class/net/eth0/statistics/rx_errors": errors})
        outcome = Outcome(check="host.network", result=result, at=NOW, duration_s=0.0)
        history, _ = observe(history, outcome, discover()["host.network"].limits, NOW)
        seen.append([code for _, code in history.faults])
    assert seen == [[], [], ["host.network.errors"]]


def test_what_cannot_be_read_is_unknown() -> None:
    """No routing table, no folder of interfaces, or a state that fails: unknown."""
    with pytest.raises(SourceMissing):
        run(route=SourceMissing("/proc/net/route"))
    with pytest.raises(SourceMissing):
        run({})
    with pytest.raises(SourceUnreadable):
        run({**ETH0, "class/net/eth0/operstate": SourceUnreadable("EIO")})
