"""What an operator asks and orders: plan, history and ack, with a real daemon and without one."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from healthd.core.model import Mode, Refusal
from healthd.remediation.orchestrators.local import HOLD_FILE
from tests.support.engine_rig import XID_79, World
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.running import NOBODY, OFF_THE_BUS, RunningNode

PCI = "0000:05:00"
FAULT = f"gpu.xid.79@gpu:{PCI}"
SECTIONS = """
[remediation]
mode = "quarantine"
settle_s = 0.2
opt_out_file = "{opt_out}"
[orchestrator]
kind = "local"
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node that may be taken out, and has opted out until its file is removed; a GPU has fallen off its bus."""
    (tmp_path / "opt-out").touch()
    made = RunningNode(tmp_path / "node", "n1", sections=SECTIONS.format(opt_out=tmp_path / "opt-out"))
    made.start()
    made.kernel_says(OFF_THE_BUS.format(pci=PCI))
    made.wait(lambda: "gpu.xid.79" in ask(made, "plan").stdout, 20, "the fault is seen")
    yield made
    made.stop()


def ask(node: RunningNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    return node.healthd(*arguments, "--socket", str(node.socket))


def is_held(node: RunningNode) -> bool:
    return (node.state_dir / HOLD_FILE).exists()


@pytest.mark.process
def test_a_fault_is_planned_acknowledged_and_told(node: RunningNode, tmp_path: Path) -> None:
    """The plan says what and why not; after the order the node stays in service, a kill -9 and a restart included,
    until the operator ends that."""
    plan = json.loads(ask(node, "plan", "--json").stdout)
    (about,) = (each for each in plan["plans"] if each["code"] == "gpu.xid.79")
    assert (plan["schema"], plan["mode"], about["action"]) == ("healthd.plan/v1", "quarantine", "hold")
    assert about["message"] == f"opted out: {tmp_path / 'opt-out'} exists"
    assert about["ladder"][-1] == "replace_node"
    dry = ask(node, "ack", FAULT, "--for", "7d", "--reason", "known", "--dry-run")
    assert (dry.returncode, dry.stdout.startswith(f"would be acknowledged: gpu.xid.79 on GPU {PCI}")) == (0, True)
    rehearsed = json.loads(ask(node, "ack", FAULT, "--for", "7d", "--reason", "known", "--dry-run", "--json").stdout)
    assert rehearsed.pop("until").startswith("20")
    assert rehearsed == {
        "schema": "healthd.command/v1",
        "node": "n1",
        "command": "ack",
        "dry_run": True,
        "done": True,
        "faults": [{"code": "gpu.xid.79", "component": f"gpu:{PCI}", "was": ""}],
        "problem": "",
    }
    assert "acknowledged gpu" not in node.log_text()
    done = ask(node, "ack", FAULT, "--for", "7d", "--reason", "ticket\n12")
    assert (done.returncode, done.stdout.startswith(f"acknowledged: gpu.xid.79 on GPU {PCI} until 20")) == (0, True)
    by_its_name = ask(node, "ack", f"gpu.xid.79@GPU {PCI}", "--for", "7d", "--reason", "known", "--dry-run")
    assert by_its_name.returncode == 0, by_its_name.stderr
    again = json.loads(ask(node, "ack", FAULT, "--for", "8d", "--reason", "known", "--json").stdout)
    assert (again["dry_run"], again["faults"][0]["was"].startswith("acknowledged until 20")) == (False, True)
    (tmp_path / "opt-out").unlink()
    node.wait(lambda: "acknowledged: an operator wants" in ask(node, "status").stdout, 20, "the order is outcome")
    node.kill()
    node.start()
    node.wait(lambda: "acknowledged: an operator wants" in ask(node, "plan").stdout, 20, "it still is")
    assert not is_held(node)
    assert node.check()["verdict"] == "critical"
    assert "    acknowledged until 20" in ask(node, "check").stdout
    told = ask(node, "history").stdout
    assert f"acknowledged gpu.xid.79 on GPU {PCI} until " in told
    assert "ticket 12 (uid " in told
    assert "GPU has fallen off the bus." in told
    assert len(ask(node, "history", "--last", "2").stdout.splitlines()) >= 2
    end = ("ack", FAULT, "--end", "--reason", "the wrong node")
    dry = ask(node, *end, "--dry-run")
    assert dry.stdout.startswith(f"would count again: gpu.xid.79 on GPU {PCI} (it was acknowledged until 20"), dry
    done = ask(node, *end)
    assert (done.returncode, done.stdout.startswith(f"counts again: gpu.xid.79 on GPU {PCI}")) == (0, True)
    node.wait(lambda: is_held(node), 20, "the node is drained for it")
    twice = ask(node, *end)
    assert (twice.returncode, twice.stderr) == (64, f"healthd ack --end: {FAULT} is not acknowledged here\n")


@pytest.mark.process
def test_history_without_a_daemon(node: RunningNode) -> None:
    """The database tells the same, and says where it comes from; a node on which none ever ran has an error."""
    before = json.loads(ask(node, "history", "--json").stdout)["events"]
    node.kill()
    alone = node.healthd("history", "--json", "--config", str(node.config))
    assert (alone.returncode, "not from the daemon" in alone.stderr) == (0, True)
    assert json.loads(alone.stdout)["events"][: len(before)] == before
    other = RunningNode(node.folder / "other", "n2")
    never = other.healthd("history", "--config", str(other.config))
    assert (never.returncode, "no state database; healthd has not run here" in never.stderr) == (70, True)
    for verb in (("plan",), ("ack", "gpu.ecc", "--for", "7d", "--reason", "x")):
        silent = ask(other, *verb)
        assert (silent.returncode, "no daemon answers at" in silent.stderr) == (69, True)


@pytest.mark.process
def test_a_fault_that_is_not_open_is_refused_with_what_is(node: RunningNode) -> None:
    """Another place, a code that is not open, a misspelt one, a wrong time: each says what was expected."""
    for fault, words in (
        ("gpu.xid.79@gpu:1", f"gpu.xid.79 is open, but not on 'gpu:1'; expected one of: GPU {PCI}"),
        ("gpu.sram.threshold", "open here: "),
        ("gpu.xid.97", "did you mean gpu.xid.79?"),
    ):
        wrong = ask(node, "ack", fault, "--for", "7d", "--reason", "x")
        assert (wrong.returncode, words in wrong.stderr) == (64, True), wrong.stderr


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask as another user")
def test_everybody_may_read_and_few_may_order(node: RunningNode) -> None:
    """Plan, history and what an order would do are for all; the order itself is for root and the group."""
    order = ("ack", FAULT, "--for", "7d", "--reason", "x")
    for verb, code, words in (
        (("plan",), 0, ""),
        (("history",), 0, ""),
        ((*order, "--dry-run"), 0, ""),
        (order, 77, f"healthd ack: uid {NOBODY} may not act here"),
    ):
        made = node.as_nobody(*verb)
        assert (made.returncode, words in made.stderr) == (code, True), made.stderr
    assert "acknowledged gpu" not in node.log_text()


@pytest.fixture
def commanded(tmp_path: Path) -> Iterator[RunningNode]:
    """A node in observe mode with nothing wrong, whose metrics can be read at ``port``."""
    made = RunningNode(tmp_path / "node", "n1")
    (port,) = free_ports(1)
    text = made.config.read_text().replace('http = ""', f'http = "127.0.0.1:{port}"')
    made.config.write_text(text + '[remediation]\nsettle_s = 0.2\n[orchestrator]\nkind = "local"\n')
    made.start()
    yield made
    made.stop()


def refusals(node: RunningNode) -> dict[str, float]:
    """The metric, by its reason."""
    address = node.config.read_text().partition('http = "')[2].partition('"')[0]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=limit_s(10)) as answer:
        lines = answer.read().decode().splitlines()
    values = [line.split(" ") for line in lines if line.startswith("healthd_refusals_total{")]
    return {name.partition('reason="')[2].rstrip('"}'): float(value) for name, value in values}


@pytest.mark.process
def test_an_order_takes_the_node_out_until_another_lets_it_in(commanded: RunningNode) -> None:
    """In observe mode, through a kill -9; asked again it is so already; the person's words are in the trail."""
    dry = ask(commanded, "quarantine", "--reason", "psu\nlooks odd", "--dry-run")
    assert (dry.returncode, dry.stdout.splitlines()[0]) == (
        0,
        f"would quarantine: operator.quarantine on node, psu looks odd (uid {os.getuid()})",
    )
    assert not is_held(commanded)
    assert ask(commanded, "quarantine", "--reason", "psu\nlooks odd").returncode == 0
    commanded.wait(lambda: is_held(commanded), 10, "held")
    commanded.kill()
    commanded.start()
    again = ask(commanded, "quarantine", "--reason", "other words")
    assert (again.returncode, again.stdout.startswith("quarantined already, psu looks odd (uid ")) == (0, True)
    plan = json.loads(ask(commanded, "plan", "--json").stdout)
    assert plan["remediation"]["message"].endswith("; until `healthd release`")
    commanded.wait(lambda: ask(commanded, "release").returncode == 0, 20, "let in")
    commanded.wait(lambda: not is_held(commanded), 20, "back")
    done = ask(commanded, "release")
    assert (done.returncode, done.stdout) == (
        0,
        "n1 is in service, and no remediation is open: there is nothing to release\n",
    )
    assert "psu looks odd (uid " in ask(commanded, "history").stdout
    lines = [json.loads(line) for line in commanded.log.read_text().splitlines()]
    assert {line["node"] for line in lines if line["event"] == "engine"} == {"n1"}
    bound = {(line["remediation_id"], line["code"], line["component"]) for line in lines if "remediation_id" in line}
    assert bound == {(plan["remediation"]["id"], "operator.quarantine", "node")}, lines


