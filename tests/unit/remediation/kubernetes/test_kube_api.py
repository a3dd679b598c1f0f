"""The door to the API server, as far as it can be told without one."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec
import pytest
from lightkube.codecs import resource_registry

from healthd.core.errors import BackendBusy, BackendDenied, BackendUnknown, ConfigError
from healthd.remediation.orchestrators.kubernetes.api import Disrupting, Ending, KubeApi, ResourceKind, connect
from healthd.remediation.orchestrators.kubernetes.objects.node import nodes_in
from healthd.remediation.orchestrators.kubernetes.transport import Pace


class Time:
    """Seconds that pass when told."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_goes_at_once_and_then_one_a_second() -> None:
    """Each later request waits for its turn, and one that would wait too long is not asked."""
    time = Time()
    pace = Pace(rate_per_s=1.0, burst=3, monotonic_s=time)
    assert [pace.wait_s(5.0) for _ in range(5)] == [0.0, 0.0, 0.0, 1.0, 2.0]
    with pytest.raises(BackendBusy, match=r"own rate limit allows the next one in 3\.0 s"):
        pace.wait_s(2.5)
    time.now_s = 60.0
    assert [pace.wait_s(5.0) for _ in range(4)] == [0.0, 0.0, 0.0, 1.0]


def test_what_is_read_in_order_to_be_changed_waits_for_both_turns_first() -> None:
    """So that nobody comes in between for as long as the rate would have the second one wait."""
    time = Time()
    pace = Pace(rate_per_s=1.0, burst=2, monotonic_s=time)
    assert [pace.wait_s(5.0) for _ in range(2)] == [0.0, 0.0]
    assert pace.wait_s(5.0, ahead=1) == 2.0
    time.now_s = 2.0
    assert pace.wait_s(5.0) == 0.0
    assert Pace(rate_per_s=1.0, burst=1, monotonic_s=time).wait_s(5.0, ahead=1) == 0.0, "more than a burst never comes"


def test_who_is_next_has_a_turn_however_short_its_timeout() -> None:
    """Two requests from an empty bucket, by a deadline of one second: told no, the agent would come back for ever."""
    time = Time()
    pace = Pace(rate_per_s=1.0, burst=2, monotonic_s=time)
    assert [pace.wait_s(0.5) for _ in range(2)] == [0.0, 0.0]
    assert pace.wait_s(0.5, ahead=1) == 2.0
    with pytest.raises(BackendBusy, match=r"own rate limit allows the next one in 2\.0 s"):
        pace.wait_s(0.5)


def test_nothing_is_sent_while_the_server_asked_for_a_pause() -> None:
    """The longest of the pauses counts."""
    time = Time()
    pace = Pace(rate_per_s=1.0, burst=9, monotonic_s=time)
    pace.hold_off(30.0)
    pace.hold_off(3.0)
    with pytest.raises(BackendBusy):
        pace.wait_s(5.0)
    time.now_s = 26.0
    assert pace.wait_s(5.0) == pytest.approx(4.0)


@pytest.mark.parametrize("text", ["", "{}", "{", "clusters: []\ncontexts: []\ncurrent-context: none\n", "- a\n"])
def test_a_kubeconfig_that_says_nothing_is_a_mistake_in_the_configuration(tmp_path: Path, text: str) -> None:
    """It names the file and the setting."""
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ConfigError, match="kubeconfig"):
        connect(kubeconfig=str(file), timeout_s=1.0, pace=Pace(rate_per_s=1, burst=1), environ={})


def test_outside_of_a_pod_a_kubeconfig_is_asked_for(tmp_path: Path) -> None:
    """Neither an environment nor a ServiceAccount."""
    pace = Pace(rate_per_s=1, burst=1)
    for environ in ({}, {"KUBERNETES_SERVICE_HOST": "::1"}):
        with pytest.raises(ConfigError, match=r"\[orchestrator.kubernetes\] kubeconfig"):
            connect(kubeconfig="", timeout_s=1.0, pace=pace, environ=environ, account=str(tmp_path))


