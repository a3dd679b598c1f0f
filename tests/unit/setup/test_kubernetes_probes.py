"""What the doctor makes of an agent's token, rights and budget. How the server answers is in tests/live."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import yaml
from msgspec.structs import replace

from healthd.config.schema.config import Config, OrchestratorSection, ScopeBudget
from healthd.config.schema.kubernetes import KubernetesSection
from healthd.remediation.orchestrators.kubernetes.objects.budget import Budget, Claim
from healthd.setup.doctor import DoctorStatus
from healthd.setup.kubernetes_probes import budget_line, kubernetes_probes, rights_of, token_lines
from healthd.setup.remote_probes import remote_probes
from tests.support.running import ROOT

CONFIG = Config(orchestrator=OrchestratorSection(kind="kubernetes"))
AGENT = "system:serviceaccount:healthd:healthd-agent"


@pytest.mark.parametrize(
    ("user", "node", "status", "optional", "words"),
    [
        (AGENT, "n1", DoctorStatus.OK, False, "of a pod on n1"),
        (AGENT, "", DoctorStatus.MISSING, False, "it names no node"),
        (AGENT, "n2", DoctorStatus.MISSING, False, "a pod on n2, and this node is n1"),
        ("kubernetes-admin", "", DoctorStatus.MISSING, True, f"the admission policies apply to {AGENT} alone"),
        (
            "system:serviceaccount:other:healthd-agent",
            "n1",
            DoctorStatus.MISSING,
            True,
            "do not limit this user",
        ),
    ],
)
def test_a_token_is_judged_as_the_policies_will(
    user: str, node: str, status: DoctorStatus, optional: bool, words: str
) -> None:
    """They speak of one ServiceAccount and of the node in its token; whoever else asks is not kept by them."""
    (line,) = token_lines(user, node, CONFIG, "n1")
    assert (line.status, line.optional) == (status, optional)
    assert words in line.why
    assert bool(line.fix) is (status is not DoctorStatus.OK)


def test_the_rights_are_those_of_the_manifest() -> None:
    """Whatever agent-rbac.yaml grants is asked for, and nothing is asked for that it does not grant."""
    granted = set()
    for each in yaml.safe_load_all((ROOT / "packaging/kubernetes/agent-rbac.yaml").read_text(encoding="utf-8")):
        for rule in each.get("rules", ()):
            namespace = each["metadata"].get("namespace", "")
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", [""]):
                    granted |= {(rule["apiGroups"][0], resource, namespace, name, verb) for verb in rule["verbs"]}
    asked = {
        (
            right.group,
            "/".join(filter(None, (right.resource, right.subresource))),
            right.namespace,
            "" if right.resource in ("nodes", "nodehealths") else right.name,
            right.verb,
        )
        for right in rights_of(CONFIG, "n1")
    }
    assert asked == granted


def test_every_scope_has_a_lease_of_its_own() -> None:
    """In the namespace that is configured."""
    config = replace(
        CONFIG,
        orchestrator=OrchestratorSection(kind="kubernetes", kubernetes=KubernetesSection(namespace="gpu-health")),
        budget=replace(CONFIG.budget, scope=(ScopeBudget(name="p5", max_out=2),)),
    )
    rights = [right for right in rights_of(config, "n1") if right.resource == "leases"]
    assert {right.namespace for right in rights} == {"gpu-health"}
    leases = {(right.name, right.namespace) for right in rights if right.acts}
    assert leases == {(name, "gpu-health") for name in ("healthd-budget", "healthd-budget-p5")}


def budget(limit: int, *, counted: bool = True) -> Budget:
    at = datetime(2026, 11, 21, 3, 0, tzinfo=UTC) if counted else None
    claim = Claim(node="n1", index=0, stamp=1, text="x")
    out = frozenset({"n7"})
    return Budget(scope="cluster", version="1", limit=limit, total=64, out=out, claims={"c": claim}, counted=at)


def test_a_budget_of_nothing_is_missing() -> None:
    """Who holds a claim and who is out without one count together; who wrote the numbers is said."""
    line = budget_line(budget(3), observes=False)
    assert (line.status, line.why.partition(",")[0]) == (DoctorStatus.OK, "cluster: 2 of 64 nodes are out")
    assert "by healthd controller" in line.why
    assert budget_line(budget(3, counted=False), observes=False).why.endswith("as installed")
    for observes in (True, False):
        none = budget_line(budget(0), observes=observes)
        assert (none.status, none.optional, "healthd takes no node out" in none.why) == (
            DoctorStatus.MISSING,
            observes,
            True,
        )


def test_where_there_is_no_kubernetes_one_line_says_so() -> None:
    """Neither configured nor a pod: nothing else of it is looked at."""
    assert set(kubernetes_probes(Config(), {})) == {"Kubernetes"}
    assert {"Kubernetes", "token", "rights", "NodeHealth", "admission policies", "budget", "pod resources"} <= set(
        remote_probes(CONFIG, {})
    )