@pytest.mark.process
def test_a_refusal_is_in_status_log_metrics_and_audit(commanded: RunningNode) -> None:
    """Of an order that nobody here can carry out; every word is there from the start, with nothing counted."""
    before = refusals(commanded)
    assert set(before) == set(Refusal)
    assert not any(before.values())
    refused = ask(commanded, "repair", "--step", "replace", "--reason", "new one", "--yes")
    words = "no replace_node here: the local provisioner has no replace_node: see [provisioner] kind"
    assert (refused.returncode, refused.stderr) == (1, f"healthd repair: refused: {words}\n")
    assert refusals(commanded) == {**before, "cannot": 1.0}
    told = f"refused: repair by command, new one (uid {os.getuid()}): {words}"
    assert told in ask(commanded, "status").stdout
    assert told in ask(commanded, "history").stdout
    logged = [json.loads(line) for line in commanded.log.read_text().splitlines() if '"verb": "repair"' in line]
    assert [(each["code"], each["uid"], each["message"]) for each in logged] == [
        (1, os.getuid(), refused.stderr.strip())
    ]
    dry = ask(commanded, "repair", "--step", "replace", "--reason", "new one", "--dry-run", "--json")
    rehearsed = json.loads(dry.stdout)
    assert (dry.returncode, rehearsed["command"], rehearsed["dry_run"], rehearsed["done"]) == (1, "repair", True, False)
    nothing = ask(commanded, "undo", "abcd", "--reason", "new one", "--dry-run")
    words = "no remediation 'abcd': none is open here; see `healthd status`"
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == f"healthd undo: would be refused: {words}\n"
    unasked = ask(commanded, "repair", "--step", "replace", "--reason", "new one", "--json")
    assert (unasked.returncode, json.loads(unasked.stdout)) == (1, rehearsed)


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask as another user")
def test_only_few_may_order_the_engine(commanded: RunningNode) -> None:
    """Another user is refused, and that is in the trail once, however often it is tried."""
    for verb, code in (
        (("quarantine", "--reason", "x"), 77),
        (("quarantine", "--reason", "x"), 77),
        (("quarantine", "--reason", "x", "--dry-run"), 0),
        (("release",), 77),
        (("repair", "--step", "reboot", "--yes"), 77),
        (("repair", "--step", "reboot", "--dry-run"), 77),
    ):
        made = commanded.as_nobody(*verb)
        assert made.returncode == code, (verb, made.stderr)
        assert (f"uid {NOBODY} may not act here" in made.stderr) == (code == 77)
    assert not is_held(commanded)
    assert commanded.log_text().count(f"command: refused quarantine: uid {NOBODY} may not act here") == 1
    assert refusals(commanded)["not_permitted"] == 5.0


