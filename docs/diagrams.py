"""Draws the pictures of README.md and docs/explanation/architecture.md, and the layers of the house, as SVG.

docs/generate.py writes the pictures to docs/pictures; docs/site.py puts them into its pages, with the colours of the
site. Text stays text: it can be searched, copied and read aloud.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from msgspec import Struct, field

LIGHT = {"ink": "#1d2733", "soft": "#4f5b69", "line": "#5a6675", "box": "#f1f3f6", "own": "#e2e7fb", "edge": "#8a96a5"}
DARK = {"ink": "#e6e9ee", "soft": "#b4bdc9", "line": "#98a3b1", "box": "#2b323c", "own": "#2c3566", "edge": "#6d7a8a"}
LINE_PX, BAND_PX = 17, 36
ROOT = Path(__file__).resolve().parent.parent
SHAPES = """
.drawn text { font: 13px system-ui, sans-serif; fill: var(--d-ink); }
.drawn .head { font-weight: 600; }
.drawn .soft { fill: var(--d-soft); font-size: 12px; }
.drawn rect { fill: var(--d-box); stroke: var(--d-edge); }
.drawn rect.own { fill: var(--d-own); }
.drawn rect.room { fill: none; stroke-dasharray: 5 4; }
.drawn line { stroke: var(--d-line); stroke-width: 1.4; }
.drawn line.lane { stroke: var(--d-edge); stroke-width: 1; stroke-dasharray: 2 5; }
.drawn .tip { fill: var(--d-line); stroke: none; }
"""


def colours(values: Mapping[str, str]) -> str:
    """The declarations of a set of colours."""
    return " ".join(f"--d-{name}: {value};" for name, value in values.items())


class Picture(Struct, kw_only=True):
    """A picture that grows by boxes, arrows and texts; lengths in pixels."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, text: str, *, kind: str = "", height: int = 0) -> None:
        """A box; the first line of its text is its head."""
        head, *rest = text.splitlines()
        tall = height or LINE_PX * (1 + len(rest)) + 16
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{tall}" rx="6"/>')
        self.text(x + 10, y + 21, head, kind="head")
        for number, line in enumerate(rest, 1):
            self.text(x + 10, y + 21 + number * LINE_PX, line, kind="soft")

    def text(self, x: int, y: int, words: str, *, kind: str = "", anchor: str = "start") -> None:
        """One line of text; ``y`` is its base line."""
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>')

    def arrow(self, x: int, y: int, to_x: int, to_y: int, words: str = "") -> None:
        """A horizontal or vertical arrow, with its words above it or at its right."""
        self.line(x, y, to_x, to_y)
        along = (1 if to_x > x else -1, 0) if y == to_y else (0, 1 if to_y > y else -1)
        across = (along[1], along[0])
        back = (to_x - 8 * along[0], to_y - 8 * along[1])
        corners = [
            (to_x, to_y),
            *((back[0] + side * 4 * across[0], back[1] + side * 4 * across[1]) for side in (1, -1)),
        ]
        self.parts.append(f'<polygon class="tip" points="{" ".join(f"{a},{b}" for a, b in corners)}"/>')
        if words and y == to_y:
            self.text((x + to_x) // 2, y - 6, words, kind="soft", anchor="middle")
        elif words:
            self.text(x + 8, (y + to_y) // 2 + 4, words, kind="soft")

    def line(self, x: int, y: int, to_x: int, to_y: int) -> None:
        """A part of an arrow, without its tip."""
        self.parts.append(f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}"/>')

    def lane(self, y: int, name: str, start: int) -> None:
        """A line of a timeline, with its name at the left."""
        self.text(8, y + 4, name, kind="head")
        self.parts.append(f'<line class="lane" x1="{start}" y1="{y}" x2="{self.width - 8}" y2="{y}"/>')

    def svg(self, *, alone: bool) -> str:
        """The picture: alone with its colours for both schemes, else to stand in a page that has them."""
        style = f".drawn {{ {colours(LIGHT)} }}\n@media (prefers-color-scheme: dark) {{ .drawn {{ {colours(DARK)} }} }}"
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        label = f'role="img" aria-label="{escape(self.title)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="drawn" {size} {label}>'
        return "\n".join([head, *([f"<style>{style}{SHAPES}</style>"] if alone else []), *self.parts, "</svg>", ""])


def who_calls_whom() -> Picture:
    """The processes, and which of them asks which."""
    shown = Picture(title="Who calls whom: the daemon on a node, the cluster and AWS", width=980, height=480)
    shown.box(10, 40, 470, "GPU node", kind="room", height=430)
    shown.text(240, 28, 'An arrow reads "calls".', kind="soft", anchor="middle")
    shown.box(30, 85, 170, "Slurm hooks, you\nhealthd check, status,\nplan, ack, release")
    shown.box(30, 290, 170, "Prometheus\nscrapes /metrics")
    shown.box(
        270,
        85,
        190,
        "healthd run\nchecks, diagnosis, policy\n(pure judgement)\nengine: records, acts,\nverifies",
        kind="own",
        height=265,
    )
    shown.arrow(200, 118, 270, 118, "socket")
    shown.arrow(200, 316, 270, 316, "HTTP")
    shown.box(30, 390, 200, "kernel log, sysfs, IMDS\nread without a worker")
    shown.box(270, 390, 190, "probe workers\nNVML, mounts, commands")
    shown.arrow(365, 350, 365, 390, "deadline")
    shown.line(285, 350, 285, 372)
    shown.line(285, 372, 130, 372)
    shown.arrow(130, 372, 130, 390)
    shown.box(
        640,
        85,
        320,
        "slurmctld, or the Kubernetes API server\nslot, drain or taint, handoff record:\nthe cluster keeps the budget",
    )
    shown.arrow(460, 118, 640, 118, "scontrol, HTTPS")
    shown.box(
        640,
        230,
        320,
        "healthd controller (optional)\non a head node or in a pod: acts for\nnodes without permissions; fleet page",
        kind="own",
    )
    shown.arrow(800, 230, 800, 152, "reads their requests")
    shown.box(640, 390, 320, "AWS\nHyperPod, ParallelCluster, PCS, EKS, EC2:\nreboots or replaces the machine")
    shown.arrow(800, 297, 800, 390, "asks for the repair")
    shown.line(460, 260, 500, 260)
    shown.line(500, 260, 500, 434)
    shown.arrow(500, 434, 640, 434, "or the node itself")
    shown.box(520, 300, 105, "receivers\nof messages")
    shown.arrow(460, 325, 520, 325)
    return shown


def life_of_a_fault() -> Picture:
    """From evidence to the end of a fault."""
    shown = Picture(title="The life of a fault: found, judged, repaired, ended by evidence", width=980, height=440)
    row = [
        ("evidence\na kernel line,\na reading"),
        ("finding\ncode, severity,\ncomponent"),
        ("open fault\nstored with the\nlog's cursor"),
        ("diagnosis\nroot cause, remedy;\nsymptoms folded in"),
        ("decision\nby rule, mode\nand budget"),
    ]
    for number, text in enumerate(row):
        shown.box(10 + number * 196, 20, 166, text, kind="own" if number else "")
        if number:
            shown.arrow(10 + number * 196 - 30, 53, 10 + number * 196, 53)
    for number, text in enumerate(
        [
            "hold\nno act: the reason\nis in plan",
            "page\na message to the\noperator",
            "quarantine\nout of service\nuntil evidence",
            "repair\nout of service,\nthen the remedy",
        ]
    ):
        shown.box(206 + number * 196, 140, 166, text)
    shown.arrow(877, 87, 877, 140)
    shown.text(785, 118, "one of these four:", kind="soft", anchor="end")
    steps = [
        "slot\nof the budget",
        "drain\nread back",
        "idle\nno job left",
        "evidence\nbundle saved",
        "remedy\nreset, reboot\nor replace",
        "verified\nchecks pass\nand settle",
    ]
    for number, text in enumerate(steps):
        shown.box(10 + number * 162, 260, 138, text, height=67)
        if number:
            shown.arrow(10 + number * 162 - 24, 293, 10 + number * 162, 293)
    shown.arrow(877, 207, 877, 260, "steps")
    shown.box(495, 365, 300, "the same fault again\nthe next larger remedy, within bounds", height=54)
    shown.arrow(727, 365, 727, 327)
    shown.box(820, 365, 138, "released\nthe fault has ended", kind="own", height=54)
    shown.arrow(877, 327, 877, 365)
    shown.text(10, 385, "Age ends no fault. Evidence does: a reset, a reboot,", kind="soft")
    shown.text(10, 402, "a new machine, or a check that sees it no more.", kind="soft")
    shown.text(10, 419, "Each step is recorded before it is done, and read back.", kind="soft")
    return shown


def slurm_timeline() -> Picture:
    """One XID 79 on a Slurm node, in mode repair."""
    shown = Picture(title="Timeline on Slurm: XID 79 on a node in mode repair", width=980, height=400)
    lanes = {"kernel": 60, "healthd": 130, "slurmctld": 210, "job": 285, "machine": 345}
    for name, y in lanes.items():
        shown.lane(y, name, 90)
    shown.text(100, 24, "time, not to scale", kind="soft")
    shown.box(100, 40, 120, "XID 79\non GPU 3", height=42)
    shown.box(190, 108, 130, "fault stored\ndecides: repair", height=44)
    shown.arrow(205, 82, 205, 108)
    shown.box(240, 186, 130, "slot\nreservation: no\nnew job starts", height=64)
    shown.arrow(300, 152, 300, 186)
    shown.box(390, 108, 100, "settles\n10 s, re-reads", height=44)
    shown.arrow(320, 130, 390, 130)
    shown.box(430, 186, 130, "DRAIN\nwith healthd's\nreason and id", height=64)
    shown.arrow(460, 152, 460, 186)
    shown.box(100, 268, 420, "the running job goes on to its end", height=34)
    shown.arrow(520, 285, 570, 285, "ends")
    shown.box(570, 108, 110, "idle\nasks to reboot", height=44)
    shown.arrow(490, 130, 570, 130)
    shown.box(640, 325, 130, "reboot\nnew boot id", height=42)
    shown.arrow(655, 152, 655, 325)
    shown.box(720, 108, 110, "healthy\nand stays so", height=44)
    shown.arrow(750, 325, 750, 152)
    shown.box(850, 186, 122, "released\nundrained, slot\ngiven back", height=64)
    shown.box(850, 108, 122, "re-reads\nits own drain?", height=44)
    shown.arrow(830, 130, 850, 130)
    shown.arrow(911, 152, 911, 186)
    return shown


def layers(boxes: Sequence[str]) -> Picture:
    """Boxes from the top to the bottom, each of which imports those below it."""
    shown = Picture(title="Packages, from the top to the bottom", width=640, height=62 * len(boxes))
    for number, words in enumerate(boxes):
        shown.box(10, 62 * number + 4, 620, words, height=36)
        if number:
            shown.arrow(320, 62 * number - 22, 320, 62 * number + 4)
    return shown


def layers_of(container: str) -> list[list[str]]:
    """The packages of each layer of this package's contract in pyproject.toml, from the top."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    (found,) = (each["layers"] for each in contracts if each.get("containers") == [container])
    return [[name.strip(" ()") for name in re.split("[|:]", layer)] for layer in found]


def house() -> Picture:
    """The layers of healthd, and beside them those of its acting half."""
    whole, acting = layers_of("healthd"), layers_of("healthd.remediation")
    shown = Picture(title="The packages of healthd, in layers: each imports those below it", width=980, height=44)
    shown.height += BAND_PX * len(whole)
    shown.text(30, 24, "healthd", kind="head")
    shown.text(500, 24, "healthd.remediation", kind="head")
    shown.text(968, 24, "Each layer imports those below it.", kind="soft", anchor="end")
    top = next(number for number, layer in enumerate(whole) if "remediation" in layer)
    first = min(max(top - len(acting) // 2, 0), len(whole) - len(acting))
    for x, start, layers_ in ((10, 0, whole), (480, first, acting)):
        shown.arrow(x + 8, 40 + BAND_PX * start, x + 8, 32 + BAND_PX * (start + len(layers_)))
        for number, layer in enumerate(layers_, start):
            width = 440 // len(layer)
            for place, name in enumerate(layer):
                kind = "own" if name == "remediation" or x > 10 else ""
                shown.box(x + 20 + place * width, 36 + BAND_PX * number, width - 6, name, kind=kind, height=30)
    return shown


PICTURES = {"calls": who_calls_whom, "fault": life_of_a_fault, "house": house, "slurm": slurm_timeline}
