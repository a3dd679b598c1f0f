"""Takes the pictures that docs/how-to/status-page.md, docs/how-to/fleet.md and docs/how-to/messages.md show.

    python docs/screenshots.py [status|many|fleet|messages]

Four real daemons on simulated nodes, one in each state, and one with many findings of few causes; the controller's
page over made fleets of 64 and of 10,000 nodes; the messages of a real daemon, as they arrive at stand-ins on loopback;
and a headless Chromium. About two minutes. The pictures differ from run to run in times and ids, so nothing compares
them: look at them after a change of a page, and commit them. Nothing here is measured or recorded on hardware, and the
docs say so.
"""

from __future__ import annotations

import socketserver
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs import message_looks  # noqa: E402 - runs from a checkout in which nothing is installed
from tests.support.browser import Browser, missing  # noqa: E402 - runs from a checkout in which nothing is installed
from tests.support.fleet_server import FleetServer  # noqa: E402 - as above
from tests.support.large_fleet import large_fleet  # noqa: E402 - as above
from tests.support.services import Mailbox, a_service, serving, the_internet  # noqa: E402
from tests.support.status_nodes import BAD_GPU, StatusNode, four_nodes, node_of_many_findings  # noqa: E402

PICTURES = ROOT / "docs/pictures"
WIDE, NARROW = 920, 360
FLEET_WIDE, FLEET_HIGH = 1160, 740
WIDE_HEIGHT, NARROW_HEIGHT = 900, 1200
LIMIT_BYTES = 160_000
NOTIFY = """
[notify]
cluster = "train-a"
page = "https://healthd.example.com/{{node}}"
runbooks = "https://docs.example.com/docs/reference/runbooks"
slack_url_file = "{folder}/slack"
apprise_url_files = ["{folder}/teams", "{folder}/mail"]
"""


def main() -> int:
    """Write the pictures; exit 1 where there is no browser, or one is too large for a repository."""
    if why := missing():
        sys.stderr.write(f"{why}\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="healthd-") as folder:
        browser = Browser(Path(folder))
        try:
            for name in sys.argv[1:] or GROUPS:
                GROUPS[name](browser, Path(folder))
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


def take_many(browser: Browser, folder: Path) -> None:
    """A node on which 8 GPUs, 32 EFA devices and 15 checks have something: its page as it opens on a laptop and on a
    phone, and `healthd check` on it."""
    node = node_of_many_findings(folder / "many")
    try:
        for name, width, height in (("light", 1280, 800), ("narrow", 390, 844)):
            tab = browser.open(node.url, width=width, height=height)
            tab.wait("document.querySelector('#answer')")
            tab.screenshot(PICTURES / f"status-many-{name}.png")
            tab.close()
        argv = [sys.executable, "-m", "healthd", "check", "--socket", str(node.machine.socket)]
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, env={**node.environ, "FORCE_COLOR": "1"}
        )
        draw(browser, folder, "check-many", message_looks.terminal(done.stdout), width=1000)
    finally:
        node.stop()


def take_messages(browser: Browser, folder: Path) -> None:
    """The first message about a GPU that fell off the bus, as Slack, Teams and a mailbox get it."""
    Mailbox.got.clear()
    with (
        a_service() as chat,
        the_internet(folder / "internet.pem") as (internet, environ),
        socketserver.TCPServer(("127.0.0.1", 0), Mailbox) as post,
        serving(post),
    ):
        people = "from=healthd@example.com&to=oncall@example.com"
        mailto = f"mailto://127.0.0.1:{post.server_address[1]}/?{people}&mode=insecure"
        teams = "workflows://prod-1.westeurope.logic.azure.com:443/643e69f83c8944/abcdefghij0123456789"
        for name, url in (("slack", f"{chat.url}/services/T0/B0/x"), ("teams", teams), ("mail", mailto)):
            (folder / name).write_text(f"{url}\n")
        node = StatusNode(folder / "told", name="gpu-213", more=NOTIFY.format(folder=folder))
        node.environ |= environ
        try:
            node.start()
            node.machine.gpu_falls_off_the_bus(BAD_GPU)
            node.wait(lambda _: chat.asked and internet.asked and Mailbox.got, "each receiver has a message", 120.0)
        finally:
            node.stop()
    draw(browser, folder, "message-slack", message_looks.slack(chat.asked[0][1]), width=620)
    draw(browser, folder, "message-teams", message_looks.card(internet.asked[0][1]), width=620)
    draw(browser, folder, "message-mail", message_looks.mail(Mailbox.got[0]), width=620)


def draw(browser: Browser, folder: Path, name: str, inner: str, *, width: int) -> None:
    """A picture of what a receiver shows, as high as it is."""
    path = folder / f"{name}.html"
    path.write_text(message_looks.page(name, inner), encoding="utf-8")
    tab = browser.open(path.as_uri(), width=width, height=200)
    tab.wait("document.readyState == 'complete'")
    tab.screenshot(PICTURES / f"{name}.png", height=tab.evaluate("document.documentElement.scrollHeight"))
    tab.close()


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


GROUPS = {"status": take_status, "many": take_many, "fleet": take_fleets, "messages": take_messages}


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
