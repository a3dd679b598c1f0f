"""The page of the fleet in a real browser, over the controller's own reader, routes and HTTP server."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.controller.fleet_reader import SHOWN_EVERY_S
from healthd.core.errors import BackendUnknown
from healthd.fleet.nodes import FleetNode, FleetPicture, fleet_nodes
from healthd.remediation.ports import Hold
from tests.daemon.test_status_page import COLOURS, HOSTILE, contrast, text
from tests.support.browser import Browser, Tab
from tests.support.fleet_server import FleetServer
from tests.support.large_fleet import SICK_RACK, SILENT_AFTER_S, large_fleet
from tests.support.limits import limit_s

pytestmark = [pytest.mark.process, pytest.mark.slow]

NARROW = 390
TOO_WIDE = f"""(() => {{
  const wide = [...document.querySelectorAll('body *')]
    .filter((each) => !each.closest('.skip, .tile, #tip') && each.checkVisibility())
    .filter((each) => each.getBoundingClientRect().right > {NARROW} + 0.5);
  return [document.documentElement.scrollWidth > {NARROW} ? 'the page' : '',
    ...wide.map((each) => each.outerHTML.slice(0, 120))].filter(Boolean);
}})()"""
PIXEL = """(() => { const cell = model.cells[%d], tile = tiles.get(Math.floor(cell.y / TILE)), ratio = devicePixelRatio;
  return [...tile.element.firstChild.getContext('2d')
    .getImageData((cell.x + 4) * ratio, (cell.y - tile.top + 4) * ratio, 1, 1).data].slice(0, 3); })()"""
"""The colour that a cell is filled with, near its corner and beside its sign."""
UNNAMED = """[...document.querySelectorAll('button, input, select, [role], [tabindex]')]
  .filter((each) => each.checkVisibility() && each.tabIndex >= 0)
  .filter((each) => !(each.getAttribute('aria-label') || each.innerText.trim() || each.labels?.length
    || document.getElementById(each.getAttribute('aria-labelledby'))))
  .map((each) => each.outerHTML.slice(0, 120))"""
"""Elements that the keyboard reaches and that have no name for a screen reader."""


FIND = """(() => { const each = document.getElementById('find');
  each.value = '%s'; each.dispatchEvent(new Event('input')); })()"""
WORDS = (
    "h1, .live, .notice, #budget strong, #budget span, #states button, #states b, .tile span, .lines li, .lines .hosts,"
    " .lines time, .lines strong, dt, dd, #node a"
)
IN_CELL = """(() => { const box = space.getBoundingClientRect(), cell = model.cells[%d];
  return [box.x + cell.x + 8, box.y + cell.y + 8]; })()"""


class Fleet:
    """A fleet that a test may change: ``nodes`` of 64 with one sick rack, or ``wrong`` where it cannot be read."""

    def __init__(self, count: int = 64) -> None:
        self.count, self.wrong = count, ""
        self.change: Callable[[FleetPicture], FleetPicture] = lambda fleet: fleet

    def __call__(self, now: datetime) -> FleetPicture:
        if self.wrong:
            raise BackendUnknown(self.wrong)
        return self.change(large_fleet(self.count, now, names="gpu-{:03d}"))


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def server(fleet: Fleet, tmp_path: Path) -> Iterator[FleetServer]:
    with FleetServer(fleet, tmp_path, node_url="https://site.example/d/node?var-node={node}") as made:
        yield made


@pytest.fixture
def page(browser: Browser, server: FleetServer) -> Iterator[Callable[..., Tab]]:
    """Opens the page and waits until its cells are drawn. ``at``: what stands behind # in the address."""
    tabs: list[Tab] = []

    def opened(at: str = "", **size: Any) -> Tab:
        tabs.append(browser.open(f"{server.url}#{at}", **size))
        tabs[-1].wait("performance.getEntriesByName('drawn').length")
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.close()


def again(tab: Tab, server: FleetServer) -> None:
    """Have the page ask for a reading that is due."""
    drawn = tab.evaluate("performance.getEntriesByName('drawn').length")
    server.elapsed_s += SHOWN_EVERY_S
    tab.evaluate("document.body.focus()")
    tab.press("r")
    tab.wait(f"performance.getEntriesByName('drawn').length > {drawn}", 30)


def groups(tab: Tab) -> dict[str, int]:
    found: dict[str, int] = tab.evaluate("Object.fromEntries(model.groups.map((each) => [each.label, each.count]))")
    return found


