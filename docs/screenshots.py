"""Takes the pictures of the status page that docs/how-to/status-page.md shows.

    python docs/screenshots.py

Four real daemons on simulated nodes, one in each state, and a headless Chromium; about a minute. The pictures differ
from run to run in times and case ids, so nothing compares them: look at them after a change of the page, and commit
them. Nothing here is measured or recorded on hardware, and the page says so on each of them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import Browser, missing  # noqa: E402 - runs from a checkout in which nothing is installed
from tests.support.status_nodes import StatusNode, four_nodes  # noqa: E402

PICTURES = ROOT / "docs/pictures"
WIDE, NARROW = 920, 360
WIDE_HEIGHT, NARROW_HEIGHT = 900, 1200
LIMIT_BYTES = 150_000


def main() -> int:
    """Write the pictures; exit 1 where there is no browser, or one is too large for a repository."""
    if why := missing():
        sys.stderr.write(f"{why}\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="healthd-") as folder:
        nodes = four_nodes(Path(folder) / "nodes")
        browser = Browser(Path(folder))
        try:
            for name, node in nodes.items():
                take(browser, node, PICTURES / f"status-{name}-light.png")
                take(browser, node, PICTURES / f"status-{name}-dark.png", dark=True)
            take(browser, nodes["critical"], PICTURES / "status-critical-narrow.png", narrow=True)
            take(browser, nodes["repairing"], PICTURES / "status-gone-light.png", gone=True)
        finally:
            browser.close()
            for node in nodes.values():
                node.stop()
    sizes = {path.name: path.stat().st_size for path in sorted(PICTURES.glob("status-*.png"))}
    sys.stdout.write("".join(f"{size:>8} {name}\n" for name, size in sizes.items()))
    return int(max(sizes.values()) > LIMIT_BYTES)


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
