"""Takes the pictures of the pages that docs/how-to/status-page.md and docs/how-to/fleet.md show.

    python docs/screenshots.py [status|fleet]

Four real daemons on simulated nodes, one in each state, then the controller's page over made fleets of 64 and of 10,000
nodes, and a headless Chromium; about a minute. The pictures differ from run to run in times and ids, so nothing
compares them: look at them after a change of a page, and commit them. Nothing here is measured or recorded on hardware,
and the docs say so.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import Browser, missing  # noqa: E402 - runs from a checkout in which nothing is installed
from tests.support.fleet_server import FleetServer  # noqa: E402 - as above
from tests.support.large_fleet import large_fleet  # noqa: E402 - as above
from tests.support.status_nodes import StatusNode, four_nodes  # noqa: E402

PICTURES = ROOT / "docs/pictures"
WIDE, NARROW = 920, 360
FLEET_WIDE, FLEET_HIGH = 1160, 740
WIDE_HEIGHT, NARROW_HEIGHT = 900, 1200
LIMIT_BYTES = 160_000


def main() -> int:
    """Write the pictures; exit 1 where there is no browser, or one is too large for a repository."""
    if why := missing():
        sys.stderr.write(f"{why}\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="healthd-") as folder:
        browser = Browser(Path(folder))
        try:
            if "status" in (sys.argv[1:] or ["status"]):
                take_status(browser, Path(folder))
            if "fleet" in (sys.argv[1:] or ["fleet"]):
                take_fleets(browser, Path(folder))
        finally:
            browser.close()
    sizes = {path.name: path.stat().st_size for path in sorted(PICTURES.glob("*.png"))}
    sys.stdout.write("".join(f"{size:>8} {name}\n" for name, size in sizes.items()))
    return int(max(sizes.values()) > LIMIT_BYTES)


def take_status(browser: Browser, folder: Path) -> None:
    """The pictures of a node's page."""
    nodes = four_nodes(folder / "nodes")
    try:
        for name, node in nodes.items():
            take(browser, node, PICTURES / f"status-{name}-light.png")
            take(browser, node, PICTURES / f"status-{name}-dark.png", dark=True)
        take(browser, nodes["critical"], PICTURES / "status-critical-narrow.png", narrow=True)
        take(browser, nodes["repairing"], PICTURES / "status-gone-light.png", gone=True)
    finally:
        for node in nodes.values():
            node.stop()


def take_fleets(browser: Browser, folder: Path) -> None:
    """The pictures of the page of the fleet, the small one with a node that is open."""
    for count, names, shown in ((64, "gpu-{:03d}", "gpu-021"), (10_000, "gpu-{:05d}", "")):
        read = partial(large_fleet, count, names=names)
        with FleetServer(read, folder / str(count), node_url="https://grafana.example/{node}") as server:
            for dark in (False, True):
                path = PICTURES / f"fleet-{count}-{'dark' if dark else 'light'}.png"
                take_fleet(browser, f"{server.url}#node={shown}", path, dark=dark)
            if shown:
                take_fleet(browser, server.url, PICTURES / "fleet-64-narrow.png", narrow=True)


def take_fleet(browser: Browser, url: str, path: Path, *, dark: bool = False, narrow: bool = False) -> None:
    """One picture of the page of the fleet."""
    width, height = (390, 844) if narrow else (FLEET_WIDE, FLEET_HIGH)
    tab = browser.open(url, width=width, height=height, dark=dark)
    tab.wait("performance.getEntriesByName('drawn').length && document.querySelector('#events li')", 60)
    tab.screenshot(path)
    tab.close()


def take(
    browser: Browser, node: StatusNode, path: Path, *, dark: bool = False, narrow: bool = False, gone: bool = False
) -> None:
    """One picture. ``gone``: of a page whose daemon was stopped while it was open."""
    width, height = (NARROW, NARROW_HEIGHT) if narrow else (WIDE, WIDE_HEIGHT)
    tab = browser.open(node.url, width=width, height=height, dark=dark)
    tab.wait("document.querySelector('#answer')")
    if gone:
        node.stop()
        tab.wait("!document.getElementById('gone').hidden")
    tab.screenshot(path)
    tab.close()


if __name__ == "__main__":
    sys.exit(main())