class Plain:
    """A server without TLS that answers every request with these bytes, piece by piece."""

    def __init__(self, *pieces: bytes, gap_s: float = 0.0) -> None:
        self._pieces, self._gap_s, self._stop = pieces, gap_s, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                for piece in self._pieces:
                    try:
                        connection.sendall(piece)
                    except OSError:
                        break
                    self._stop.wait(self._gap_s)


def client_of(url: str, folder: Path, *, timeout_s: float) -> KubeApi:
    file = folder / "kubeconfig"
    file.write_text(
        "current-context: c\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
        "users: [{name: c, user: {token: t}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: c}}]\n"
    )
    pace = Pace(rate_per_s=100.0, burst=100)
    return connect(kubeconfig=str(file), timeout_s=timeout_s, pace=pace, environ={})


HEAD = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n"


def answer(status: bytes, body: bytes, *, kind: bytes = b"application/json", more: bytes = b"") -> bytes:
    return HEAD % (status, kind, len(body), more) + body


OVERLOAD = b'{"kind": "Status", "message": "too many requests"}'


def test_an_overload_is_not_applied_and_is_left_alone_for_as_long_as_asked(tmp_path: Path) -> None:
    """429 with Retry-After: the next request is not even sent."""
    with Plain(answer(b"429 Too Many Requests", OVERLOAD, more=b"Retry-After: 7\r\n")) as url:
        api = client_of(url, tmp_path, timeout_s=2.0)
        with pytest.raises(BackendBusy, match="too many requests; healthd sends no request for 7 s"):
            api.patch(ResourceKind.NODE, "n1", {})
        with pytest.raises(BackendBusy, match="own rate"):
            api.patch(ResourceKind.NODE, "n1", {})
        with pytest.raises(BackendUnknown, match="could not be read"):
            api.get(ResourceKind.NODE, "n1")
        assert api.sent == {"patch node": 1}
        api.close()


def test_an_object_keeps_the_fields_that_no_model_knows(tmp_path: Path) -> None:
    """Also where something else in the process has loaded lightkube's own model of it."""
    for loaded in ("v1", "Node"), ("coordination.k8s.io/v1", "Lease"):
        resource_registry.load(*loaded)
    for kind in (ResourceKind.NODE, ResourceKind.LEASE):
        object_ = {"kind": kind.value[2], "metadata": {"name": "n1"}, "spec": {"ofTomorrow": 1}}
        with Plain(answer(b"200 OK", msgspec.json.encode(object_))) as url:
            api = client_of(url, tmp_path, timeout_s=2.0)
            namespace = "healthd" if kind is ResourceKind.LEASE else None
            assert api.get(kind, "n1", namespace=namespace) == object_
            assert api.patch(kind, "n1", {}, namespace=namespace) == object_
            assert api.create(kind, object_, namespace=namespace) == object_
            api.close()


@pytest.mark.parametrize(
    "whole",
    [
        answer(b"500 Internal Server Error", b'{"message": "etcd is gone"}'),
        answer(b"503 Service Unavailable", b"upstream connect error", kind=b"text/plain"),
        answer(b"200 OK", b"<html>a portal</html>", kind=b"text/html"),
        answer(b"200 OK", b'{"kind": "Node", "metada')[:-5],
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"",
    ],
)
def test_what_may_have_been_applied_is_unknown(tmp_path: Path, whole: bytes) -> None:
    """5xx of every form, an answer that is none, one that is cut off, none at all."""
    with Plain(whole) as url:
        api = client_of(url, tmp_path, timeout_s=2.0)
        with pytest.raises(BackendUnknown):
            api.patch(ResourceKind.NODE, "n1", {})
        with pytest.raises(BackendUnknown):
            api.get(ResourceKind.NODE, "n1")
        api.close()


