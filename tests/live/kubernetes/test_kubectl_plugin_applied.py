"""`kubectl healthd`, by the real kubectl on a real API server: what it shows, and what it changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from healthd.remediation.orchestrators.kubernetes.objects.budget import LEASE
from healthd.remediation.orchestrators.kubernetes.objects.node import HOLD, KEEPS
from tests.live.kubernetes.agent_rig import Agents, note
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fleet_storm import REASON
from tests.live.kubernetes.shown_fleet import COMMANDS, Operator
from tests.support.scripts import load_script

pytestmark = [pytest.mark.kubernetes, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[3]


def node(plane: ControlPlane, name: str = "n1") -> dict[str, Any]:
    found: dict[str, Any] = plane.admin.get(f"/api/v1/nodes/{name}").must()
    return found


@pytest.fixture
def operator(control_plane: ControlPlane, kubectl: Path, shown_agents: Agents) -> Operator:
    return Operator(control_plane, kubectl)


def test_the_fleet_is_shown_with_its_budget_on_top(operator: Operator) -> None:
    """One node out of two that may be; the node that needs an operator, and the one whose agent fell silent; exit 1."""
    done = operator.types("kubectl healthd")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert lines[0].startswith("budget cluster: 1 of 3 nodes out, at most 2, counted ")
    assert lines[1].startswith("controller: controller-1 leads, mode repair, status ")
    assert lines[3].split() == ["NODE", "STATE", "CODE", "OUT", "WHY"]
    assert lines[4].split()[:3] == ["n1", "needs-operator", "gpu.xid.79"]
    assert lines[4].endswith("cordoned; refused: no time")
    assert re.split(" {3,}", lines[5]) == ["n3", "ok (agent silent for 60m)"]
    assert lines[7:] == ["1 of 4 nodes: ok", "1 of 4 nodes: no agent"]
    rows = json.loads(operator.types("kubectl healthd --all --json").stdout)["nodes"]
    assert sorted(each["node"] for each in rows) == ["cpu-1", "n1", "n2", "n3"]


recording = load_script("docs_record_kubectl", ROOT / "docs" / "record_kubectl.py")


@pytest.mark.parametrize("title", COMMANDS)
def test_the_page_shows_what_kubectl_prints(operator: Operator, title: str) -> None:
    """But for ages, versions and the width of columns; of a page that shows something else the script writes this."""
    text, page = operator.types(COMMANDS[title]).stdout, recording.PAGE.read_text(encoding="utf-8")
    shown = recording.shown(page, title)
    assert recording.comparable(text) == recording.comparable(shown), "python docs/record_kubectl.py"
    assert recording.with_shown(page, {title: text}) == page
    assert recording.with_shown(page.replace(shown, "another\n"), {title: text}) == page.replace(shown, text)


def test_a_nodehealth_has_the_columns_that_an_operator_asks_for(operator: Operator) -> None:
    """Its name is the node; the age comes from the time since when."""
    head, row = operator.types("kubectl get nh").stdout.splitlines()
    assert head.split() == ["NAME", "STATE", "CODE", "SINCE", "STEP", "WAITS-FOR"]
    assert row.split()[:3] == ["n1", "needs-operator", "gpu.xid.79"]
    assert re.fullmatch(r"\d+s", row.split()[3])
    assert row.endswith("an operator: refused")


def test_why_tells_all_that_the_cluster_knows(operator: Operator) -> None:
    """Conditions, both taints, the hold, the claim, the controller's word; and that no agent can be asked."""
    done = operator.types("kubectl healthd why n1")
    assert done.returncode == 1, done
    shown = (
        "HealthdGPU",
        "healthd.io/unhealthy=",
        "healthd.io/claimed=",
        REASON,
        "in healthd-budget",
        "not by healthd",
        "an operator: refused",
        "remedy: replace_node",
    )
    assert [words for words in shown if words not in done.stdout] == []
    assert "its agent: " in done.stdout
    assert operator.types("kubectl healthd why n9").returncode == 2


def test_a_node_without_an_agent_is_let_in_by_hand_and_what_a_person_set_stays(
    control_plane: ControlPlane, operator: Operator
) -> None:
    """Refused without a terminal or --yes; a dry run changes nothing; then neither taint, hold nor claim is left."""
    before = (node(control_plane), control_plane.claims())
    for line in ("release n1", "release n1 --by-hand", "release n1 --by-hand --dry-run"):
        done = operator.types(f"kubectl healthd {line}")
        assert done.returncode == (0 if "dry" in line else 2), (line, done)
    assert (node(control_plane), control_plane.claims()) == before
    done = operator.types("kubectl healthd release n1 --by-hand --yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "n1 is released")
    after = node(control_plane)
    assert (after["spec"].get("taints", []), control_plane.claims()) == ([], set())
    assert after["spec"]["unschedulable"] is True
    notes = after["metadata"]["annotations"]
    assert (HOLD in notes, notes.get(KEEPS[0]), KEEPS[1] in notes) == (False, "true", False)


def test_a_node_is_opted_out_and_in_again(
    control_plane: ControlPlane, operator: Operator, shown_agents: Agents
) -> None:
    """By the label that the product reads."""
    for line, is_out in (("opt-out n2", True), ("opt-out n2 --off", False), ("opt-out n2 --off", False)):
        assert operator.types(f"kubectl healthd {line}").returncode == 0
        assert ("healthd.io/opt-out" in shown_agents("n2").view().features) is is_out


def test_the_opt_out_of_a_cluster_with_another_label(
    control_plane: ControlPlane, operator: Operator, shown_agents: Agents
) -> None:
    """As its values name it, which the chart notes on the budget's Lease; where they name none nothing is done."""
    note(control_plane, {"healthd.io/opt-out-label": "example.com/hands-off"}, lease=LEASE)
    for line, is_out in (("opt-out n2", True), ("opt-out n2 --off", False)):
        assert operator.types(f"kubectl healthd {line}").returncode == 0
        assert ("example.com/hands-off" in shown_agents("n2").view().features) is is_out
        assert "healthd.io/opt-out" not in shown_agents("n2").view().features
        assert ("opted out" in operator.types("kubectl healthd").stdout) is is_out
    note(control_plane, {"healthd.io/opt-out-label": ""}, lease=LEASE)
    done = operator.types("kubectl healthd opt-out n2")
    assert (done.returncode, "remediation.opt_out_label is empty" in done.stderr) == (2, True)
