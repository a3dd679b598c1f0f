"""The proxy that breaks requests does to each what it says, and to the others nothing."""

from __future__ import annotations

import pytest

from tests.live.kubernetes import fault_proxy
from tests.live.kubernetes.api_client import ApiClient
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.fault_proxy import Fault, FaultProxy

pytestmark = pytest.mark.kubernetes

NODE = "/api/v1/nodes/n1"


@pytest.fixture
def client(control_plane: ControlPlane, proxy: FaultProxy) -> ApiClient:
    """The administrator, by way of the proxy, to a server with a node n1."""
    control_plane.add_node("n1")
    return control_plane.client(control_plane.admin_token, url=proxy.url, timeout_s=2.0)


@pytest.mark.parametrize(
    ("fault", "retry_after"),
    [
        (fault_proxy.OVERLOADED, "1"),
        (fault_proxy.TOO_MANY, None),
        (fault_proxy.BROKEN, None),
        (fault_proxy.UNAVAILABLE, None),
        (fault_proxy.UNAUTHORIZED, None),
    ],
)
def test_a_status_is_answered_once_and_applies_nothing(
    control_plane: ControlPlane, proxy: FaultProxy, client: ApiClient, fault: Fault, retry_after: str | None
) -> None:
    """The next patch gets it, no cause in its details; the node is untouched, and the patch after that is applied."""
    version = control_plane.admin.get(NODE).must()["metadata"]["resourceVersion"]
    proxy.fail(fault, method="PATCH", path="^/api/v1/nodes/")
    assert client.get(NODE).ok
    answer = client.patch(NODE, {"spec": {"unschedulable": True}})
    assert (answer.status, answer.headers.get("retry-after")) == (fault.status, retry_after)
    assert "details" not in answer.body
    assert control_plane.admin.get(NODE).must()["metadata"]["resourceVersion"] == version
    assert client.patch(NODE, {"spec": {"unschedulable": True}}).must()["spec"]["unschedulable"]
    assert [each.status for each in proxy.seen] == [200, fault.status, 200]
    assert proxy.count("PATCH") == 2


def test_a_lost_answer_was_applied(control_plane: ControlPlane, proxy: FaultProxy, client: ApiClient) -> None:
    """The connection ends without an answer, and the server has done it."""
    proxy.fail(fault_proxy.LOST, method="PATCH")
    with pytest.raises(OSError):  # noqa: PT011  reset or closed, as the network has it
        client.patch(NODE, {"spec": {"unschedulable": True}})
    assert control_plane.admin.get(NODE).must()["spec"]["unschedulable"]


def test_a_request_hangs_until_the_proxy_heals(proxy: FaultProxy, client: ApiClient) -> None:
    """Nobody answers within the client's deadline; after healing everybody is answered."""
    proxy.fail(fault_proxy.HANGS, times=None)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            client.get(NODE)
    proxy.heal()
    assert client.get(NODE).ok


def test_a_watch_is_passed_on_as_it_comes_and_can_be_cut(
    control_plane: ControlPlane, proxy: FaultProxy, client: ApiClient
) -> None:
    """Each event is there when it happens; with a cut the stream ends in the middle of one."""
    path = "/api/v1/nodes?watch=1&timeoutSeconds=20"
    events = client.watch(path)
    assert next(events)["type"] == "ADDED"
    control_plane.admin.patch(NODE, {"metadata": {"labels": {"later": "yes"}}}).must()
    assert next(events)["object"]["metadata"]["labels"]["later"] == "yes"
    events.close()
    proxy.fail(Fault(cut_after_bytes=100), path="watch=1")
    with pytest.raises(ConnectionError):
        list(client.watch(path))


def test_a_server_that_is_down_is_a_closed_connection(
    control_plane: ControlPlane, proxy: FaultProxy, client: ApiClient
) -> None:
    """The proxy invents no answer for a server that is gone."""
    control_plane.kill_api_server()
    with pytest.raises(OSError):  # noqa: PT011  reset or closed, as the network has it
        client.get(NODE)
    control_plane.start_api_server()
    assert client.get(NODE).ok