def test_an_answer_that_trickles_ends_at_the_deadline(tmp_path: Path) -> None:
    """Each piece comes in time, and the whole does not."""
    body = b'{"kind": "Node"' + b" " * 200 + b"}"
    head = answer(b"200 OK", body)[: -len(body)]
    with Plain(head, *(body[at : at + 1] for at in range(len(body))), gap_s=0.1) as url:
        api = client_of(url, tmp_path, timeout_s=0.5)
        with pytest.raises(BackendUnknown, match="did not end in time"):
            api.get(ResourceKind.NODE, "n1")
        api.close()


PROTECTED = (
    b'{"kind": "Status", "message": "Cannot evict pod", "reason": "TooManyRequests",'
    b' "details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 1"}]}}'
)
TERMINATING = (
    b'{"kind": "Status", "message": "being terminated", "reason": "Forbidden",'
    b' "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}}'
)


def test_a_budget_that_protects_a_pod_is_no_overload(tmp_path: Path) -> None:
    """The same status, told by its cause: no pause for anything else, even where the server gives a Retry-After."""
    with Plain(answer(b"429 Too Many Requests", PROTECTED, more=b"Retry-After: 10\r\n")) as url:
        api = client_of(url, tmp_path, timeout_s=2.0)
        for _ in range(2):
            with pytest.raises(Disrupting, match="Cannot evict pod"):
                api.evict("p", namespace="default", body={})
        assert api.sent == {"evict pod": 2}
        api.close()
    with Plain(answer(b"429 Too Many Requests", OVERLOAD, more=b"Retry-After: 7\r\n")) as url:
        api = client_of(url, tmp_path, timeout_s=2.0)
        with pytest.raises(BackendBusy, match="healthd sends no request for 7 s") as caught:
            api.evict("p", namespace="default", body={})
        assert not isinstance(caught.value, Disrupting)
        api.close()


def test_a_namespace_that_is_being_deleted_is_no_lack_of_rights(tmp_path: Path) -> None:
    """The same status, told by its cause."""
    with Plain(answer(b"403 Forbidden", TERMINATING)) as url:
        api = client_of(url, tmp_path, timeout_s=2.0)
        with pytest.raises(Ending):
            api.evict("p", namespace="gone", body={})
        api.close()
    with Plain(answer(b"403 Forbidden", b'{"kind": "Status", "message": "no", "details": {"causes": null}}')) as url:
        api = client_of(url, tmp_path, timeout_s=2.0)
        with pytest.raises(BackendDenied):
            api.evict("p", namespace="x", body={})
        api.close()


@pytest.mark.parametrize(
    "whole",
    [
        answer(b"200 OK", b"<html>a portal</html>", kind=b"text/html"),
        answer(b"200 OK", b'{"items": []}'),
        answer(b"200 OK", b'{"metadata": {}, "items": [{"spec": 1}]}'),
        answer(b"403 Forbidden", b'{"message": "no"}'),
        answer(b"410 Gone", b'{"message": "too old"}'),
        b"",
    ],
)
def test_a_list_that_is_not_whole_is_no_list(tmp_path: Path, whole: bytes) -> None:
    """Nobody counts as gone because an answer was cut off, refused or none of Kubernetes's."""
    with Plain(whole) as url:
        api = client_of(url, tmp_path, timeout_s=2.0)
        with pytest.raises(BackendUnknown):
            list(api.pages(ResourceKind.NODE, nodes_in, resourceVersion="0"))
        api.close()


def test_a_list_may_be_longer_than_an_object(tmp_path: Path) -> None:
    """From its cache the server gives 10,000 nodes in one piece."""
    body = b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "n1"}}]' + b" " * 9_000_000 + b"}"
    with Plain(answer(b"200 OK", body)) as url:
        api = client_of(url, tmp_path, timeout_s=10.0)
        assert [[node.name for node in page] for page in api.pages(ResourceKind.NODE, nodes_in)] == [["n1"]]
        with pytest.raises(BackendUnknown, match="longer than"):
            api.get(ResourceKind.NODE, "n1")
        api.close()
