"""NodeHealths on a real API server: written by agent and controller, moved there from the Lease of before, pruned."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.core.errors import BackendError, BackendRefused, BackendUnknown
from healthd.core.model import Remedy
from healthd.remediation.orchestrators.kubernetes.api import KubeApi, connect
from healthd.remediation.orchestrators.kubernetes.node_health_api import NO_CRD, NodeHealths
from healthd.remediation.orchestrators.kubernetes.objects.node_health import HealthStatus, record_of, text_of
from healthd.remediation.orchestrators.kubernetes.remote_node import RemoteKubeNode
from healthd.remediation.orchestrators.kubernetes.transport import Pace
from healthd.remediation.ports import NodeRecord, Slot
from healthd.remediation.records.handoff import HandoffRecord, PastAct, PastRepair, RepairResult, RequestAnswer, parse
from tests.live.kubernetes.agent_rig import Agents, add_leases, install_resource
from tests.live.kubernetes.control_plane import HEALTHS, NAMESPACE, ControlPlane
from tests.live.kubernetes.fleet_controller import Fleet, Start

pytestmark = pytest.mark.kubernetes

NOW = datetime.now(UTC).replace(microsecond=0)
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodehealths.healthd.io"
AS_AGENT = "?fieldManager=healthd-agent"
REQUEST = HandoffRecord(
    remediation_id="k3v9",
    machine="i-0123456789abcdef0@2026-11-20T00:00:00+00:00",
    remedy=Remedy.REPLACE_NODE,
    asks=True,
    attempt=1,
    asked=NOW,
    following=(Remedy.REPLACE_NODE,),
    code="gpu.xid.79",
    since=NOW,
    driver="570.133.20",
    kernel="6.8.0-1027-aws",
    image="ami-0123456789abcdef0",
    history=(
        PastRepair(act=PastAct.RESET, at=NOW, code="gpu.xid.79", outcome=RepairResult.FAILED),
        *(PastRepair(act=PastAct.RETURN, at=NOW - timedelta(hours=hour), code="gpu.xid.95") for hour in range(7)),
    ),
)
HELD = HealthStatus(state="held", code="gpu.xid.79", since="2026-11-21T12:00:00Z", step="stay", waits_for="an operator")


@pytest.fixture
def controllers(control_plane: ControlPlane) -> Iterator[KubeApi]:
    """A connection as the controller's, with all rights."""
    for name in ("n1", "n2", "n3"):
        control_plane.add_node(name)
    add_leases(control_plane, limit=2, total=3)
    api = connect(
        kubeconfig=str(control_plane.kubeconfig),
        timeout_s=5.0,
        pace=Pace(rate_per_s=1000.0, burst=1000),
        environ={},
        manager="healthd-controller",
    )
    yield api
    api.close()


def afar(api: KubeApi, node: str) -> RemoteKubeNode:
    return RemoteKubeNode(api, node=node, namespace=NAMESPACE, leads=lambda: None, resources=())


# -- two writers ------------------------------------------------------------------------------------------------------


def test_what_one_leaves_the_other_reads(control_plane: ControlPlane, controllers: KubeApi, agents: Agents) -> None:
    """A request with every field there is passes the schema; the answer reaches the agent, and no word of the request
    before stays in the next."""
    agent, controller = agents("n1"), afar(controllers, "n1")
    agent.write_record(REQUEST.text)
    assert parse(controller.read_record()) == REQUEST
    assert control_plane.record("n1") == json.loads(json.dumps(record_of(REQUEST)))
    answered = replace(
        REQUEST, answer=RequestAnswer.TAKEN, answered=NOW, boot="b-1", became="i-1", replaced=NOW, message="taken"
    )
    answered = replace(answered, slept=NOW, awake=NOW, watched=NOW, given_up="k3v8", withdrawn=Remedy.REBOOT_NODE)
    controller.write_record(answered.text)
    assert parse(agent.read_record()) == answered
    agent.write_record("healthd case=k3w1")
    assert (controller.read_record(), agent.snapshot().records) == (
        "healthd case=k3w1",
        (NodeRecord(node="n1", text="healthd case=k3w1"),),
    )
    agent.write_record("")
    assert (controller.read_record(), agent.snapshot().records, control_plane.health("n1")) == ("", (), {})


