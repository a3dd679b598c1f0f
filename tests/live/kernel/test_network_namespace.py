"""host.network in a network namespace of its own: real links, routes and counters, made with ip(8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.kernel_objects import LINK, ROUTE, UP, NotHere, host_network_after

pytestmark = [pytest.mark.kernel, pytest.mark.root]


def look(*commands: str) -> Mapping[str, Any]:
    """What host.network finds after these commands in a fresh namespace, and its codes alone."""
    try:
        found = host_network_after(*commands)
    except NotHere as missing:
        pytest.skip(str(missing))
    findings: Any = found["findings"]
    return {**found, "codes": [code for code, _, _ in findings]}


def test_a_link_that_is_up() -> None:
    """Both ends up and a default route: ok, with the kernel's own counters."""
    found = look(LINK, *UP, *ROUTE)
    assert (found["status"], found["codes"]) == ("ok", [])
    assert set(found["readings"]) == {
        f"network_{name}_total" for name in ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
    }


def test_a_link_whose_other_end_is_down() -> None:
    """The cable is out: the interface is switched on and has no link."""
    found = look(LINK, *UP, *ROUTE, "ip link set two down")
    assert found["codes"] == ["host.network.link_down"]


def test_no_way_out() -> None:
    """Addresses without a default route."""
    assert look(LINK, *UP, ROUTE[0])["codes"] == ["host.network.no_route"]


def test_an_interface_that_vanished() -> None:
    """A named interface that is not there any more, and with it the route."""
    found = look(LINK, *UP, *ROUTE, "ip link del one")
    assert sorted(str(code) for code in found["codes"]) == [
        "host.network.missing",
        "host.network.no_route",
    ]
