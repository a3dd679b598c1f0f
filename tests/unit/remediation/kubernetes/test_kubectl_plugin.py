"""The kubectl plugin: its marks are the product's, and letting a node in by hand is what the product's release does."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from healthd.config.schema.config import Config
from healthd.remediation.orchestrators.kubernetes.api import ResourceKind
from healthd.remediation.orchestrators.kubernetes.objects import budget as kube_budget
from healthd.remediation.orchestrators.kubernetes.objects import conditions as kube_conditions
from healthd.remediation.orchestrators.kubernetes.objects import labels as kube_labels
from healthd.remediation.orchestrators.kubernetes.objects import listed_nodes
from healthd.remediation.orchestrators.kubernetes.objects import node as kube_node
from healthd.remediation.orchestrators.kubernetes.objects.node import (
    CLAIMED,
    KEEPS,
    OwnershipAnnotation,
    fence_patch,
    node_of,
    quarantine_patch,
    release_patch,
    without_taint_patch,
)
from healthd.remediation.records.handoff import PastRepair
from healthd.remediation.records.summary import NodeState
from tests.support.limits import limit_s
from tests.support.merge_patch import patched
from tests.support.scripts import load_script

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "packaging" / "kubernetes"
SCRIPT = FOLDER / "kubectl-healthd"
plugin = load_script("kubectl_healthd", SCRIPT)
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_its_marks_are_the_products() -> None:
    """Every key that it reads or writes is the one of the module that owns it."""
    assert (plugin.STATE, plugin.CODE) == (kube_labels.STATE, kube_labels.CODE)
    assert plugin.NEEDS_OPERATOR == NodeState.NEEDS_OPERATOR
    assert (plugin.UNHEALTHY, plugin.CLAIMED, plugin.HOLD) == (kube_node.UNHEALTHY, CLAIMED, kube_node.HOLD)
    assert KEEPS == plugin.KEEPS
    for name in ("CLAIM", "LIMIT", "NODES", "OUT", "COUNTED", "FIXED_LIMIT", "FIXED_NODES"):
        assert getattr(plugin, name) == getattr(kube_budget, name)
    assert kube_budget.LEASE == plugin.BUDGET
    group, _, _, plural, _ = ResourceKind.NODE_HEALTH.value
    assert f"{plural}.{group}" == plugin.HEALTH
    assert set(plugin.PAST) < {each.name for each in fields(PastRepair)}
    assert (plugin.STATUS_LEASE, plugin.STATUS) == (kube_budget.STATUS_LEASE, kube_budget.STATUS)
    assert kube_conditions.TYPES == plugin.CONDITIONS
    assert plugin.SILENT_S == listed_nodes.SILENT_AFTER_S
    assert plugin.SILENT_S > 2 * 1.1 * kube_conditions.HEARTBEAT_S
    assert Config().remediation.opt_out_label == plugin.OPT_OUT
    assert Config().orchestrator.kubernetes.namespace == "healthd"


@pytest.mark.parametrize(("noted", "key"), [(None, plugin.OPT_OUT), ("example.com/hands-off", "example.com/hands-off")])
def test_it_knows_the_opt_out_from_the_budgets_lease(noted: str | None, key: str) -> None:
    """Where nothing is noted it is the default; an empty one opts nobody out."""
    claims = {} if noted is None else {plugin.OPT_OUT_LABEL: noted}
    node = {"metadata": {"name": "n1", "labels": {key: "true"}}, "spec": {}}
    assert plugin.opt_out_key(claims) == key
    assert plugin.row_of(node, claims, {}, NOW)[-1] == "opted out"
    assert not plugin.is_quiet(node, NOW, key)
    assert plugin.is_quiet(node, NOW, "")


def test_it_finds_the_agents_by_the_charts_labels() -> None:
    """As the rendered DaemonSet has them."""
    objects = [each for each in yaml.safe_load_all((FOLDER / "static.yaml").read_text()) if each]
    (agent,) = (each for each in objects if each["kind"] == "DaemonSet")
    labels = agent["spec"]["template"]["metadata"]["labels"]
    assert dict(pair.split("=") for pair in plugin.AGENT.split(",")).items() <= labels.items()


def test_a_budget_of_helms_values_is_shown_as_the_product_reads_it() -> None:
    """Their limit and number of nodes; nothing of what a controller counted before."""
    counted = {"healthd.io/limit": "7", "healthd.io/out": "a b"}
    notes = {"healthd.io/fixed-limit": "3", "healthd.io/fixed-nodes": "9", **counted}
    lease = {"metadata": {"resourceVersion": "1", "annotations": notes}}
    read = kube_budget.budget_of("cluster", lease)
    assert plugin.head_of({"healthd-budget": notes}, NOW) == [
        f"budget cluster: {len(read.out)} of {read.total} nodes out, at most {read.limit}, not counted by a controller"
    ]


_THEIRS = st.lists(st.sampled_from(["a", "example.com/b", "node.kubernetes.io/not-ready"]), unique=True, max_size=2)
_KEPT = st.dictionaries(st.sampled_from((*KEEPS, "example.com/note")), st.sampled_from(["true", "false"]))


def test_what_pages_of_the_cluster_is_shown_and_ends_with_one() -> None:
    """Missing policies, or many nodes that fell silent, page for no single node; a remark pages for nothing."""
    policies = {"node": "", "message": "policy healthd-budget is missing", "page": True}
    told = {kube_budget.STATUS: json.dumps({"nodes": [policies, {"node": "n1", "message": "waits", "page": False}]})}
    leases = {plugin.STATUS_LEASE: told}
    assert "cluster: policy healthd-budget is missing" in plugin.head_of(leases, NOW)
    assert plugin.pages(leases)
    assert not plugin.pages({plugin.STATUS_LEASE: {kube_budget.STATUS: json.dumps({"nodes": [{"page": False}]})}})


@pytest.mark.parametrize(
    ("conditions", "meta", "answers"),
    [
        ([{"type": "Ready", "status": "True"}], {}, True),
        ([{"type": "Ready", "status": "False"}], {}, False),
        ([{"type": "Ready", "status": "True"}], {"deletionTimestamp": "2026-11-23T05:00:00Z"}, False),
        (None, {}, False),
    ],
)
def test_a_pod_on_a_dead_machine_answers_nobody(conditions: Any, meta: dict[str, str], answers: bool) -> None:
    """Its phase is Running for ever: by hand is the way back there."""
    pod = {"metadata": {"name": "a", **meta}, "status": {"phase": "Running", "conditions": conditions}}
    assert plugin.is_ready(pod) is answers


_DONE = st.fixed_dictionaries(
    {
        "cordoned": st.booleans(),
        "cordon": st.booleans(),
        "fenced": st.booleans(),
        "since": st.sampled_from(["", "uncordon", "untaint", "keep"]),
    }
)


@given(_THEIRS, _KEPT, _DONE)
def test_by_hand_is_what_the_products_release_does(
    theirs: list[str], notes: dict[str, str], done: dict[str, Any]
) -> None:
    """Whatever others did before and since: what the hold brought goes, and everything else stays."""
    taints = [{"key": key, "effect": "NoSchedule"} for key in theirs]
    spec = {"taints": taints, "unschedulable": done["cordoned"]}
    base = {"metadata": {"name": "n1", "resourceVersion": "1", "annotations": dict(notes)}, "spec": spec}
    held = OwnershipAnnotation(text="healthd: gpu.xid.79 gpu:0 [k3v9]", by="healthd-agent", stamp=1)
    node = patched(base, quarantine_patch(node_of(base), held, effect="NoSchedule", cordon=done["cordon"]))
    node = patched(node, fence_patch(node_of(node)) if done["fenced"] else None)
    if done["since"] == "uncordon":
        node["spec"]["unschedulable"] = False
    elif done["since"] == "untaint":
        node["spec"]["taints"] = [each for each in node["spec"]["taints"] if each["key"] != kube_node.UNHEALTHY]
    elif done["since"] == "keep":
        node["metadata"]["annotations"][KEEPS[0]] = "false"
    expected = patched(node, release_patch(node_of(node)))
    expected = patched(expected, without_taint_patch(node_of(expected), CLAIMED))
    mine = patched(node, plugin.release_patch(node))
    for made in (mine, expected):
        made["spec"]["unschedulable"] = made["spec"].get("unschedulable") or False
    assert mine == expected
    assert plugin.release_patch({**base, "metadata": {"name": "n1", "resourceVersion": "1"}}) is None


_ODD = ["", "garbage", "[]", '{"stamp": true}', '{"stamp": 99999999999999}', '{"keeps": null}', '{"keeps": true}']


@pytest.mark.parametrize("text", [*_ODD, '{"text": 5}', pytest.param("[" * 100_000, id="deep")])
def test_an_odd_hold_ends_nothing(text: str) -> None:
    """An annotation can be written by anybody who may write the Node."""
    node = {"metadata": {"name": "n1", "resourceVersion": "1", "annotations": {"healthd.io/hold": text}}, "spec": {}}
    assert plugin.since_of(node, {}) is None
    assert plugin.release_patch(node)["metadata"]["annotations"] == {"healthd.io/hold": None}
    assert plugin.row_of(node, {}, {}, NOW)[:2] == ["n1", "no agent"]
    assert plugin.since_of(node, {"at": 5}) is None


def test_no_control_character_of_an_annotation_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A hold of a node's own token cannot draw over the rows of others."""
    notes = {"healthd.io/hold": json.dumps({"text": "\x1b[2J\nn3"})}
    node = {"metadata": {"name": "n1", "annotations": notes}, "spec": {}}
    plugin.say("\n".join(plugin.table([plugin.row_of(node, {}, {}, NOW), ["n2"] * 5])))
    out = capsys.readouterr().out
    assert ("?[2J?n3" in out, "\x1b" in out, out.count("\n")) == (True, False, 2)


