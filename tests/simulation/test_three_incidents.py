"""A file server, a rack and a driver that rolls out, in a simulated fleet: one page each, with the right root.

Every node has production's daemon in repair mode with a receiver of its own, and the head node production's controller
of incidents. ``pytest -s`` prints the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from healthd.core.model import NODE, Component, Mode, Severity
from healthd.notify.news import PAGED
from tests.simulation.site import TICK_S, Site, named
from tests.support.sampling import size

pytestmark = pytest.mark.slow

ON_DRIVER = size(40, 24)
"""Nodes that a driver reaches."""
LATER_S = size(TICK_S, 3 * TICK_S)
"""Between two looks once the first minutes are over."""

FSX = Component(kind="mount", id="/fsx")
GB200, P5 = "p6e-gb200.36xlarge", "p5.48xlarge"
Story = Callable[[Site], tuple[list[str], str]]
RACK_7, RACK_8 = named("gpu-[201-218]"), named("gpu-[221-238]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def site(folder: Path, *, mode: Mode = Mode.REPAIR, holds: bool = True, p5: int = 20) -> Site:
    """Nodes of P5 in leaves of 20, and two UltraServers of 18; all have been quiet for some minutes."""
    nodes = {name: (f"leaf-{number // 20}", P5) for number, name in enumerate(named(f"gpu-[001-{p5:03}]"))}
    nodes |= dict.fromkeys(RACK_7, ("rack-7", GB200)) | dict.fromkeys(RACK_8, ("rack-8", GB200))
    made = Site(nodes, folder, mode=mode, holds=holds)
    made.run(4.0)
    assert made.messages == []
    return made


def file_server(fleet: Site) -> tuple[list[str], str]:
    """All nodes of P5 lose /fsx within a minute, each by one of two findings."""
    names = [name for name in fleet.nodes if fleet.nodes[name].instance_type == P5]
    for number, name in enumerate(names):
        code = ("lustre.missing", "lustre.hung")[number % 2]
        fleet.timeline.after(number / 2, partial(fleet.breaks, name, code, FSX))
    return names, "shared cause file system /fsx"


def dead_rack(fleet: Site) -> tuple[list[str], str]:
    """The NVLink of one UltraServer of 18 nodes dies."""
    for name in RACK_7:
        fleet.breaks(name, "gpu.imex.not_up", NODE)
    return RACK_7, "most of NVLink domain rack-7 is broken, and no node outside"


def rolling_driver(fleet: Site) -> tuple[list[str], str]:
    """A driver that loses GPUs reaches eight nodes a minute, half of those of P5."""
    names = named(f"gpu-[001-{ON_DRIVER:03}]")
    for number, name in enumerate(names):
        fleet.timeline.after(60.0 * (number // 8), partial(_upgraded, fleet, name))
    return names, "shared cause driver 590.10"


def _upgraded(fleet: Site, name: str) -> None:
    fleet.nodes[name].driver = "590.10"
    fleet.breaks(name, "gpu.count.missing", NODE)


@pytest.mark.parametrize(
    ("story", "p5"), [(file_server, size(80, 32)), (dead_rack, size(80, 20)), (rolling_driver, 2 * ON_DRIVER)]
)
def test_each_incident_is_one_page_and_one_message_with_its_root(
    story: Story, p5: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No node sends one of its own. Without notices each of them does. Every later piece of news is of the same key."""
    fleet = site(folder, p5=p5)
    names, root = story(fleet)
    fleet.run(6.0)
    fleet.run(9.0, tick_s=LATER_S)
    (status,) = fleet.stats.incidents
    key = f"{PAGED}incident {status.id}"
    first = fleet.messages[0]
    figures = (
        f"{story.__name__}: {len(names)} nodes, pages {len(fleet.pages)}, new messages {len(fleet.news('wrong'))}, "
        f"updates {len(fleet.news('now'))}, first after {_after_s(fleet, first[1]):.0f} s; fences {len(fleet.fences)}, "
        f"nodes fenced {len(fleet.fenced)}; root: {root}"
    )
    with capsys.disabled():
        print(f"\n{figures}")  # noqa: T201 - what it shows
    assert fleet.problems == []
    assert fleet.pages == {("controller", key)}
    assert fleet.news("wrong") == [("controller", key)]
    assert set(fleet.news()) == {("controller", key)}
    assert root in status.message
    assert status.ever == len(names)
    held = [name for name, node in fleet.nodes.items() if node.daemon.notifier.held]
    assert held == names, "each holds its own, and shows it in its status"


