"""Every verb, resource and foreign name that an agent's token could try, generated: none succeeds.

The first half is every request of the server's own list of resources for which RBAC gives no right. The second is
every change of every field of every object that RBAC does let an agent write, by each kind of patch: what of that is
not its own node's, the policies refuse.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.api import FIELD_MANAGER
from healthd.remediation.orchestrators.kubernetes.objects.budget import CLAIM, LEASE, LIMIT, NODES, OUT
from healthd.remediation.orchestrators.kubernetes.objects.events import ClusterEvent, event_of
from healthd.remediation.orchestrators.kubernetes.objects.incident_notes import INCIDENTS_LEASE
from healthd.remediation.orchestrators.kubernetes.objects.labels import CODE, STATE
from healthd.remediation.orchestrators.kubernetes.objects.node_health import record_of
from healthd.remediation.records.handoff import HandoffRecord
from healthd.remediation.records.summary import NodeState
from tests.live.kubernetes.agent_rig import EVENTS
from tests.live.kubernetes.api_client import ApiClient
from tests.live.kubernetes.control_plane import ACCOUNT, HEALTHS, LEASES, NAMESPACE, ControlPlane
from tests.live.kubernetes.hostile_requests import (
    Resource,
    changes,
    request_of,
    resources,
    rights_of,
    rights_of_everybody,
)

pytestmark = pytest.mark.kubernetes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWN, OTHER = "n1", "n2"
NAMESPACES = ("default", "kube-system", NAMESPACE)
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
THEIRS = ("healthd.io/opt-out", "healthd.io/hold")
"""Keys of healthd's own that a person may have written on the Node, and its agent must not."""
LABELS = {"pool": "p5", "healthd.io/opt-out": "yes", "healthd.io/rack": "r1", STATE: "ok", CODE: "gpu.xid.79"}
MINE = {f"{LEASES}/{LEASE}": (f"{CLAIM}{OWN}",)}
HEALTH = {
    "status": {
        "state": "draining",
        "code": "gpu.xid.79",
        "since": "2026-01-01T00:00:00Z",
        "step": "drain",
        "waitsFor": "x",
    },
    "record": {
        **record_of(
            HandoffRecord(
                remediation_id="k3v9", machine="i-1", remedy=Remedy.REBOOT_NODE, asks=True, attempt=1, asked=NOW
            )
        ),
        "following": ["replace_node"],
        "history": [{"act": "reboot", "at": "2026-01-01T00:00:00Z", "code": "gpu.xid.79", "outcome": "helped"}],
        "message": "not idle",
    },
}
A_PERSONS = (
    {"key": "example.com/theirs", "value": "yes", "effect": "NoSchedule"},
    {"key": "healthd.io/unhealthy", "value": "by-a-person", "effect": "NoSchedule"},
)


def event(node: str) -> dict[str, Any]:
    """An Event as the agent of this node tells it."""
    news = ClusterEvent(reason="Xid", action="Diagnosed", about="gpu.xid.79", note="XID 79")
    return event_of(news, node=node, uid="", now=NOW)


@pytest.fixture
def agent(control_plane: ControlPlane) -> Iterator[ApiClient]:
    """The token of n1, beside a node n2 that is out; n1 has a person's cordon, taints and opt-out."""
    for name in (OWN, OTHER):
        control_plane.add_node(name, labels=LABELS, taints=A_PERSONS)
    out = {"metadata": {"annotations": {"example.com/note": "theirs"}}, "spec": {"unschedulable": True}}
    control_plane.admin.patch(f"/api/v1/nodes/{OWN}", out, kind="merge").must()
    control_plane.admin.patch(f"/api/v1/nodes/{OTHER}", out, kind="merge").must()
    counted = {LIMIT: "2", NODES: "2", OUT: OWN}
    control_plane.add_lease(LEASE, {**counted, f"{CLAIM}{OTHER}": json.dumps({"node": OTHER, "index": 0})})
    control_plane.add_lease("healthd-controller", {})
    for name in (OWN, OTHER):
        control_plane.add_health(name, status=HEALTH["status"], record=HEALTH["record"])
    control_plane.add_pod("job-0", OWN)
    client = control_plane.client(control_plane.agent_token(OWN))
    control_plane.admin.post(EVENTS, event(OTHER)).must()
    yield client
    client.close()