# -- what it shows -----------------------------------------------------------------------------------------------------


def test_one_cell_a_node_in_its_rack_and_the_budget_on_top(page: Callable[..., Tab]) -> None:
    """64 cells in four racks, the sick one named so, the incident, the budget, the reading's age."""
    tab = page()
    assert groups(tab) == {"rack-001": 18, "rack-002": 18, "rack-003": 18, "rack-004": 10}
    assert "rack-002 · ✕ 18 of 18" in tab.evaluate(
        "[...document.querySelectorAll('.tile span')].map((e) => e.textContent)"
    )
    assert re.search(r"Budget: \d of 3 out\n\d slots? taken", text(tab, "#budget"))
    assert "lustre.missing on 18 nodes, first gpu-" in text(tab, "#over")
    assert re.match(r"● read \d+ s ago", text(tab, "#live"))
    assert re.search(r"\d\d:\d\d\s*18 nodes ✕ critical: lustre.missing mount:/fsx", text(tab, "#events"))
    assert "✕ critical 18 lustre.missing mount:/fsx" in text(tab, "#groups")
    assert tab.evaluate("document.title") == "✕ 18 critical · fleet train-a"


@pytest.mark.parametrize("dark", [False, True])
def test_each_state_has_its_colour_and_its_sign(page: Callable[..., Tab], dark: bool) -> None:
    """A critical cell is another colour than a healthy one, in both themes; a word and a sign stand beside each."""
    tab = page(dark=dark)
    sick = SICK_RACK * 18
    colours = [tuple(tab.evaluate(PIXEL % cell)) for cell in (0, sick, sick + 1)]
    assert colours[0] != colours[1] == colours[2]
    expected = "rgb(255, 143, 140)" if dark else "rgb(179, 24, 30)"
    assert f"rgb({colours[1][0]}, {colours[1][1]}, {colours[1][2]})" == expected
    assert tab.evaluate(
        "new Set(Object.values(SIGN)).size === STATES.length && STATES.every((each) => SIGN[each] && LOOK[each])"
    )
    assert "✕ critical 18" in text(tab, "#states")


def test_the_same_groups_as_the_command(page: Callable[..., Tab]) -> None:
    """By partition, a node of two stands in each; by type and code; the choice is kept in the address."""
    tab = page("by=partition")
    assert groups(tab) == {"all": 46, "dev": 18, "infer": 18, "train": 28}
    for by, wanted in (("type", {"p4d.24xlarge": 18, "p5.48xlarge": 28, "p5en.48xlarge": 18}), ("code", None)):
        tab.evaluate(f"by = document.getElementById('by'), by.value = '{by}', by.dispatchEvent(new Event('change'))")
        tab.wait(f"location.hash === '#by={by}' && !drawing")
        assert wanted is None or groups(tab) == wanted
    assert groups(tab)["lustre.missing"] == 18


def test_filters_show_less_and_say_so(page: Callable[..., Tab]) -> None:
    """By state, and by text in name, code, user or rack; both are in the address, which opens the same again."""
    tab = page()
    tab.evaluate("document.querySelector('#states [data-state=critical]').click()")
    tab.wait("model.cells.length === 18")
    assert text(tab, "#shown") == "18 nodes of 64"
    assert (
        tab.evaluate("document.querySelector('#states [data-state=critical]').getAttribute('aria-pressed')") == "true"
    )
    tab.evaluate(FIND % "GPU-02")
    tab.wait("model.cells.length === 10")
    same = page(tab.evaluate("location.hash.slice(1)"))
    assert same.evaluate("[model.cells.length, document.getElementById('find').value]") == [10, "GPU-02"]


def test_a_click_is_the_node(page: Callable[..., Tab]) -> None:
    """Who, why, since, step, waits for, slot; a link to its own page; Escape closes it and gives the focus back."""
    tab = page()
    x, y = tab.evaluate(IN_CELL % 20)
    for kind in ("mousePressed", "mouseReleased"):
        tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    tab.wait("!document.getElementById('node').hidden")
    shown = text(tab, "#node")
    assert "gpu-021 ✕ critical" in shown
    assert re.search(r"why\s+lustre.missing mount:/fsx\s+since\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(\d+ min ago\)", shown)
    assert re.search(r"rack\s+rack-002", shown)
    assert tab.evaluate("document.querySelector('#node a').href") == "https://site.example/d/node?var-node=gpu-021"
    assert tab.evaluate("document.activeElement.id") == "node-name"
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape", windowsVirtualKeyCode=27)
    tab.wait("document.getElementById('node').hidden && document.activeElement.id === 'grid'")


