"""Which pods hold GPUs, asked of gRPC's own server on a unix socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from healthd.core.errors import BackendUnknown
from healthd.remediation.orchestrators.kubernetes.pod_resources import (
    GPU_RESOURCES,
    HoldingPod,
    parse_pods,
    pods_with,
    started,
)
from tests.live.kubernetes.kubelet_socket import KubeletSocket, encoded, pod


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[KubeletSocket]:
    """A kubelet without pods."""
    with KubeletSocket(tmp_path / "kubelet.sock") as kubelet:
        yield kubelet


def test_pods_with_gpus_are_jobs_and_others_are_not(kubelet: KubeletSocket) -> None:
    """By device plugin, by dynamic resource, by EFA; not a pod that holds CPUs, nor one that holds nothing."""
    kubelet.pods = [
        pod("train-0", namespace="ml", devices={"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32}),
        pod("mig-0", devices={"nvidia.com/mig-1g.10gb": 1}),
        pod("dra-0", driver="gpu.nvidia.com"),
        pod("sidecar", devices={"example.com/fpga": 1}),
        pod("exporter"),
    ]
    assert pods_with(GPU_RESOURCES, path=str(kubelet.path)) == ("default/dra-0", "default/mig-0", "ml/train-0")


def test_each_start_of_a_kubelet_is_another(tmp_path: Path) -> None:
    """It makes its socket again; while it runs, and while there is none, nothing changes."""
    path = tmp_path / "kubelet.sock"
    assert started(str(path)) is None
    seen = set()
    for _ in range(3):
        with KubeletSocket(path):
            assert started(str(path)) == started(str(path))
            seen.add(started(str(path)))
        path.unlink(missing_ok=True)
    assert len(seen) == 3


def test_no_pod_is_an_answer(kubelet: KubeletSocket) -> None:
    """An empty message is an empty list."""
    assert pods_with(GPU_RESOURCES, path=str(kubelet.path)) == ()


def test_many_pods_come_whole(kubelet: KubeletSocket) -> None:
    """An answer that is larger than HTTP/2's first window."""
    kubelet.pods = [pod(f"p{number:04}", devices={"nvidia.com/gpu": 8}) for number in range(3000)]
    assert len(pods_with(GPU_RESOURCES, path=str(kubelet.path), timeout_s=20)) == 3000


@pytest.mark.parametrize("status", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED])
def test_an_error_of_the_kubelets_is_unknown_never_idle(kubelet: KubeletSocket, status: grpc.StatusCode) -> None:
    """With gRPC's number and the kubelet's words."""
    kubelet.fails = status
    with pytest.raises(BackendUnknown, match=f"gRPC status {status.value[0]} the kubelet says no"):
        pods_with(GPU_RESOURCES, path=str(kubelet.path))


def test_a_kubelet_that_hangs_is_unknown_within_the_deadline(kubelet: KubeletSocket) -> None:
    """It is not waited for."""
    kubelet.hangs_s = 1.0
    with pytest.raises(BackendUnknown, match=r"did not answer within 0\.2 s"):
        pods_with(GPU_RESOURCES, path=str(kubelet.path), timeout_s=0.2)


def test_no_socket_is_unknown_and_says_what_to_mount(tmp_path: Path) -> None:
    """Never an idle node."""
    with pytest.raises(BackendUnknown, match="mount the folder"):
        pods_with(GPU_RESOURCES, path=str(tmp_path / "none.sock"))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_answers_otherwise_is_unknown(tmp_path: Path, answer: bytes) -> None:
    """Somebody who hangs up, and somebody who speaks another language."""
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(BackendUnknown):
            pods_with(GPU_RESOURCES, path=str(path), timeout_s=2.0)
        thread.join()


def test_every_cut_of_an_answer_is_unknown_or_fewer_pods_never_others() -> None:
    """A message that ends early is either told as such, or ends between two pods."""
    whole = encoded([pod("a", devices={"nvidia.com/gpu": 1}), pod("b", driver="gpu.nvidia.com")])
    expected = parse_pods(whole)
    assert [each.name for each in expected] == ["a", "b"]
    for length in range(len(whole)):
        try:
            found = parse_pods(whole[:length])
        except BackendUnknown:
            continue
        assert found in (expected[:1], ())


@pytest.mark.parametrize(
    "message",
    [
        b"\x08\x01\x08",  # a number, then half a field
        b"\x0a\x05\x0a\x03abc"[:-1],  # a string that is longer than the message
        b"\x0b",  # a group, which no message has had since 2008
        b"\x0a\x02\x08\x01",  # a number in the place of a name
        b"\xff" * 11,  # a number without an end
    ],
)
def test_what_is_no_message_is_unknown(message: bytes) -> None:
    """Nothing is guessed."""
    with pytest.raises(BackendUnknown):
        parse_pods(message)


def test_fields_of_later_versions_are_left_out() -> None:
    """Fixed-width numbers and fields that nobody knows yet stand in between."""
    known = encoded([pod("a", devices={"nvidia.com/gpu": 1})])
    later = b"\x51" + bytes(8) + b"\x5d" + bytes(4) + b"\x62\x01x"
    assert parse_pods(later + known) == (
        HoldingPod(namespace="default", name="a", resources=frozenset({"nvidia.com/gpu"})),
    )