def test_the_longest_record_that_healthd_makes_passes_the_schema(controllers: KubeApi, agents: Agents) -> None:
    """Every field as long as it comes, a site's own code among them, and a history that is full."""
    code = f"site.{'x' * 64}"
    bucket = "s3://" + "/".join(["b" * 63, *["p" * 64] * 4, "n" * 63, "k3v9.tar.gz"])
    past = [
        PastRepair(act=each, at=NOW, code=code, outcome=RepairResult.HELPED, back=NOW, revision="0" * 8)
        for each in (PastAct.REPLACE,) * 8
    ]
    past += [PastRepair(act=PastAct.RETURN, at=NOW, code=code, revision="0" * 8)] * 8
    long = replace(REQUEST, code=code, evidence=bucket, history=tuple(past), message="x" * 200)
    agents("n1").write_record(long.text)
    assert parse(agents("n1").read_record()) == long


def test_two_writers_at_once_lose_nothing(control_plane: ControlPlane, controllers: KubeApi, agents: Agents) -> None:
    """The reporter shows and hides the node while its engine leaves records and takes them away: each makes and deletes
    the object under the other's hands. In the end both have had their last word."""
    agent, shows, failed = agents("n1"), NodeHealths(agents.api("n1")), list[BaseException]()

    def report() -> None:
        for _ in range(40):
            shows.show("n1", HELD)
            shows.show("n1", HealthStatus(state="ok", since=HELD.since))
        shows.show("n1", HELD)

    def repair() -> None:
        for number in range(40):
            agent.write_record(f"healthd case=k{number}")
            agent.write_record("")
        agent.write_record("healthd case=last")

    def watched(act: Any) -> None:
        try:
            act()
        except BackendError as error:
            failed.append(error)

    threads = [threading.Thread(target=watched, args=(act,)) for act in (report, repair)]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        there = control_plane.health("n1")
        assert set(there) <= {"apiVersion", "kind", "metadata", "status", "record"}
        assert set(there.get("record", {})) <= {"remediationID"}
    for each in threads:
        each.join()
    assert failed == []
    assert control_plane.record("n1") == {"remediationID": "last"}
    assert control_plane.health("n1")["status"] == {k: v for k, v in HELD.patch["status"].items() if v}


def test_the_last_who_has_something_to_say_deletes_the_object(
    control_plane: ControlPlane, controllers: KubeApi, agents: Agents
) -> None:
    """The reporter deletes no record; the record's end deletes no status that a person would want to see."""
    agent, shows = agents("n1"), NodeHealths(agents.api("n1"))
    agent.write_record("healthd case=k3v9")
    shows.show("n1", HELD)
    shows.show("n1", HealthStatus(state="ok", since=HELD.since))
    assert control_plane.record("n1") == {"remediationID": "k3v9"}
    assert control_plane.health("n1")["status"]["state"] == "ok"
    agent.write_record("")
    assert control_plane.health("n1") == {}
    shows.show("n1", HELD)
    agent.write_record("healthd case=k3v9")
    agent.write_record("")
    assert "record" not in control_plane.health("n1")
    shows.show("n1", HealthStatus(state="ok"))
    assert control_plane.health("n1") == {}


