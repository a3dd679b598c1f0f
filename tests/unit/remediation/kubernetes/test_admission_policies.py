"""What of the admission policies counts as missing, tried on the very files that are shipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from healthd.remediation.orchestrators.kubernetes.objects.admission_policies import POLICIES, policy_problems

FOLDER = Path(__file__).parents[4] / "packaging" / "kubernetes" / "policies"
OBJECTS = [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text()) if each]

OF_THE_CONTROLLER = "healthd-controller-domain-fence"
"""It bounds no agent: its own test is tests/live/kubernetes/test_domain_fence_kubernetes.py."""

Objects = dict[str, dict[str, Any] | None]
Change = Callable[[Objects, Objects], object]


def shipped() -> tuple[Objects, Objects]:
    """Policies and bindings by name."""
    found = [each for each in copy.deepcopy(OBJECTS) if each["metadata"]["name"] != OF_THE_CONTROLLER]
    by_kind = {kind: [each for each in found if each["kind"] == kind] for kind in {each["kind"] for each in found}}
    named = {kind: {each["metadata"]["name"]: each for each in some} for kind, some in by_kind.items()}
    return named["ValidatingAdmissionPolicy"], named["ValidatingAdmissionPolicyBinding"]


def test_what_is_shipped_is_whole() -> None:
    """Every policy of agents and every binding of the folder is looked for, and no other."""
    policies, bindings = shipped()
    assert policies.keys() == bindings.keys() == POLICIES.keys()
    assert policy_problems(policies, bindings, namespace="healthd") == ()


def spec(found: dict[str, Any] | None) -> dict[str, Any]:
    assert found is not None
    inner: dict[str, Any] = found["spec"]
    return inner


OWN = "healthd-agent-own-node"
CHANGES: dict[str, tuple[str, Change]] = {
    "no policy": (f"policy {OWN} is missing", lambda p, _: p.update({OWN: None})),
    "no binding": (f"binding {OWN} is missing", lambda _, b: b.update({OWN: None})),
    "nothing to validate": (f"policy {OWN} validates nothing", lambda p, _: spec(p[OWN]).pop("validations")),
    "fails open": (
        f"policy {OWN} has failurePolicy Ignore, expected Fail",
        lambda p, _: spec(p[OWN]).update(failurePolicy="Ignore"),
    ),
    "another policy": (f"binding {OWN} binds x", lambda _, b: spec(b[OWN]).update(policyName="x")),
    "only warns": (
        f"binding {OWN} denies nothing: its validationActions are ['Warn']",
        lambda _, b: spec(b[OWN]).update(validationActions=["Warn"]),
    ),
    "half of it": (
        f"binding {OWN} does not cover all requests: it has matchResources",
        lambda _, b: spec(b[OWN]).update(matchResources={"namespaceSelector": {"matchLabels": {"a": "b"}}}),
    ),
    "no object": (f"policy {OWN} validates nothing", lambda p, _: p.update({OWN: {"spec": None}})),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_missing_is_said(name: str) -> None:
    """By name, with what is wrong."""
    message, change = CHANGES[name]
    policies, bindings = shipped()
    change(policies, bindings)
    assert policy_problems(policies, bindings, namespace="healthd") == (message,)


def test_policies_about_another_account_are_none() -> None:
    """Installed for another namespace, they let these agents through."""
    problems = policy_problems(*shipped(), namespace="gpu-health")
    assert len(problems) == len(POLICIES)
    assert "does not apply to system:serviceaccount:gpu-health:healthd-agent" in problems[0]
