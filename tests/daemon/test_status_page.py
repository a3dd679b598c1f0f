"""The status page in a real browser, fed by real daemons on simulated nodes, and the same facts in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from healthd.sim.tree import mount
from tests.support.browser import Browser, Tab
from tests.support.limits import limit_s
from tests.support.running import HEEDS_SIGINT
from tests.support.status_nodes import BAD_GPU, StatusNode, four_nodes, node_of_many_findings
from tests.unit.observe.test_report import violations

pytestmark = [pytest.mark.process, pytest.mark.slow]

NARROW = 360
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "status.schema.json"
HOSTILE = "<img/src=x/onerror=owned=1><script>owned=1</script>"
TOO_WIDE = f"""(() => {{
  document.querySelectorAll('details').forEach((each) => each.open = true);
  const wide = [...document.querySelectorAll('body *')]
    .filter((each) => !each.closest('.skip') && each.checkVisibility())
    .filter((each) => each.getBoundingClientRect().right > {NARROW} + 0.5
      || (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display !== 'inline'));
  return [document.documentElement.scrollWidth > {NARROW} ? 'the page' : '',
    ...wide.map((each) => each.outerHTML.slice(0, 120))].filter(Boolean);
}})()"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, StatusNode]]:
    """The four states, each a running daemon."""
    made = four_nodes(tmp_path_factory.mktemp("nodes"))
    yield made
    for node in made.values():
        node.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Callable[[StatusNode], Tab]]:
    """Opens the page of a node and waits until it shows an answer."""
    tabs: list[Tab] = []

    def opened(node: StatusNode, **size: Any) -> Tab:
        tabs.append(browser.open(node.url, **size))
        tabs[-1].wait("document.querySelector('#answer')")
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.close()


def text(tab: Tab, selector: str) -> str:
    return str(tab.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))


def cells(tab: Tab, kind: str) -> list[str]:
    """What each cell of a strip says to whoever cannot see colours: its sign and its name."""
    found: list[str] = tab.evaluate(
        f"[...document.querySelectorAll('#strip-{kind} .cell')].map((each) => each.querySelector('b').innerText"
        " + ' ' + each.getAttribute('aria-label'))"
    )
    return found


# -- the four states ---------------------------------------------------------------------------------------------------


def test_a_healthy_node_says_yes_first(nodes: Mapping[str, StatusNode], page: Callable[..., Tab]) -> None:
    """The first line answers the question, nothing is said to be wrong, and every part is marked well."""
    tab = page(nodes["healthy"])
    assert text(tab, "h1") == "Yes, this node is fit for jobs."
    assert text(tab, "#next") == "Nothing: no fault is open; the checks go on."
    assert cells(tab, "gpu") == [f"✓ GPU {index}: ok" for index in range(8)]
    assert cells(tab, "efa") == [f"✓ EFA {index}: ok" for index in range(32)]
    assert tab.evaluate("document.querySelector('#faults, #remediation, #why')") is None
    assert re.search(r"✓ 3\d ok, the oldest ran \d+ s ago", text(tab, "#checks"))


def test_a_bad_gpu_is_named_and_marked(nodes: Mapping[str, StatusNode], page: Callable[..., Tab]) -> None:
    """Why not, which GPU, what would be done and why it is not done; the others are well."""
    tab = page(nodes["critical"])
    assert text(tab, "h1") == "No, this node is not fit for jobs."
    why, _, step = text(tab, "#why").partition("\n")
    assert re.fullmatch(rf"gpu\.xid\.79 GPU {BAD_GPU} XID 79 on GPU {BAD_GPU}: .*fallen off the bus", why)
    assert step.startswith("What you do ")
    assert text(tab, "#next").startswith(
        "healthd does nothing by itself. Observe mode: would take the node out for gpu.xid.79 on GPU 3"
    )
    expected = [f"✓ GPU {index}: ok" for index in range(8)]
    expected[BAD_GPU] = f"✕ GPU {BAD_GPU}: critical"
    assert cells(tab, "gpu") == expected
    assert "would take the node out for gpu.xid.79 on GPU 3 (reboot_node)" in text(tab, "#faults")
    assert "gpu.xid.79" in tab.evaluate("document.querySelector('[data-check=\"kernel.xid\"]').textContent")
    assert text(tab, "#page").count("fallen off the bus") <= 3, "the answer, the fault and the timeline"
    assert "decision" in text(tab, "#timeline")