def objects(admin: ApiClient) -> dict[str, dict[str, Any]]:
    """All that an attempt could aim at, by path, without what the server counts for itself."""
    found = {}
    for path in ("/api/v1/nodes", f"{LEASES}", HEALTHS, EVENTS, "/api/v1/pods", "/api/v1/namespaces"):
        for each in admin.get(path).must()["items"]:
            found[f"{path}/{each['metadata']['name']}"] = stripped(each)
    return found


def stripped(each: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in each["metadata"].items() if key not in ("managedFields", "resourceVersion")}
    return {**each, "metadata": kept}


def names_of(admin: ApiClient, resource: Resource, namespace: str) -> tuple[str, ...]:
    """An object of others that is there, and one that is not."""
    there: list[str] = []
    if "list" in resource.verbs:
        items = admin.get(resource.path(namespace)).must()["items"] or []
        there = [each["metadata"]["name"] for each in items if each["metadata"]["name"] != OWN]
    return (*there[:1], "victim")


def test_what_rbac_gives_no_right_to_is_refused(control_plane: ControlPlane, agent: ApiClient) -> None:
    """Each verb of each resource, of an object that is there and of one that is not, in each namespace: 403."""
    admin = control_plane.admin
    rights = [*rights_of(admin, NAMESPACE, ACCOUNT), *rights_of_everybody(admin)]
    before, tried, passed = objects(admin), Counter[str](), list[str]()
    for resource in resources(admin):
        for namespace in NAMESPACES if resource.namespaced else ("",):
            for name, verb in itertools.product(names_of(admin, resource, namespace), resource.verbs):
                if any(each.covers(resource, verb, namespace, name) for each in rights):
                    continue
                method, path, body = request_of(verb, resource, namespace, name)
                answer = (
                    agent.patch(path, body, kind="merge") if method == "PATCH" else agent.request(method, path, body)
                )
                tried[verb] += 1
                if answer.status != 403:
                    passed.append(f"{verb} {path}: {answer.status} {answer.message}")
    assert passed == []
    assert set(tried) >= WRITES | {"get", "list", "watch"}
    assert objects(admin) == before


def test_what_everybody_may_do_changes_nothing(control_plane: ControlPlane, agent: ApiClient) -> None:
    """The rights that Kubernetes gives every account are questions about oneself, and to read what is public."""
    rights = rights_of_everybody(control_plane.admin)
    written = {name for each in rights for name in each.resources if WRITES & set(each.verbs)}
    assert written <= {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}


def test_no_right_of_an_agent_names_what_holds_secrets(control_plane: ControlPlane, agent: ApiClient) -> None:
    """An agent may read Nodes, the Leases of the budget and the controller's notices of incidents by name, and what
    healthd says of nodes: no other list, no watch, nothing else."""
    rights = rights_of(control_plane.admin, NAMESPACE, ACCOUNT)
    read = {(name, verb) for each in rights for name in each.resources for verb in set(each.verbs) - WRITES}
    assert read == {("nodes", "get"), ("leases", "get"), ("nodehealths", "get"), ("nodehealths", "list")}
    leases = [(each.names, each.verbs) for each in rights if "leases" in each.resources]
    assert leases == [((LEASE,), ("get", "patch")), ((INCIDENTS_LEASE,), ("get",))]


def managed_by_others(there: Mapping[str, Any], path: str) -> list[Any]:
    """Every entry of another manager, without the annotations, taints and labels that the agent on n1 may write."""
    found = [each for each in there["metadata"].get("managedFields", ()) if each["manager"] != FIELD_MANAGER]
    for entry in (found := copy.deepcopy(found)):
        of_metadata = entry["fieldsV1"].get("f:metadata", {})
        for key in [key for key in of_metadata.get("f:annotations", {}) if is_own(key, path)]:
            del of_metadata["f:annotations"][key]
        for key in (f"f:{STATE}", f"f:{CODE}"):
            of_metadata.get("f:labels", {}).pop(key, None)
        for key in ("f:taints", "f:unschedulable"):
            entry["fieldsV1"].get("f:spec", {}).pop(key, None)
    return found


def is_own(key: str, path: str) -> bool:
    """Whether a field of the annotations is one that the agent on n1 may write in this object."""
    name = key.removeprefix("f:")
    if path in MINE:
        return name in MINE[path]
    return name.startswith("healthd.io/") and name not in THEIRS