def test_a_word_about_a_held_node_lets_it_go_and_its_end_takes_it_out_again(tmp_path: Path) -> None:
    """Our own drain is undone by us; the fault is still open, and when the time is over it counts again."""
    world = World(tmp_path, mode=Mode.QUARANTINE)
    world.log_line(XID_79)
    world.run(10)
    assert world.ending().drains == 1
    keys, now = list(world.monitor.history.faults), world.clock.now()
    world.monitor.acknowledge_until(keys, now + timedelta(seconds=300), now, "known")
    world.run(40)
    assert (world.ending().in_service, world.ending().ends) == (True, ("released",))
    world.restart_daemon()
    world.run(10)
    assert world.ending().in_service
    world.run(30)
    assert (world.ending().in_service, world.ending().drains) == (False, 2)
    world.close()


def test_a_word_while_a_job_still_runs_stops_the_repair(tmp_path: Path) -> None:
    """The node was to be rebooted when its job had ended: it is put back instead, and nothing is rebooted."""
    world = World(tmp_path, mode=Mode.REPAIR)
    world.start_job()
    world.log_line(XID_79)
    world.run(10)
    assert world.ending().drains == 1
    keys, now = list(world.monitor.history.faults), world.clock.now()
    world.monitor.acknowledge_until(keys, now + timedelta(days=7), now, "known")
    world.run(10)
    world.end_jobs()
    world.run(20)
    assert (world.ending().in_service, world.ending().ends, world.provisioner.requests) == (True, ("released",), 0)
    world.close()


@pytest.mark.process
def test_a_label_opts_the_node_out(tmp_path: Path) -> None:
    """As Kubernetes hands it in: whatever the mode, and for orders as well; shown before anything was refused."""
    made = RunningNode(tmp_path / "node", "n1", environ={"HEALTHD_NODE_LABELS": '["healthd.io/opt-out=true"]'})
    made.configure('[remediation]\nmode = "quarantine"\n[orchestrator]\nkind = "local"\n')
    made.start()
    try:
        status = made.status()
        assert status is not None
        assert status["opted_out"] == "[node] labels has healthd.io/opt-out=true"
        made.kernel_says(OFF_THE_BUS.format(pci=PCI))
        words = "opted out: [node] labels has healthd.io/opt-out=true"
        made.wait(lambda: f"decision: {words}" in made.log_text(), 20, "refused")
        refused = ask(made, "quarantine", "--reason", "x")
        assert (refused.returncode, words in refused.stderr, is_held(made)) == (1, True, False)
    finally:
        made.stop()