def test_a_nodehealth_is_shown_field_by_field_and_its_absence_shows_nothing() -> None:
    """Where the kind is not there, or nothing is said of the node; a field of a later version is shown as it is."""
    assert plugin.health_rows({}, NOW) == plugin.health_rows({"status": None, "record": None}, NOW) == []
    shown = {"state": "repairing", "since": "2026-11-21T11:59:00Z", "step": "reboot", "waitsFor": "the reboot"}
    past = [{"act": "reboot", "at": "2026-11-21T11:00:00Z", "code": "gpu.xid.79", "outcome": "helped"}]
    record = {"remedy": "reboot_node", "later": 3, "history": past}
    assert plugin.health_rows({"status": shown, "record": record}, NOW) == [
        ["since", "60s ago"],
        ["step", "reboot"],
        ["waits for", "the reboot"],
        ["record", "later: 3"],
        ["record", "remedy: reboot_node"],
        ["history", "2026-11-21T11:00:00Z reboot gpu.xid.79 helped"],
    ]


def test_an_agent_that_fell_silent_is_not_believed() -> None:
    """Its label stays for ever; the age of its conditions does not."""
    shown = {
        kind: kube_conditions.WrittenCondition(state=kube_conditions.NOT_LOOKED, moved=NOW)
        for kind in kube_conditions.TYPES
    }
    node = {
        "metadata": {"name": "n1", "labels": {plugin.STATE: "ok"}},
        "spec": {},
        **kube_conditions.patch_of(shown, NOW),
    }
    assert plugin.state_of(node, NOW + timedelta(seconds=660)) == "ok"
    assert plugin.state_of(node, NOW + timedelta(minutes=30)) == "ok (agent silent for 30m)"
    assert not plugin.is_quiet(node, NOW + timedelta(minutes=30))
    node["metadata"] |= kube_labels.stopped_patch(NOW)["metadata"]
    assert plugin.state_of(node, NOW + timedelta(seconds=660)) == "ok"
    assert plugin.state_of(node, NOW + timedelta(minutes=30)) == "ok (agent stopped for 30m)"
    node["metadata"] |= kube_labels.stopped_patch(NOW - timedelta(seconds=1))["metadata"]
    assert plugin.state_of(node, NOW + timedelta(minutes=30)) == "ok (agent silent for 30m)", "it has written since"


