"""The pods that hold GPUs on this node, as the kubelet lists them: its pod-resources socket needs no right of the API.

One call of ``v1.PodResourcesLister/List`` (gRPC, HTTP/2 on a unix socket), read with h2, which is 1 MB where grpcio is
10, brings no threads, and shows the trailers, where gRPC says whether all went well. The device plugins' checkpoint
file is no substitute: its format is the kubelet's own affair, and it keeps pods that have ended.

Field numbers: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto, v1.34.
"""

from __future__ import annotations

import fnmatch
import os
import socket
import time
from collections.abc import Collection, Iterator

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from msgspec import Struct

from healthd.core.errors import BackendUnknown

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
GPU_RESOURCES = ("nvidia.com/*", "*.nvidia.com", "amd.com/gpu", "aws.amazon.com/neuron*", "vpc.amazonaws.com/efa*")
"""The resources that a job on a GPU node holds: of device plugins, and drivers of dynamic resource allocation."""

_PATH = "/v1.PodResourcesLister/List"
_LIMIT_BYTES = 16 * 1024 * 1024  # the kubelet's own limit of an answer
_CHUNK_BYTES = 65_536
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class HoldingPod(Struct, frozen=True, kw_only=True):
    """A pod and what devices it holds: resource names, or drivers of claims."""

    namespace: str
    name: str
    resources: frozenset[str]


def pods_with(wanted: Collection[str], *, path: str = SOCKET, timeout_s: float = 5.0) -> tuple[str, ...]:
    """The pods, as ``namespace/name``, that hold a resource that one of these globs names. Raises BackendUnknown."""
    pods = parse_pods(call(path, timeout_s=timeout_s))
    names = {
        f"{pod.namespace}/{pod.name}"
        for pod in pods
        if any(fnmatch.fnmatchcase(resource, glob) for resource in pod.resources for glob in wanted)
    }
    return tuple(sorted(names))


def started(path: str = SOCKET) -> tuple[int, int] | None:
    """Another value after each start of the kubelet, which makes its socket again; None while there is none."""
    try:
        made = os.stat(path)
    except OSError:
        return None
    return made.st_ino, made.st_ctime_ns


def call(path: str, *, timeout_s: float) -> bytes:
    """The message that the kubelet answers an empty request with. Raises BackendUnknown."""
    until_s = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            return _exchange(connection, path, until_s)
    except TimeoutError as error:
        raise BackendUnknown(f"{path}: the kubelet did not answer within {timeout_s:g} s") from error
    except OSError as error:
        help_ = "mount the folder /var/lib/kubelet/pod-resources into the container"
        raise BackendUnknown(f"{path}: the kubelet cannot be reached: {error.strerror}: {help_}") from error
    except h2.exceptions.ProtocolError as error:
        raise BackendUnknown(f"{path}: the answer is not from a kubelet: {error}") from error


def _exchange(connection: socket.socket, path: str, until_s: float) -> bytes:
    http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    http.initiate_connection()
    http.increment_flow_control_window(_LIMIT_BYTES)
    stream = http.get_next_available_stream_id()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", _PATH),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    http.send_headers(stream, headers)
    http.send_data(stream, bytes(5), end_stream=True)  # not compressed, an empty message
    body, trailers = bytearray(), {"grpc-status": "", "grpc-message": ""}
    while True:
        connection.sendall(http.data_to_send())
        connection.settimeout(max(0.001, until_s - time.monotonic()))
        received = connection.recv(_CHUNK_BYTES)
        if not received:
            raise BackendUnknown(f"{path}: the kubelet closed the connection in the middle of the call")
        for event in http.receive_data(received):
            match event:
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    trailers.update((str(name), str(value)) for name, value in event.headers)
                case h2.events.DataReceived():
                    body += event.data
                    http.acknowledge_received_data(event.flow_controlled_length, stream)
                case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                    raise BackendUnknown(f"{path}: the kubelet aborted the call: {event}")
                case h2.events.StreamEnded():
                    return _message(path, bytes(body), trailers)
        if len(body) > _LIMIT_BYTES:
            raise BackendUnknown(f"{path}: the kubelet's answer is longer than {_LIMIT_BYTES} bytes")


def _message(path: str, body: bytes, trailers: dict[str, str]) -> bytes:
    """The message of a unary call: one frame of five bytes and so many more, and status 0 in the trailers."""
    if trailers["grpc-status"] != "0":
        message = f"gRPC status {trailers['grpc-status'] or 'missing'} {trailers['grpc-message']}".rstrip()
        raise BackendUnknown(f"{path}: the kubelet did not list its pods: {message}")
    if len(body) < 5 or body[0] != 0 or int.from_bytes(body[1:5]) != len(body) - 5:
        raise BackendUnknown(f"{path}: the kubelet's answer of {len(body)} bytes is not one whole message")
    return body[5:]


def parse_pods(message: bytes) -> tuple[HoldingPod, ...]:
    """The pods in a ListPodResourcesResponse. Raises BackendUnknown for what is none."""
    try:
        return tuple(_pod(bytes_of(value)) for number, value in fields(message) if number == 1)
    except (ValueError, IndexError) as error:
        raise BackendUnknown(f"the kubelet's list of pods cannot be read: {error}") from error


def _pod(message: bytes) -> HoldingPod:
    """PodResources: 1 name, 2 namespace, 3 containers."""
    name = namespace = ""
    resources: set[str] = set()
    for number, value in fields(message):
        if number == 1:
            name = bytes_of(value).decode()
        elif number == 2:
            namespace = bytes_of(value).decode()
        elif number == 3:
            resources |= _held(bytes_of(value))
    return HoldingPod(namespace=namespace, name=name, resources=frozenset(resources))


def _held(container: bytes) -> set[str]:
    """ContainerResources: 2 devices (1 resource name), 5 dynamic resources (4 claim resources (2 driver name))."""
    found = set()
    for number, value in fields(container):
        if number == 2:
            found |= {bytes_of(name).decode() for part, name in fields(bytes_of(value)) if part == 1}
        elif number == 5:
            claims = [bytes_of(claim) for part, claim in fields(bytes_of(value)) if part == 4]
            found |= {bytes_of(name).decode() for claim in claims for part, name in fields(claim) if part == 2}
    return found


def fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protobuf message, as number and value, in order. Raises ValueError, IndexError for no message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        value: bytes | int
        if wire == _VARINT:
            value, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32, _BYTES):
            size = 8 if wire == _FIXED64 else 4
            if wire == _BYTES:
                size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
            if at > len(message):
                raise ValueError(f"field {number} ends {at - len(message)} bytes behind the message")
        else:
            raise ValueError(f"field {number} has wire type {wire}")
        yield number, value


def bytes_of(value: bytes | int) -> bytes:
    """A field that must be a string or a message. Raises ValueError for a number."""
    if isinstance(value, int):
        raise ValueError(f"a number, {value}, in the place of a message")
    return value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