def test_a_repair_shows_where_it_stands(nodes: Mapping[str, StatusNode], page: Callable[..., Tab]) -> None:
    """Out, the step that is under way and what it waits for, those that are done and those to come."""
    tab = page(nodes["repairing"])
    assert text(tab, "h1") == "No, this node is out while healthd repairs it."
    assert text(tab, "#next").startswith(
        "Now: reboot the node (reboot asked for; waiting for a new boot id). Then: verify"
    )
    steps = tab.evaluate("[...document.querySelectorAll('.steps li')].map((each) => each.className)")
    assert steps == ["done", "done", "done", "done", "now", "todo", "todo"]
    assert text(tab, ".steps .now") == "▶\nreboot the node (now)"
    assert "reboot asked for" in text(tab, "#timeline")


def test_a_blind_node_is_not_called_healthy(nodes: Mapping[str, StatusNode], page: Callable[..., Tab]) -> None:
    """Without a driver nothing is known of the GPUs: the answer says so, once for all checks, and so does each cell."""
    tab = page(nodes["unknown"])
    assert text(tab, "h1") == "Cannot tell whether this node is fit for jobs."
    assert re.match(r"gpu\.count and \d+ more checks NVML: nvmlInit answered DRIVER_NOT_LOADED", text(tab, "#why"))
    assert cells(tab, "gpu") == [f"? GPU {index}: unknown" for index in range(8)]
    assert tab.evaluate("document.querySelector('#answer').dataset.state") == "unknown"


@pytest.mark.parametrize("state", ["healthy", "critical", "repairing", "unknown"])
def test_nothing_overflows_on_a_phone(nodes: Mapping[str, StatusNode], page: Callable[..., Tab], state: str) -> None:
    """At 360 px, with all that can be unfolded unfolded, no element is wider than its place."""
    tab = page(nodes[state], width=NARROW, height=800)
    assert tab.evaluate("innerWidth") == NARROW
    assert tab.evaluate(TOO_WIDE) == []


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_what_is_behind_them(
    nodes: Mapping[str, StatusNode], page: Callable[..., Tab], dark: bool
) -> None:
    """Contrast of at least 4.5 to 1 (WCAG 2.2, 1.4.3) for the answer, its reasons and each kind of cell, both ways."""
    for state, wanted in (
        ("critical", "h1, #why, .cell.critical b, .cell.ok b, .age, time"),
        ("unknown", "h1, .cell b"),
        ("repairing", "h1, .steps .now, .steps .done"),
        ("healthy", "h1, .top .soft"),
    ):
        tab = page(nodes[state], dark=dark)
        assert tab.evaluate(f"matchMedia('(prefers-color-scheme: dark)').matches === {str(dark).lower()}")
        for color, behind, what in tab.evaluate(COLOURS % json.dumps(wanted)):
            assert contrast(color, behind) >= 4.5, (state, what, color, behind)