def test_a_node_that_waits_for_room_lists_no_records_again(
    control_plane: ControlPlane, controllers: KubeApi, agents: Agents
) -> None:
    """Where nothing can be done by them they are read once a minute, and its own each time; with room, or with a place,
    each reading of the level is of this moment."""
    add_health = control_plane.add_health
    agent, others = agents("n3"), (agents("n1"), agents("n2"))
    add_health("n1", record={"remediationID": "k1"})
    for number, each in enumerate(others):
        each.claim("cluster", number)
    assert [record.node for record in agent.snapshot().records] == ["n1"]
    add_health("n2", record={"remediationID": "k2"})
    agent.write_record("healthd case=k3")
    assert [record.node for record in agent.snapshot().records] == ["n1", "n3"]
    assert agent._api.sent["list nodehealths"] == 1
    assert [record.node for record in others[0].snapshot().records] == ["n1", "n2", "n3"]
    others[0].give_back(Slot(scope="cluster", index=0, node="n1"))
    assert [record.node for record in agent.snapshot().records] == ["n1", "n2", "n3"]


# -- Nodes that are gone ----------------------------------------------------------------------------------------------


def test_of_a_node_that_is_gone_the_record_that_counts_stays_and_the_rest_goes(
    control_plane: ControlPlane, fleet: Fleet, start: Start
) -> None:
    """No garbage collector takes it, for the Node does not own it, and the controller keeps what bounds the fleet."""
    fleet.add(["n1", "n2", "n3", "n4"])
    start("[budget]\nmax_out = 2\n")
    replaced = PastRepair(act=PastAct.REPLACE, at=NOW, code="gpu.xid.79")
    counts = replace(REQUEST, replaced=NOW, history=(replaced,))
    shown = HELD.patch["status"]
    control_plane.add_health("n1", status=shown, record=record_of(counts))
    control_plane.add_health("n2", status=shown, record=record_of(REQUEST))
    control_plane.add_health("n3", status=shown)
    control_plane.add_health("n4", status=shown, record=record_of(REQUEST))
    for name in ("n1", "n2", "n3"):
        control_plane.admin.delete(f"/api/v1/nodes/{name}").must()

    def there() -> list[str]:
        return [each["metadata"]["name"] for each in control_plane.admin.get(HEALTHS).must()["items"]]

    control_plane.wait(lambda: there() == ["n1", "n4"], 20, f"n2 and n3 to go; there are {there()}")
    control_plane.wait(lambda: "status" not in control_plane.health("n1"), 10, "what was shown of n1 to go")
    left = parse(text_of(control_plane.record("n1")))
    assert left == HandoffRecord(
        replaced=NOW, history=(replaced,), driver=REQUEST.driver, kernel=REQUEST.kernel, image=REQUEST.image
    )
    assert control_plane.health("n4")["status"]["state"] == "held"


# -- what is refused --------------------------------------------------------------------------------------------------

HEAD = {"apiVersion": "healthd.io/v1alpha1", "kind": "NodeHealth"}


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ({"name": "n2"}, "the NodeHealth of its own node, not n2"),
        ({"generateName": "n1"}, "the NodeHealth of its own node, not n1"),
        ({"name": "n1", "labels": {"a": "b"}}, "may not change labels"),
        ({"name": "n1", "annotations": {"a": "b"}}, "may not change labels"),
        ({"name": "n1", "finalizers": ["example.com/for-ever"]}, "may not change labels"),
        (
            {"name": "n1", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]},
            "may not change labels",
        ),
    ],
)
def test_an_agent_makes_its_own_and_nothing_that_outlasts_it(
    control_plane: ControlPlane, controllers: KubeApi, meta: dict[str, Any], says: str
) -> None:
    """By the policy, on creation and on update; what is allowed is allowed beside it."""
    agent = control_plane.client(control_plane.agent_token("n1"))
    answer = agent.post(f"{HEALTHS}{AS_AGENT}", {**HEAD, "metadata": meta})
    assert (answer.status, says in answer.message) == (422, True), answer
    control_plane.add_health("n1")
    control_plane.add_health("n2")
    name = "n2" if "not n2" in says else "n1"
    change = {"metadata": {key: value for key, value in meta.items() if key not in ("name", "generateName")}}
    body = change if change["metadata"] else {"status": {"state": "held"}}
    if name == "n2" or change["metadata"]:
        answer = agent.patch(f"{HEALTHS}/{name}{AS_AGENT}", body, kind="merge")
        assert (answer.status, says in answer.message) == (422, True), answer
    assert agent.delete(f"{HEALTHS}/n2").status == 422
    agent.patch(f"{HEALTHS}/n1{AS_AGENT}", {"status": {"state": "held"}}, kind="merge").must()
    assert "under no other name" in agent.patch(f"{HEALTHS}/n1?fieldManager=x", {"status": None}, kind="merge").message
    agent.delete(f"{HEALTHS}/n1").must()


