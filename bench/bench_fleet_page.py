"""The page of the fleet in Chromium, with 64, 1,000 and 10,000 nodes: from the request to the drawn cells, and the
frames while an operator scrolls, filters and groups, and while a new reading arrives.

The controller's own reader, routes and HTTP server, over a fleet that is made and not read from a cluster, in a process
of its own; browser and server share the machine. The reading is there already when the page is opened, as it is where
the controller leads.

Aims, for 10,000 nodes: drawn within 1 s, and no frame longer than 100 ms, each as the median of the runs: one run
measures what else this machine does as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import structlog

from bench.measure import skipped, write_down
from tests.support.browser import Browser, Tab, missing
from tests.support.fleet_server import FleetServer
from tests.support.large_fleet import large_fleet

AIM_DRAWN_MS, AIM_FRAME_MS = 1000.0, 100.0
SIZES = (64, 1000, 10_000)
FRAMES = """
new Promise((done) => {
  const act = %s, times = [];
  let frame = 0, before = 0;
  const next = (now) => {
    if (before) times.push(now - before);
    before = now;
    if (frame >= %d) { done(times); return; }
    act(frame++);
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})
"""
SCROLL = "(frame) => { grid.scrollTop = (frame * 97) % Math.max(1, grid.scrollHeight - grid.clientHeight); }"
"""Another part of the fleet in each frame: a quick flick."""
FILTER = """(frame) => {
  if (frame % 15 === 0) document.querySelector('#states button[data-state="warning"], #states button').click();
  if (frame % 15 === 5) { const find = document.getElementById('find'); find.value = find.value ? '' : 'xid';
    find.dispatchEvent(new Event('input')); }
  if (frame % 15 === 10) { const by = document.getElementById('by'); by.selectedIndex = (by.selectedIndex + 1) % 4;
    by.dispatchEvent(new Event('change')); }
}"""
REFRESH = "(frame) => { if (frame % 60 === 0) { fleet.read_at = ''; ask(); } }"
"""The whole document again, parsed and drawn, three times."""
DOCUMENTS = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/fleet')).length"


def main() -> int:
    """Measure and write down. Exit 1 where an aim is missed, 77 where there is no browser."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=5, help="runs of each size")
    runs = parser.parse_args().n
    if reason := missing():
        return skipped(reason)
    figures: dict[str, Any] = {"runs": runs}
    with tempfile.TemporaryDirectory(prefix="healthd-") as folder:
        browser = Browser(Path(folder))
        try:
            for nodes in SIZES:
                figures |= measured(browser, nodes, runs, Path(folder))
        finally:
            browser.close()
    figures |= {f"aim_drawn_{SIZES[-1]}_ms": AIM_DRAWN_MS}
    figures |= {f"aim_{what}_{SIZES[-1]}_worst_frame_ms": AIM_FRAME_MS for what in ("scroll", "filter", "refresh")}
    write_down("fleet_page", figures)
    return int(any(figures[name.removeprefix("aim_")] > figures[name] for name in figures if name.startswith("aim_")))


def measured(browser: Browser, nodes: int, runs: int, folder: Path) -> dict[str, Any]:
    """The figures of one size, each the median of the runs."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, nodes, str(folder / str(nodes))))
    server.start()
    try:
        url: str = ours.recv()
        found = [one_run(browser, url) for _ in range(runs)]
    finally:
        ours.send("end")
        server.join()
    return {
        f"drawn_{nodes}_ms": round(median(each["drawn"] for each in found), 1),
        **{
            f"{what}_{nodes}_worst_frame_ms": round(median(max(each[what]) for each in found), 1)
            for what in ("scroll", "filter", "refresh")
        },
    }


def one_run(browser: Browser, url: str) -> dict[str, Any]:
    """One page: milliseconds to the drawn cells, and of each frame."""
    tab = browser.open(url, width=1200, height=900)
    try:
        tab.wait("performance.getEntriesByName('drawn').length", 60)
        drawn: float = tab.evaluate("performance.getEntriesByName('drawn')[0].startTime")
        acts = {"scroll": SCROLL, "filter": FILTER, "refresh": REFRESH}
        found = {what: frames(tab, act, 180) for what, act in acts.items()}
        if (times := tab.evaluate(DOCUMENTS)) < 1 + 3:
            raise RuntimeError(f"the page fetched the fleet {times} times: no refresh was measured")
        return {"drawn": drawn, **found}
    finally:
        tab.close()


def frames(tab: Tab, act: str, count: int) -> list[float]:
    """The milliseconds of so many frames, while something is done."""
    found: list[float] = tab.evaluate(FRAMES % (act, count))
    return found


def serve(pipe: Connection, nodes: int, folder: str) -> None:
    """The controller's side: answers until it is told to end."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with FleetServer(lambda now: large_fleet(nodes, now), Path(folder)) as server:
        read = False
        while not read:  # the first request begins the reading
            with urllib.request.urlopen(f"{server.url}fleet/news", timeout=120) as answer:  # noqa: S310 - loopback
                read = bool(json.load(answer)["read_at"])
        with urllib.request.urlopen(f"{server.url}fleet", timeout=120):  # noqa: S310 - loopback
            pass
        pipe.send(server.url)
        pipe.recv()


if __name__ == "__main__":
    sys.exit(main())