def _after_s(fleet: Site, at: datetime) -> float:
    return (at - fleet.wall.now()).total_seconds() + 15 * 60


def test_without_notices_every_node_sends_its_own(folder: Path) -> None:
    """The same fleet, with a controller that leaves none: what the held messages are."""
    fleet = site(folder, holds=False)
    names, _ = file_server(fleet)
    fleet.run(10.0)
    assert {who for who, _ in fleet.news("wrong")} == {"controller", *names}


def test_eighteen_nodes_of_a_rack_are_fenced_as_one_and_put_back_as_one(folder: Path) -> None:
    """No node takes a slot of the budget for it, none of the other rack is touched; ten minutes after the last of them
    is repaired all eighteen are back, and the incident's end is one message."""
    fleet = site(folder)
    dead_rack(fleet)
    fleet.run(5.0)
    assert fleet.fenced == set(RACK_7)
    assert fleet.most_fenced == 1
    for name in RACK_7[:-1]:
        fleet.repairs(name)
    fleet.run(5.0)
    assert fleet.fenced == set(RACK_7), "one node is still broken, and the incident is open"
    fleet.repairs(RACK_7[-1])
    fleet.run(20.0, tick_s=LATER_S)
    assert fleet.fences == ()
    assert fleet.slurm.maintenance == set()
    assert fleet.stats.incidents == ()
    assert [key for who, key in fleet.news("over")] == [fleet.news("wrong")[0][1]]
    assert {who for who, _ in fleet.news()} == {"controller"}


def test_a_single_root_in_a_rack_is_one_node(folder: Path) -> None:
    """One dead NVLink, beside which 17 nodes warn: the message of one node, no incident, no fence. It comes after the
    wait for an incident."""
    fleet = site(folder)
    fleet.breaks(RACK_7[0], "gpu.nvlink.dead", Component(kind="nvlink", id="1"))
    for name in RACK_7[1:]:
        fleet.breaks(name, "gpu.xid.149", NODE, severity=Severity.WARNING)
    fleet.run(10.0)
    assert fleet.stats.incidents == ()
    assert fleet.fences == ()
    assert {who for who, _ in fleet.news("wrong")} == {RACK_7[0]}
    sent = fleet.messages[0][1] - fleet.wall.now() + timedelta(minutes=10)
    assert timedelta(seconds=85) <= sent <= timedelta(seconds=110)


def test_a_second_rack_waits_for_the_budget_of_domains_and_none_is_fenced_in_observe_mode(folder: Path) -> None:
    """An hour apart, so that each is broken alone: one is fenced, the other one's incident says why not."""
    fleet = site(folder)
    dead_rack(fleet)
    fleet.run(5.0)
    fleet.run(55.0, tick_s=size(TICK_S, 6 * TICK_S))
    for name in RACK_8:
        fleet.breaks(name, "gpu.imex.not_up", NODE)
    fleet.run(5.0)
    assert fleet.fenced == set(RACK_7)
    assert any("at the limit of fenced NVLink domains" in each.message for each in fleet.stats.incidents)
    observing = site(folder / "observing", mode=Mode.OBSERVE)
    dead_rack(observing)
    observing.run(5.0)
    assert observing.fences == ()
    assert "not fenced: in observe mode" in observing.stats.incidents[0].message


def test_a_controller_that_dies_loses_no_message(folder: Path) -> None:
    """Its notices end by themselves, after which every node that is still faulty sends its own."""
    fleet = site(folder)
    names, _ = file_server(fleet)
    fleet.run(5.0)
    assert {who for who, _ in fleet.news("wrong")} == {"controller"}
    fleet.run(13.0, head=False, tick_s=LATER_S)
    assert {who for who, _ in fleet.news("wrong")} == {"controller", *names}


def test_a_node_that_stays_faulty_after_its_incident_sends_its_own(folder: Path) -> None:
    """The incident ended without it: it tells after all."""
    fleet = site(folder)
    names, _ = file_server(fleet)
    fleet.run(5.0)
    for name in names[1:]:
        fleet.repairs(name)
    fleet.run(20.0, tick_s=LATER_S)
    assert fleet.stats.incidents == ()
    assert {who for who, _ in fleet.news("wrong")} == {"controller", names[0]}
