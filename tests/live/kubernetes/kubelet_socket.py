"""The kubelet's pod-resources service on a unix socket, by gRPC's own server and protobuf's own encoder.

The messages are those of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto (v1.34); none of healthd's code makes them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELDS: Mapping[str, Sequence[tuple[str, int, str, bool]]] = {
    "CDIDevice": [("name", 1, "", False)],
    "ClaimResource": [
        ("cdi_devices", 1, "CDIDevice", True),
        ("driver_name", 2, "", False),
        ("pool_name", 3, "", False),
        ("device_name", 4, "", False),
    ],
    "DynamicResource": [
        ("claim_name", 2, "", False),
        ("claim_namespace", 3, "", False),
        ("claim_resources", 4, "ClaimResource", True),
    ],
    "NUMANode": [("ID", 1, "int64", False)],
    "TopologyInfo": [("nodes", 1, "NUMANode", True)],
    "ContainerDevices": [
        ("resource_name", 1, "", False),
        ("device_ids", 2, "", True),
        ("topology", 3, "TopologyInfo", False),
    ],
    "ContainerResources": [
        ("name", 1, "", False),
        ("devices", 2, "ContainerDevices", True),
        ("cpu_ids", 3, "int64", True),
        ("dynamic_resources", 5, "DynamicResource", True),
    ],
    "PodResources": [
        ("name", 1, "", False),
        ("namespace", 2, "", False),
        ("containers", 3, "ContainerResources", True),
    ],
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
}


def _response_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    for message, parts in _FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind, repeated in parts:
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in ("", "int64"):
                made.field.add(
                    name=name, number=number, label=label, type=field.TYPE_INT64 if kind else field.TYPE_STRING
                )
            else:
                made.field.add(name=name, number=number, label=label, type=field.TYPE_MESSAGE, type_name=f".v1.{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


ListPodResourcesResponse = _response_class()


def pod(
    name: str, *, namespace: str = "default", devices: Mapping[str, int] | None = None, driver: str = ""
) -> dict[str, Any]:
    """One pod as the kubelet lists it: ``devices`` by resource name, ``driver`` of a dynamic resource."""
    container: dict[str, Any] = {"name": "main", "cpu_ids": [0, 1, 2, 300]}
    container["devices"] = [
        {
            "resource_name": resource,
            "device_ids": [f"GPU-{number}" for number in range(count)],
            "topology": {"nodes": [{"ID": 1}]},
        }
        for resource, count in (devices or {}).items()
    ]
    if driver:
        claim = {"cdi_devices": [{"name": "x"}], "driver_name": driver, "pool_name": "p", "device_name": "gpu-0"}
        container["dynamic_resources"] = [{"claim_name": "c", "claim_namespace": namespace, "claim_resources": [claim]}]
    return {"name": name, "namespace": namespace, "containers": [container]}


def encoded(pods: Sequence[Mapping[str, Any]]) -> bytes:
    """The answer with these pods."""
    return bytes(ListPodResourcesResponse(pod_resources=[dict(each) for each in pods]).SerializeToString())


class KubeletSocket:
    """Listens at ``path``. ``pods`` is what it lists; ``fails`` makes it answer with this gRPC status; ``hangs_s``."""

    def __init__(self, path: Path, *pods: Mapping[str, Any]) -> None:
        self.path, self.pods = path, list(pods)
        self.fails: grpc.StatusCode | None = None
        self.hangs_s = 0.0
        self._pool = futures.ThreadPoolExecutor(max_workers=2)
        self._server = grpc.server(self._pool)
        listing = grpc.unary_unary_rpc_method_handler(self._list)
        handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": listing})
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{path}")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(grace=None).wait()
        self._pool.shutdown()  # the pool is the caller's, says gRPC, and its threads outlive the server

    def _list(self, request: bytes, context: Any) -> bytes:
        assert request == b""
        time.sleep(self.hangs_s)
        if self.fails is not None:
            context.abort(self.fails, "the kubelet says no")
        return encoded(self.pods)
