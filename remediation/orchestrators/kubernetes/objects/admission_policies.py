"""The check that healthd's admission policies are whole on an API server. Pure.

RBAC cannot restrict an agent to its own node: only the policies do. Without them every agent's token may taint any
node, change any condition, and take the claims of all. The objects are those of ``packaging/kubernetes/policies``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

POLICIES: Mapping[str, str] = {
    "healthd-agent-own-node": "Fail",
    "healthd-agent-claim-first": "Ignore",
    "healthd-agent-events": "Fail",
    "healthd-agent-node-health": "Fail",
    "healthd-budget": "Fail",
}
"""Each policy, whose binding has the same name, and its failurePolicy. Ignore is stricter than nothing: that policy
reads the budget's Lease, which may not be there yet."""

AGENT = "healthd-agent"
"""The ServiceAccount and the DaemonSet of the agents."""


def agent_account(namespace: str) -> str:
    """The agents' user name, as the API server and the policies have it."""
    return f"system:serviceaccount:{namespace}:{AGENT}"


def policy_problems(
    policies: Mapping[str, Mapping[str, Any] | None],
    bindings: Mapping[str, Mapping[str, Any] | None],
    *,
    namespace: str,
) -> tuple[str, ...]:
    """The problems, a few words each. ``policies``, ``bindings``: name to the object as the API server has it, None for
    absent. ``namespace``: of the agents."""
    found = []
    for name, on_failure in POLICIES.items():
        if (policy := policies.get(name)) is None:
            found.append(f"policy {name} is missing")
        elif why := _policy_problem(policy, on_failure, namespace):
            found.append(f"policy {name} {why}")
        if (binding := bindings.get(name)) is None:
            found.append(f"binding {name} is missing")
        elif why := _binding_problem(name, binding):
            found.append(f"binding {name} {why}")
    return tuple(found)


def _policy_problem(policy: Mapping[str, Any], on_failure: str, namespace: str) -> str:
    spec = _spec(policy)
    if not spec.get("validations"):
        return "validates nothing"
    if spec.get("failurePolicy", "Fail") not in ("Fail", on_failure):
        return f"has failurePolicy {spec['failurePolicy']}, expected {on_failure}"
    account = agent_account(namespace)
    return "" if account in str(spec.get("matchConditions")) else f"does not apply to {account}"


def _binding_problem(name: str, binding: Mapping[str, Any]) -> str:
    spec = _spec(binding)
    if spec.get("policyName") != name:
        return f"binds {spec.get('policyName')}"
    if "Deny" not in (spec.get("validationActions") or ()):
        return f"denies nothing: its validationActions are {spec.get('validationActions')}"
    return "does not cover all requests: it has matchResources" if spec.get("matchResources") else ""


def _spec(found: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = found.get("spec")
    return spec if isinstance(spec, Mapping) else {}
