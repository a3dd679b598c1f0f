"""Terraform's provider `hashicorp/aws` as far as Terraform asks one for its schema: attributes, blocks and their types.

The real provider is a download that tests do not make. What it knows of each attribute is recorded, with its source, in
aws_provider.json; Terraform itself checks the module against that, and makes up what AWS would answer (mock_provider).
Terraform attaches to this server by TF_REATTACH_PROVIDERS. Source of the messages: tfplugin6.proto of Terraform 1.11.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from typing import Any

import grpc

RECORDED = json.loads((Path(__file__).parent / "aws_provider.json").read_text(encoding="utf-8"))
ADDRESS = "registry.terraform.io/hashicorp/aws"
SERVICE = "tfplugin6.Provider"
_LIST = 2  # Schema.NestedBlock.NestingMode


def schema() -> bytes:
    """GetProviderSchema.Response."""
    kinds = ((2, RECORDED["resource"]), (3, RECORDED["data"]))
    entries = (
        _bytes(number, _bytes(1, name.encode()) + _bytes(2, _schema(block)))
        for number, blocks in kinds
        for name, block in blocks.items()
    )
    return _bytes(1, _schema({"region": {"type": "string", "is": "optional"}})) + b"".join(entries)


def _schema(block: Mapping[str, Any]) -> bytes:
    return _bytes(2, _block(block))


def _block(block: Mapping[str, Any]) -> bytes:
    return b"".join(_nested(name, each) if "block" in each else _attribute(name, each) for name, each in block.items())


def _attribute(name: str, each: Mapping[str, Any]) -> bytes:
    how = {"required": (4,), "optional": (5,), "computed": (6,), "both": (5, 6)}[each["is"]]
    named = _bytes(1, name.encode()) + _bytes(2, json.dumps(each["type"]).encode())
    return _bytes(2, named + b"".join(_number(field, 1) for field in how))


def _nested(name: str, each: Mapping[str, Any]) -> bytes:
    inside = _bytes(1, name.encode()) + _bytes(2, _block(each["block"])) + _number(3, _LIST)
    return _bytes(3, inside + _number(4, int(each["required"])) + _number(5, each["most"] or 0))


def _bytes(field: int, value: bytes) -> bytes:
    """A field of protobuf with a length."""
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _answer(request: bytes, context: Any) -> bytes:
    """To every question whether something is valid an empty answer, which says that it is."""
    return b""


class _Provider(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def service(self, handler_call_details: Any) -> Any:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service != SERVICE or not method.startswith(("GetProviderSchema", "Validate", "Configure", "Stop")):
            return None
        is_schema = method == "GetProviderSchema"
        return grpc.unary_unary_rpc_method_handler((lambda request, context: schema()) if is_schema else _answer)


@contextmanager
def provider_serving(folder: Path) -> Iterator[dict[str, str]]:
    """The variables by which Terraform finds this provider, while it serves."""
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([_Provider()])
    socket = folder / "provider"
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    attach = {
        "Protocol": "grpc",
        "ProtocolVersion": 6,
        "Pid": getpid(),
        "Test": True,
        "Addr": {"Network": "unix", "String": str(socket)},
    }
    try:
        yield {"TF_REATTACH_PROVIDERS": json.dumps({ADDRESS: attach})}
    finally:
        server.stop(None).wait()