@pytest.mark.parametrize(
    "part",
    [
        {"status": {"state": "broken"}},
        {"status": {"code": "x" * 64}},
        {"status": {"waitsFor": "x" * 257}},
        {"record": {"machine": "x" * 257}},
        {"record": {"machine": "two words"}},
        {"record": {"message": "two\nlines"}},
        {"record": {"asked": "yesterday"}},
        {"record": {"remedy": "explode"}},
        {"record": {"history": [{"act": "reboot", "at": "2026-11-21T12:00:00Z"}] * 17}},
        {"record": {"history": [{"act": "reboot"}]}},
    ],
)
def test_the_schema_bounds_every_field(control_plane: ControlPlane, part: dict[str, Any]) -> None:
    """Whoever writes."""
    answer = control_plane.admin.post(HEALTHS, {**HEAD, "metadata": {"name": "n1"}, **part})
    assert (answer.status, 'NodeHealth.healthd.io "n1" is invalid' in answer.message) == (422, True), answer


def test_what_no_version_knows_is_not_kept(control_plane: ControlPlane) -> None:
    """The schema is structural: fields that it does not name are dropped."""
    control_plane.add_health("n1", record={"remediationID": "k3v9", "later": "x"}, more={"a": 1})
    assert control_plane.record("n1") == {"remediationID": "k3v9"}
    assert "more" not in control_plane.health("n1")


# -- without the resource ---------------------------------------------------------------------------------------------


def is_missing(plane: ControlPlane, path: str) -> bool:
    """Whether the server knows no such path."""
    return plane.admin.get(path).status == 404


@pytest.fixture
def unserved(control_plane: ControlPlane, controllers: KubeApi) -> Iterator[ControlPlane]:
    """A cluster that was upgraded without the CustomResourceDefinition."""
    control_plane.admin.delete(CRD).must()
    for path in (HEALTHS, CRD):
        control_plane.wait(partial(is_missing, control_plane, path), 30, f"{path} to be gone")
    yield control_plane
    install_resource(control_plane)


def test_a_missing_resource_is_unknown_and_says_what_to_do(unserved: ControlPlane, agents: Agents) -> None:
    """Nothing can be handed over, so nothing is taken out; and it is no empty record."""
    agent = agents("n1")
    for ask in (agent.read_record, agent.snapshot, lambda: agent.write_record("")):
        with pytest.raises(BackendUnknown, match="serves no such resource") as unknown:
            ask()
        assert NO_CRD in str(unknown.value)
    with pytest.raises(BackendRefused, match=r"nodehealths\.healthd\.io is missing"):
        agent.write_record("healthd case=k3v9")


def test_a_controller_without_the_resource_says_so(unserved: ControlPlane, fleet: Fleet, start: Start) -> None:
    """Its rounds fail, and the sentence has the next step; once it is served they go on."""
    one = start("[budget]\nmax_out = 2\n")
    unserved.wait(lambda: NO_CRD in one.log, 30, "the controller to say what is missing")
    install_resource(unserved)
    unserved.wait(lambda: fleet.numbers()[0] == "2", 60, "the counts")