def test_a_repair_shows_its_step_slot_and_history(fleet: Fleet, page: Callable[..., Tab]) -> None:
    """A node that healthd reboots: out by healthd, its slot, what was tried before."""
    fleet.count = 400
    tab = page()
    tab.evaluate("open_(fleet.nodes.find((each) => each.state === 'repairing').name, true)")
    shown = text(tab, "#node")
    for fact in (
        r"out by\s+healthd",
        r"step\s+reboot",
        r"slot\s+cluster \d+, for",
        r"repairs\s+.* reset for gpu.xid.79: failed",
    ):
        assert re.search(fact, shown), shown


# -- as it is used -----------------------------------------------------------------------------------------------------


def test_the_keyboard_reaches_every_cell(page: Callable[..., Tab]) -> None:
    """The first stop leads to the nodes; arrows move, Enter opens, and a screen reader is told the cell."""
    tab = page()
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.innerText") == "To the nodes"
    tab.press("Enter")
    tab.wait("document.activeElement.id === 'grid'")

    def arrow(key: str) -> str:
        tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
        return str(tab.evaluate("document.getElementById(grid.getAttribute('aria-activedescendant')).ariaLabel"))

    tab.evaluate("point(0)")
    assert arrow("ArrowRight").startswith("gpu-002, ok")
    assert arrow("ArrowDown").startswith("gpu-006, warning, efa.counters.retrans efa:rdmap0s6, rack-001")
    assert arrow("End").startswith("gpu-064, ok")
    assert arrow("Home").startswith("gpu-001, ok")
    tab.press("Enter")
    tab.wait("!document.getElementById('node').hidden")
    assert "gpu-001" in text(tab, "#node")
    assert tab.evaluate(UNNAMED) == []


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_what_is_behind_them_in_the_fleet(page: Callable[..., Tab], dark: bool) -> None:
    """Contrast of at least 4.5 to 1 (WCAG 2.2, 1.4.3), of the signs on their cells as well."""
    tab = page(dark=dark)
    tab.evaluate("open_('gpu-020', false)")
    for color, behind, what in tab.evaluate(COLOURS % json.dumps(WORDS)):
        assert contrast(color, behind) >= 4.5, (what, color, behind)
    looks = """(() => { const on = document.createElement('canvas').getContext('2d'), { of } = colours();
      const rgb = (name) => { on.fillStyle = of[name]; on.fillRect(0, 0, 1, 1);
        return `rgb(${[...on.getImageData(0, 0, 1, 1).data].slice(0, 3)})`; };
      return STATES.map((state) => [rgb(LOOK[state][1]), rgb(LOOK[state][0]), state]); })()"""
    for color, behind, what in tab.evaluate(looks):
        assert contrast(color, behind) >= 4.5, (what, color, behind)


def test_nothing_of_the_fleet_overflows_on_a_phone(page: Callable[..., Tab]) -> None:
    """At 390 px, with a node open."""
    tab = page(width=NARROW, height=800)
    tab.evaluate("open_('gpu-020', false)")
    assert tab.evaluate("innerWidth") == NARROW
    assert tab.evaluate(TOO_WIDE) == []
    assert tab.evaluate("model.cells.every((each) => each.x + model.wide <= space.clientWidth)")


def test_a_new_reading_changes_cells_and_keeps_the_place(
    fleet: Fleet, server: FleetServer, page: Callable[..., Tab]
) -> None:
    """The open node, the cell that the keyboard is on and the filter stay; a node that has left is said to be gone."""
    tab = page()
    tab.evaluate("point(30); open_('gpu-064', false)")
    fleet.change = lambda picture: replace(picture, nodes=picture.nodes[2:-1])
    again(tab, server)
    tab.wait("model.cells.length === 61")
    assert tab.evaluate("model.cells[cursor].node.name") == "gpu-031"
    assert "This node is not in the fleet as it was read last." in text(tab, "#node")