COLOURS = """[...document.querySelectorAll(%s)].map((each) => {
  let behind = each;
  while (behind && /, 0\\)$/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const ground = getComputedStyle(behind || document.body).backgroundColor;
  return [getComputedStyle(each).color, ground, each.outerHTML.slice(0, 60)];
})"""


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours that a browser names ``rgb(r, g, b)`` (WCAG 2.2, relative luminance)."""
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# -- one cause, many findings ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatusNode]:
    """32 EFA devices, 8 GPUs and 15 checks, each with something, on one running node."""
    node = node_of_many_findings(tmp_path_factory.mktemp("many") / "node")
    yield node
    node.stop()


CAUSES = {"gpu.xid.79": "8 GPUs (0-7)", "efa.counters.no_completion": "32 EFA devices (0-31)"}
LOWEST = "document.querySelector(%s).getBoundingClientRect().bottom"


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_decision_and_the_next_step_stand_above_the_fold(
    many: StatusNode, page: Callable[..., Tab], width: int, height: int
) -> None:
    """The answer, what healthd does next, and what the operator does about the worst, without scrolling."""
    tab = page(many, width=width, height=height)
    for shown in ("h1", "#next", "#why li:first-child .do"):
        assert 0 < tab.evaluate(LOWEST % json.dumps(shown)) <= height, shown


def test_each_cause_stands_once_on_the_page(many: StatusNode, page: Callable[..., Tab]) -> None:
    """In the answer and in the plan, with its devices as a range; the strips name no device again."""
    tab = page(many, width=1280, height=800)
    for code, where in CAUSES.items():
        assert text(tab, f"#why li[data-code='{code}']").startswith(f"{code} {where} ")
        assert tab.evaluate(f"document.querySelectorAll('.fault[data-code=\"{code}\"]').length") == 1
    shown = text(tab, "#page")
    assert shown.count("fallen off the bus") <= 5, "the answer, the fault, and the timeline with decisions in between"
    assert not [name for name in ("GPU 5", "EFA 5", "GPU-51a1a7ed", "rdmap") if name in shown]
    assert text(tab, "#checks").count("\n") < 12


@pytest.mark.parametrize("verb", ["check", "status", "plan"])
def test_each_cause_stands_once_in_the_terminal(many: StatusNode, verb: str) -> None:
    """`check` in 15 lines; the decision and the next step in the first ten of each. ``-v`` has each finding."""
    done = healthd(many, verb, "--socket", str(many.machine.socket))
    shown = done.stdout.splitlines()
    first = "\n".join(shown[:10])
    assert "do: " in first
    assert {"check": "not usable, 2 problems", "status": "No, this node", "plan": "would take"}[verb] in first
    for code, where in CAUSES.items():
        assert sum(line.split()[1:2] == [code] for line in shown) == 1, done.stdout
        assert sum(code in line and where in line for line in shown if line.split()[1:2] == [code]) == 1
    assert "GPU-51a1a7ed" not in done.stdout
    assert len(shown) <= {"check": 15, "status": 40, "plan": 20}[verb], done.stdout
    assert healthd(many, verb, "-v", "--socket", str(many.machine.socket)).stdout.count("efa:rdmap") >= 32


# -- as it is used -----------------------------------------------------------------------------------------------------


def test_a_refresh_touches_only_what_changed(nodes: Mapping[str, StatusNode], page: Callable[..., Tab]) -> None:
    """No element is made or removed while nothing happens; what is open and focused stays so. ``r`` asks at once."""
    tab = page(nodes["healthy"])
    tab.evaluate("document.querySelector('summary').focus()")
    tab.press("Enter")
    tab.wait("document.querySelector('#checks details').open")
    tab.evaluate(
        "window.made = []; new MutationObserver((all) => made.push(...all.map((each) => each.target.id)))"
        ".observe(document.getElementById('main'), {childList: true, subtree: true}); 1"
    )
    asked = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/status')).length"
    before = tab.evaluate(asked)
    tab.press("r")
    tab.wait(f"{asked} > {before}", within_s=1.5)
    tab.wait(f"{asked} > {before} + 1")
    assert tab.evaluate("made") == []
    assert tab.evaluate("document.querySelector('#checks details').open && document.activeElement.tagName") == "SUMMARY"


def test_a_refresh_keeps_the_plan_of_each_device(nodes: Mapping[str, StatusNode], page: Callable[..., Tab]) -> None:
    """Two devices with one fault and a plan each: every row stays where it is, in the element that it had."""
    tab = page(nodes["critical"])
    shown = tab.evaluate(
        """(() => {
          const cause = last.causes[0], plan = cause.decisions[0], dl = () => document.querySelector('.fault dl');
          const of = (where, step) => ({ ...plan, where, steps: [step], ladder: [], cannot: {}, message: where });
          last = { ...last, causes: [{ ...cause, decisions: [of('GPU 1', 'drain'), of('GPU 2', 'reboot')] }] };
          return [1, 2].map(() => { const kept = [...dl().children]; draw();
            return [[...dl().querySelectorAll('dd')].slice(2, 6).map((each) => each.textContent),
              [...dl().children].every((each) => kept.includes(each))]; });
        })()"""
    )
    rows = ["GPU 1", "take the node out of service", "GPU 2", "reboot the node"]
    assert shown[0][0] == rows
    assert shown[1] == [rows, True]


def test_the_keyboard_reaches_the_status_first(nodes: Mapping[str, StatusNode], page: Callable[..., Tab]) -> None:
    """The first stop leads past everything to the answer, and what has the focus is visible."""
    tab = page(nodes["healthy"])
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.innerText") == "To the status"
    assert tab.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    tab.press("Enter")
    tab.wait("document.activeElement.id === 'main'")


def test_a_daemon_that_stops_is_said_to_be_gone_since_when(
    nodes: Mapping[str, StatusNode], page: Callable[..., Tab]
) -> None:
    """Nothing of what stands there is taken for the present; when the daemon is back, all is as it was."""
    node = nodes["healthy"]
    tab = page(node)
    node.stop()
    tab.wait("!document.getElementById('gone').hidden")
    gone = text(tab, "#gone")
    assert re.match(r"The daemon has not answered since \d\d:\d\d:\d\d UTC \(\d+ s\): no server at its address", gone)
    assert text(tab, "h1") == "Cannot tell: the daemon does not answer."
    assert "Its last status: Yes, this node is fit for jobs." in text(tab, "#next")
    assert tab.evaluate("document.title").startswith("✕ no answer")
    assert tab.evaluate(TOO_WIDE.replace(str(NARROW), "1100")) == []
    node.start()
    tab.wait("document.querySelector('h1').textContent === 'Yes, this node is fit for jobs.'")
    assert tab.evaluate("document.getElementById('gone').hidden")


def test_what_the_machine_says_is_never_html(tmp_path: Path, page: Callable[..., Tab]) -> None:
    """A mount and a reason that are HTML stand there letter by letter; and were they HTML, the policy runs nothing."""
    node = StatusNode(tmp_path / "hostile", mode="observe")
    mount(node.machine.root, f"99 26 259:1 / /mnt/{HOSTILE} rw,relatime shared:9 - ext4 /dev/nvme9n1 rw,emergency_ro")
    node.start()
    try:
        order = ["quarantine", "--reason", HOSTILE, "--socket", str(node.machine.socket)]
        done = healthd(node, *order)
        assert done.returncode == 0, done.stderr
        tab = page(node)
        tab.wait(f"document.body.innerText.includes({json.dumps(HOSTILE)})")
        assert HOSTILE in text(tab, "#why") + text(tab, "#timeline")
        assert HOSTILE in json.dumps(node.status()["checks"]), "no check names the mount: this proves nothing of it"
        assert HOSTILE in text(tab, "#faults")
        assert tab.evaluate("document.querySelectorAll('#page img, #page script').length") == 0
        tab.evaluate(f"document.body.insertAdjacentHTML('beforeend', {json.dumps(HOSTILE)})")
        time.sleep(0.3)
        assert tab.evaluate("typeof owned") == "undefined"
    finally:
        node.stop()


def test_the_page_asks_for_nothing_elsewhere(nodes: Mapping[str, StatusNode]) -> None:
    """One file, a policy without exceptions, and no verb that could act."""
    url = nodes["critical"].url
    with urllib.request.urlopen(url, timeout=limit_s(10)) as answer:  # noqa: S310 - http, on loopback
        policy, html = answer.headers["Content-Security-Policy"], answer.read().decode()
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert re.findall(r"https?:|//[a-z]+\.|<link rel=\"?stylesheet|<script src", html) == []
    for path in ("", "status"):
        rebound = urllib.request.Request(url + path, headers={"Host": "rebound.example"})  # noqa: S310 - http
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(rebound, timeout=limit_s(10))  # noqa: S310 - as above
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(url, data=b"x", timeout=limit_s(10))  # noqa: S310 - as above


# -- the same in a terminal --------------------------------------------------------------------------------------------


def healthd(node: StatusNode, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "healthd", *arguments],
        env={**node.environ, **environ},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
    )


@pytest.mark.parametrize("state", ["healthy", "critical", "repairing", "unknown"])
def test_the_data_is_the_published_schema(nodes: Mapping[str, StatusNode], state: str) -> None:
    """What the page and `healthd status --json` get is valid, and the same from both doors."""
    node = nodes[state]
    data = node.status()
    schema = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    assert list(violations(data, schema, schema)) == []
    asked = json.loads(healthd(node, "status", "--json", "--socket", str(node.machine.socket)).stdout)
    assert asked.keys() == data.keys()
    seconds = re.compile(r"\d+ s\b")  # for which NVML is still paused
    assert seconds.sub("", json.dumps(asked["headline"])) == seconds.sub("", json.dumps(data["headline"]))


@pytest.mark.parametrize("state", ["healthy", "critical", "repairing", "unknown"])
def test_the_terminal_tells_the_same_in_the_same_order(nodes: Mapping[str, StatusNode], state: str) -> None:
    """The node and the answer, next, each cause, the remediation, the strips, the checks, the timeline."""
    node = nodes[state]
    data = node.status()
    output = healthd(node, "status", "--socket", str(node.machine.socket)).stdout
    facts = [
        data["node"] + "  ",
        data["headline"]["message"],
        "p5.48xlarge · ",
        data["headline"]["next"],
        *(f" {each['code']}" for each in data["causes"]),
        *(["steps     [done] slot"] if data["remediation"] else []),
        "\nGPU ",
        "\nEFA ",
        "\n  ok ",
    ]
    last = data["timeline"][-1]["text"]  # what was decided last stands further up as well
    places = [*(output.find(fact) for fact in facts), output.rfind(last)]
    facts.append(last)
    assert -1 not in places, (facts[places.index(-1)], output)
    assert places == sorted(places)


def test_each_user_gets_the_colours_of_their_own_terminal(nodes: Mapping[str, StatusNode]) -> None:
    """The daemon renders for a pipe, a pager that shows colours (FORCE_COLOR) and an operator who wants none."""
    node = nodes["critical"]
    at = ("--socket", str(node.machine.socket))
    plain = {verb: healthd(node, verb, *at).stdout for verb in ("check", "status", "plan", "history")}
    assert "\x1b" not in "".join(plain.values())
    red = {verb: healthd(node, verb, *at, FORCE_COLOR="1").stdout for verb in plain}
    for verb in ("check", "status", "plan"):
        assert re.search(r"^\x1b\[1;31m[^\x1b]*gpu\.xid\.79[^\x1b]*\x1b\[0m$", red[verb], re.MULTILINE), red[verb]
    assert "\x1b[1;31m" in red["history"]
    assert re.sub(r"\x1b\[[0-9;]*m", "", red["history"]).startswith(plain["history"])
    assert "\x1b" not in healthd(node, "status", *at, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b" not in healthd(node, "status", "--json", *at, FORCE_COLOR="1").stdout


def test_history_follows_the_daemon(nodes: Mapping[str, StatusNode]) -> None:
    """Each new line, in the operator's own choice, until Ctrl-C; with --json one object a line."""
    node = nodes["critical"]
    at = ("--socket", str(node.machine.socket))
    argv = [*HEEDS_SIGINT, sys.executable, "-m", "healthd", "history", "--follow", "--json", "--kind", "check", *at]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=node.environ, cwd="/", start_new_session=True) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        shown = _read(pipe, lambda so_far: "\n" in so_far)
        healthd(node, "check", "--context", "epilog", *at)
        shown += _read(pipe, lambda so_far: "epilog asked for the verdict: critical" in so_far)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=limit_s(20)) == 0
    assert {json.loads(line)["kind"] for line in shown.splitlines()} == {"check"}
    assert " check  " not in healthd(node, "history", *at).stdout