def of_others(path: str, there: Mapping[str, Any]) -> dict[str, Any]:
    """What of this object is not the own domain of the agent on n1, which other tests hold to its rules. What others
    manage of its fields is of others too, but for those that the agent may write itself."""
    kept, metadata = stripped(there), stripped(there)["metadata"]
    if path == f"{HEALTHS}/{OWN}":
        return {"metadata": {key: metadata[key] for key in metadata if key != "generation"}}
    managed = managed_by_others(there, path)
    if path == f"/api/v1/nodes/{OWN}":
        notes, labels = metadata.get("annotations", {}), metadata.get("labels", {})
        metadata["annotations"] = {k: notes[k] for k in notes if k in THEIRS or not k.startswith("healthd.io/")}
        legal = labels.get(STATE, "ok") in frozenset(NodeState)
        metadata["labels"] = {key: labels[key] for key in labels if not (key == CODE or (key == STATE and legal))}
        conditions = there["status"]["conditions"]
        status = {**there["status"], "conditions": [each for each in conditions if each["type"][:7] != "Healthd"]}
        return {**kept, "metadata": metadata, "status": status, "managed": managed}
    notes = {key: text for key, text in metadata.get("annotations", {}).items() if key not in MINE.get(path, ())}
    return {**kept, "metadata": {**metadata, "annotations": notes}, "managed": managed if path in MINE else None}


def writable(admin: ApiClient) -> Iterator[str]:
    """The path of each object that a rule of the account lets it patch, and of each subresource of that kind."""
    rights, served = rights_of(admin, NAMESPACE, ACCOUNT), resources(admin)
    for resource in served:
        plural = resource.name.partition("/")[0]
        whole = next(each for each in served if (each.root, each.name) == (resource.root, plural))
        for namespace in NAMESPACES if resource.namespaced else ("",):
            items = admin.get(whole.path(namespace)).must()["items"] if "list" in whole.verbs else []
            for name in (each["metadata"]["name"] for each in items or []):
                if any(each.covers(resource, "patch", namespace, name) for each in rights):
                    yield resource.path(namespace, name)


def test_no_change_of_what_is_not_its_own_succeeds(control_plane: ControlPlane, agent: ApiClient) -> None:
    """Each field of each object that RBAC lets it write, set otherwise, removed and added to, by each kind of patch:
    refused, or without effect. Nodes, their status, NodeHealths, Leases and the Events of others are among them."""
    admin = control_plane.admin
    paths = sorted(writable(admin))
    nodes = {f"/api/v1/nodes/{OTHER}", f"/api/v1/nodes/{OTHER}/status", f"{HEALTHS}/{OTHER}"}
    assert {*nodes, f"{LEASES}/{LEASE}"} < set(paths)
    assert any(path.startswith(EVENTS) for path in paths)
    tried, passed = Counter[str](), list[str]()
    for path in paths:
        stands = path.removesuffix("/status")
        there = admin.get(stands).must()
        for each in changes(there):
            forced = "&force=true" if each.kind == "apply" else ""
            answer = agent.patch(f"{path}?fieldManager={FIELD_MANAGER}{forced}", each.body, kind=each.kind)
            tried[path] += 1
            if answer.ok and of_others(stands, now := admin.get(stands).must()) != of_others(stands, there):
                passed.append(f"{each.kind} {path} at {'.'.join(each.at)}: {json.dumps(each.body)[:300]}")
                there = now
    assert passed == []
    assert min(tried.values()) >= 40, tried
    assert sum(tried.values()) >= 1000, tried


def test_an_event_in_anothers_name_is_not_made(control_plane: ControlPlane, agent: ApiClient) -> None:
    """Its own Event with each field as another's, and another's with each field as its own: none is created but the
    agent's own."""
    mine, theirs = event(OWN), event(OTHER)
    passed = []
    for body in [
        theirs,
        *({**theirs, key: mine[key]} for key in ("metadata", "reportingInstance", "regarding")),
        *({**mine, key: theirs[key]} for key in ("metadata", "reportingInstance", "regarding")),
        *({**mine, "regarding": {**mine["regarding"], "kind": kind}} for kind in ("Pod", "Namespace", "NodeClaim")),
    ]:
        answer = agent.post(f"{EVENTS}?dryRun=All", body)
        if answer.ok or "healthd-agent-events" not in answer.message:
            passed.append(f"{json.dumps(body)[:200]}: {answer.status} {answer.message}")
    assert passed == []
    agent.post(EVENTS, mine).must()