def test_a_reading_that_fails_is_said_beside_the_last_one(
    fleet: Fleet, server: FleetServer, page: Callable[..., Tab]
) -> None:
    """With the time and the reason; the cells stay; the next reading takes it away."""
    tab = page()
    fleet.wrong = "slurmctld does not answer"
    server.elapsed_s += SHOWN_EVERY_S
    tab.wait("(ask(), document.getElementById('error'))", 30)
    assert re.match(
        r"The fleet could not be read at \d\d:\d\d:\d\d UTC: slurmctld does not answer\. "
        r"Below is the reading of \d\d:\d\d:\d\d UTC\.",
        text(tab, "#error"),
    )
    assert tab.evaluate("model.cells.length") == 64
    fleet.wrong = ""
    again(tab, server)
    tab.wait("!document.getElementById('error')")


def test_a_controller_that_stops_is_said_to_be_gone(server: FleetServer, page: Callable[..., Tab]) -> None:
    """Nothing of what stands there is taken for the present."""
    tab = page()
    server.close()
    tab.wait("(ask(), !document.getElementById('gone').hidden)", 30)
    gone = text(tab, "#gone")
    assert re.match(
        r"The controller has not answered since \d\d:\d\d:\d\d UTC \(\d+ s\): no server at its address", gone
    )
    assert tab.evaluate("document.title").startswith("✕ no answer")
    assert text(tab, "#live") == "✕ no answer"


def test_ten_thousand_cells_are_drawn_where_they_are_in_sight(fleet: Fleet, page: Callable[..., Tab]) -> None:
    """A handful of tiles, whatever the scroll position; each node has its cell, and the last one is reached."""
    fleet.count = 10_000
    tab = page()
    assert tab.evaluate("[model.cells.length, new Set(model.cells.map((each) => each.node.name)).size]") == [10_000] * 2
    tab.evaluate("grid.focus(), point(model.cells.length - 1)")
    tab.wait("[...tiles.keys()].includes(Math.ceil(model.height / TILE) - 1)")
    assert tab.evaluate("tiles.size <= 2 + Math.ceil(grid.clientHeight / TILE)")
    assert tab.evaluate("document.querySelectorAll('*').length") < 3000


# -- what it trusts ----------------------------------------------------------------------------------------------------


def hostile(node: FleetNode) -> FleetNode:
    listed = replace(
        node.listed,
        name=f"{HOSTILE}{node.name}",
        group=HOSTILE,
        partitions=(HOSTILE,),
        state=HOSTILE,
        flags=frozenset({"DRAIN"}),
        out=True,
        instance_type=HOSTILE,
        hold=Hold(text=HOSTILE, user=HOSTILE, stamp=int(node.now.timestamp()) - 60),
    )
    return fleet_nodes([listed], (), {}, node.now, silent_after_s=SILENT_AFTER_S)[0]


def test_what_nodes_and_users_say_is_never_html(fleet: Fleet, page: Callable[..., Tab]) -> None:
    """A name, rack, reason, user, type and remark that are HTML stand there letter by letter; and were they HTML, the
    policy runs nothing."""
    fleet.change = lambda picture: replace(
        picture,
        cluster=HOSTILE,
        freeze=HOSTILE,
        remarks=(HOSTILE,),
        nodes=tuple(hostile(each) for each in picture.nodes[:5]),
    )
    tab = page()
    tab.evaluate("open_(fleet.nodes[0].name, false)")
    for place in ("#top", "#over", "#groups", "#events", "#node", "#grid"):
        assert HOSTILE in text(tab, place), place
    tab.evaluate("point(1)")
    assert HOSTILE in tab.evaluate("document.getElementById('cell').ariaLabel")
    assert tab.evaluate("document.querySelector('#node a').href").startswith(
        "https://site.example/d/node?var-node=%3Cimg"
    )
    assert tab.evaluate("document.querySelectorAll('#page img, #page script').length") == 0
    tab.evaluate(f"document.body.insertAdjacentHTML('beforeend', {json.dumps(HOSTILE)})")
    time.sleep(0.3)
    assert tab.evaluate("typeof owned") == "undefined"


def test_the_page_of_the_fleet_asks_for_nothing_elsewhere(server: FleetServer) -> None:
    """One file, a policy without exceptions."""
    with urllib.request.urlopen(server.url, timeout=limit_s(10)) as answer:  # noqa: S310 - http, on loopback
        policy, html = answer.headers["Content-Security-Policy"], answer.read().decode()
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert (
        re.findall(r"https?:|//[a-z]+\.|<link rel=\"?stylesheet|<script src|innerHTML|insertAdjacentHTML|eval\(", html)
        == []
    )