WATCH = [*HEEDS_SIGINT, sys.executable, "-m", "healthd", "status", "--watch", "--every", "0.5"]


@pytest.mark.parametrize(
    ("verb", "headline"),
    [
        ("status", "gpu-42  CRITICAL  No, this node is not fit for jobs."),
        ("plan", "gpu-42  mode observe  policy nvidia  orchestrator local"),
        ("doctor", "ok               configuration: "),
    ],
)
def test_watch_redraws_a_terminal_and_ends_on_interrupt(
    nodes: Mapping[str, StatusNode], verb: str, headline: str
) -> None:
    """A screen of its own, drawn over without wiping it; Ctrl-C gives the old one back, with exit code 0."""
    ours, theirs = pty.openpty()
    at = ("--config", str(nodes["critical"].machine.config)) if verb == "doctor" else ()
    argv = [*WATCH, *at, "--socket", str(nodes["critical"].machine.socket)]
    argv[argv.index("status")] = verb
    environ = {**nodes["critical"].environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd="/", start_new_session=True
    )
    os.close(theirs)
    shown = _read(ours, lambda so_far: so_far.count("\x1b[H") >= 3)
    process.send_signal(signal.SIGINT)
    shown += _read(ours, lambda so_far: "\x1b[?1049l" in so_far)
    assert process.wait(timeout=limit_s(20)) == 0
    os.close(ours)
    assert shown.startswith("\x1b[?1049h")
    assert "\x1b[2J" not in shown
    frame = shown.split("\x1b[H")[2].split("\x1b[J")[0]
    assert verb != "status" or "\x1b[1;31mgpu-42  CRITICAL" in frame
    lines = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", frame).split("\r\n")
    assert lines[0].startswith(f"healthd {verb}, ")
    assert lines[1].startswith(headline)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_watch_without_a_terminal_prints_what_changes(tmp_path: Path) -> None:
    """Into a pipe: the answer once, then a line for each thing that is other than before; so of a daemon that goes."""
    node = StatusNode(tmp_path / "node", mode="observe")
    node.start()
    argv = [*WATCH, "--socket", str(node.machine.socket)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=node.environ, cwd="/", start_new_session=True) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        output = _read(pipe, lambda so_far: "Yes, this node is fit for jobs." in so_far)
        node.machine.gpu_falls_off_the_bus(BAD_GPU)
        output += _read(pipe, lambda so_far: f"GPU {BAD_GPU} is critical" in so_far and "fault: gpu.xid.79" in so_far)
        node.stop()
        output += _read(pipe, lambda so_far: "NO ANSWER" in so_far)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=limit_s(20)) == 0
    assert output.count("Yes, this node is fit for jobs.") == 1
    assert output.count(f"GPU {BAD_GPU} is critical") == 1
    assert "CRITICAL  No, this node is not fit for jobs." in output
    assert "\x1b" not in output


def _read(descriptor: int, enough: Callable[[str], bool], within_s: float = 20.0) -> str:
    """What comes until it is enough."""
    got, until = b"", time.monotonic() + limit_s(within_s)
    while not enough(got.decode(errors="replace")):
        if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
            raise AssertionError(f"not enough within {limit_s(within_s):g} s: {got.decode(errors='replace')}")
        if not (chunk := os.read(descriptor, 65536)):
            raise AssertionError(f"it ended: {got.decode(errors='replace')}")
        got += chunk
    return got.decode(errors="replace")