@pytest.mark.process
def test_it_is_one_file_that_needs_nothing(tmp_path: Path) -> None:
    """Executable, run by an isolated Python without healthd; usage is exit 64, and without kubectl it says so: 2."""
    assert SCRIPT.stat().st_mode & stat.S_IXUSR
    assert SCRIPT.read_text().startswith("#!/usr/bin/env python3\n")
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = [
        subprocess.run(
            [sys.executable, "-IS", str(SCRIPT), *argv],
            check=False,
            env=env,
            capture_output=True,
            text=True,
            timeout=limit_s(60),
        )
        for argv in (["--help"], ["why"], ["release", "n1", "--force"], [])
    ]
    assert [each.returncode for each in done] == [0, 64, 64, 2]
    assert "kubectl: No such file or directory" in done[3].stderr
    assert os.environ.get("KUBECTL_PLUGINS_CALLER") is None


KUBECTL = """#!{python}
import json, sys
status = {{"at": "2026-11-21T11:59:00Z", "leader": "c-1", "mode": "repair", "nodes": [{{"message": "10 °C, warm"}}]}}
lease = {{"metadata": {{"name": "healthd-status", "annotations": {{"healthd.io/status": json.dumps(status)}}}}}}
node = {{"metadata": {{"name": "n1", "labels": {{"healthd.io/state": "ok"}}}}, "spec": {{}}, "status": {{}}}}
print(json.dumps({{"items": [lease] if "leases" in sys.argv else [node]}}))
"""


@pytest.mark.process
@pytest.mark.parametrize("argv", [[], ["--json"]])
def test_only_a_node_that_needs_an_operator_ends_it_with_1(tmp_path: Path, argv: list[str]) -> None:
    """All nodes are ok: it ends with 0 where its reader has gone or the terminal is no UTF-8, and with 2 where the disk
    of its output is full."""
    (tmp_path / "kubectl").write_text(KUBECTL.format(python=sys.executable))
    (tmp_path / "kubectl").chmod(0o755)
    reads, gone = os.pipe()
    os.close(reads)
    with os.fdopen(gone, "wb") as closed, open("/dev/full", "wb") as full, (tmp_path / "out").open("wb") as file:
        done = [
            subprocess.run(
                [sys.executable, "-S", str(SCRIPT), *argv],
                check=False,
                env={"PATH": str(tmp_path), "PYTHONIOENCODING": "ascii"},
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                timeout=limit_s(60),
            )
            for stdout in (file, closed, full)
        ]
    no_room = "kubectl healthd: the result cannot be written to standard output: No space left on device\n"
    assert [(each.returncode, each.stderr) for each in done] == [(0, ""), (0, ""), (2, no_room)]
    assert argv or "10 °C, warm" in (tmp_path / "out").read_text(encoding="utf-8")


@pytest.mark.process
@pytest.mark.parametrize("verb", [["fleet"], ["why", "n1"], ["release", "n1"], ["opt-out", "n1"]])
def test_a_kubectl_that_prints_no_json_is_named(tmp_path: Path, verb: list[str]) -> None:
    """A wrapper that prints a notice of its own, and exits with 0: what was asked and what came, and exit 2."""
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho 'Your token ends soon.'\n")
    (tmp_path / "kubectl").chmod(0o755)
    argv, environ = [sys.executable, "-S", str(SCRIPT), *verb], {"PATH": f"{tmp_path}:/bin"}
    done = subprocess.run(argv, check=False, env=environ, capture_output=True, text=True, timeout=limit_s(60))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"kubectl healthd: kubectl get (nodes?|leases) .*-o json: printed 'Your token ends soon.\\n', expected JSON\n",
        done.stderr,
    )


def test_the_krew_manifest_names_what_is_shipped() -> None:
    """krew's rules: the plugin's file is kubectl-<name>, every file of the archive exists, the short text is one."""
    manifest = yaml.safe_load((FOLDER / "krew.yaml").read_text())
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (manifest["kind"], f"kubectl-{manifest['metadata']['name']}") == ("Plugin", SCRIPT.name)
    spec = manifest["spec"]
    assert spec["version"].startswith("v")
    assert len(spec["shortDescription"]) <= 50
    assert not spec["shortDescription"].endswith(".")
    (platform,) = spec["platforms"]
    shipped = {SCRIPT.name: SCRIPT, "LICENSE": ROOT / "LICENSE"}
    assert [each["from"] for each in platform["files"]] == list(shipped)
    assert all(path.is_file() for path in shipped.values())
    assert platform["bin"] == SCRIPT.name
    assert {"uri", "sha256", "selector"} <= set(platform)
