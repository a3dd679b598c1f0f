"""One HTTP endpoint on loopback that stands for AWS: it counts every request, breaks some on order, passes on the rest.

SageMaker's goes to ``FakeHyperPod``, after the request was checked against botocore's own service model; EC2's, Auto
Scaling's and EventBridge's to moto's server. What moto lacks (a launch time that a start changes, capacity
reservations, the topology of instances, node auto-repair of EKS) is added here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import botocore.session
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from msgspec import Struct, field

from tests.live.aws.fake_hyperpod import ApiError, FakeHyperPod
from tests.support.limits import limit_s

REGION = "us-east-1"


class Fault(Struct, frozen=True, kw_only=True):
    """What goes wrong with one request.

    ``code`` and ``status``: that error is the answer, and nothing is applied. ``lost``: the request is applied and the
    connection closed without an answer. ``hangs``: applied, and no answer until the endpoint ends.
    """

    code: str = ""
    status: int = 400
    lost: bool = False
    hangs: bool = False


THROTTLED = Fault(code="RequestLimitExceeded", status=503)
THROTTLED_JSON = Fault(code="ThrottlingException", status=400)
DENIED = Fault(code="UnauthorizedOperation", status=403)
DENIED_JSON = Fault(code="AccessDeniedException", status=400)
BROKEN = Fault(code="InternalFailure", status=500)


class AwsEndpoint(Struct):
    """``moto``: host and port of moto's server. ``requests``: (operation, parameters), also of those that failed.

    ``applied``: those that AWS carried out, dry runs left out. ``always``: what goes wrong with every request for an
    operation, or with ``"*"`` for any, for as long as it stands there. ``topology``: the network nodes of each
    instance, the top layer first, and its Capacity Block or "". ``node_repair``: the managed node groups of EKS,
    as ``cluster/group``, and whether their auto-repair is on. ``failed_launch``: why EC2 stopped each instance that is
    stopped; "": because it was asked to. ``met`` is told ``before`` and the operation when a
    request has come, ``after`` when it was applied and not answered yet.
    """

    moto: tuple[str, int]
    hyperpod: FakeHyperPod = field(default_factory=FakeHyperPod)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    applied: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    always: dict[str, Fault] = field(default_factory=dict)
    met: Callable[[str, str], None] = lambda when, operation: None
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    reservations: dict[str, dict[str, str]] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    failed_launch: str = ""
    topology: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    node_repair: dict[str, bool] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def fail(self, operation: str, *faults: Fault) -> None:
        """The next requests for an operation go wrong in this way, one fault each."""
        self.faults.setdefault(operation, deque()).extend(faults)

    def fault_of(self, operation: str) -> Fault | None:
        """What goes wrong with the request that came just now, or None."""
        waiting = self.faults.get(operation)
        if waiting:
            return waiting.popleft()
        return self.always.get(operation) or self.always.get("*")

    def count(self, operation: str) -> int:
        """How many requests came for it."""
        return Counter(name for name, _ in self.requests)[operation]

    def requests_for(self, operation: str) -> list[dict[str, Any]]:
        """The parameters of each request for it."""
        return [parameters for name, parameters in self.requests if name == operation]

    @contextlib.contextmanager
    def serving(self) -> Iterator[AwsEndpoint]:
        """Serve on a free port of loopback until the block ends; a request that hangs ends with it."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = False  # joined below: nothing of a test outlives it
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2})
        thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def answer(self, service: str, operation: str, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        """Status, content type and body of an answer that nothing goes wrong with."""
        if service == "sagemaker":
            return self._by_hyperpod(operation, body)
        if operation == "DescribeCapacityReservations":
            return self._reservations(dict(parse_qsl(body.decode()))["CapacityReservationId.1"])
        if operation == "DescribeInstanceTopology":
            return self._topology(dict(parse_qsl(body.decode())))
        status, kind, text = self._by_moto(body, headers)
        return status, kind, self._launched_again(operation, dict(parse_qsl(body.decode())), status, text)

    def node_group(self, cluster: str, name: str) -> tuple[int, str, bytes]:
        """EKS's answer to DescribeNodegroup, as its model has it."""
        if f"{cluster}/{name}" not in self.node_repair:
            answer = {"message": f"No node group found for name: {name}."}
            return 404, "application/json", json.dumps(answer).encode()
        config = {"enabled": self.node_repair[f"{cluster}/{name}"]}
        answered = {"nodegroup": {"clusterName": cluster, "nodegroupName": name, "nodeRepairConfig": config}}
        _check(answered, _model("eks").operation_model("DescribeNodegroup").output_shape, "our own answer")
        return 200, "application/json", json.dumps(answered).encode()

    def _by_hyperpod(self, operation: str, body: bytes) -> tuple[int, str, bytes]:
        parameters, shapes = json.loads(body), _model("sagemaker").operation_model(operation)
        try:
            _check(parameters, shapes.input_shape, "request")
            answered = self.hyperpod.answer(operation, parameters)
            _check(answered, shapes.output_shape, "our own answer")
        except ApiError as error:
            text = json.dumps({"__type": error.code, "Message": error.message})
            return error.status, "application/x-amz-json-1.1", text.encode()
        return 200, "application/x-amz-json-1.1", json.dumps(answered).encode()

    def _by_moto(self, body: bytes, headers: dict[str, str]) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(*self.moto, timeout=limit_s(90))
        try:
            connection.request("POST", "/", body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.getheader("Content-Type", "text/xml"), response.read()
        finally:
            connection.close()

    def _launched_again(self, operation: str, asked: dict[str, str], status: int, text: bytes) -> bytes:
        """A start makes a new launch time, as EC2 has it (moto keeps the old)."""
        if operation == "StartInstances" and status == 200:
            instance = asked["InstanceId.1"]
            self.started[instance] = self.started.get(instance, 0) + 1
        if operation == "DescribeInstances" and self.failed_launch:
            text = text.replace(b"Client.UserInitiatedShutdown", self.failed_launch.encode())
        if operation != "DescribeInstances" or not self.started:
            return text
        xml = text.decode()
        for instance, times in self.started.items():
            before, found, after = xml.partition(f"<instanceId>{instance}</instanceId>")
            again = re.sub(r"(<launchTime>)[^<]*", rf"\g<1>2030-01-01T00:00:{times:02}.000Z", after, count=1)
            xml = before + found + again if found else xml
        return xml.encode()

    def _topology(self, asked: dict[str, str]) -> tuple[int, str, bytes]:
        """One page, in the form of the EC2 API Reference's example of DescribeInstanceTopology."""
        start, most = int(asked.get("NextToken", "0")), int(asked.get("MaxResults", "20"))
        page = list(self.topology.items())[start : start + most]
        items = "".join(
            f"<item><instanceId>{instance}</instanceId><instanceType>p6e-gb200.36xlarge</instanceType>"
            f"<networkNodeSet>{''.join(f'<item>{each}</item>' for each in network)}</networkNodeSet>"
            "<availabilityZone>us-east-1a</availabilityZone><zoneId>use1-az2</zoneId>"
            + (f"<capacityBlockId>{block}</capacityBlockId>" if block else "")
            + "</item>"
            for instance, (network, block) in page
        )
        more = f"<nextToken>{start + most}</nextToken>" if start + most < len(self.topology) else ""
        name = "DescribeInstanceTopologyResponse"
        xml = f'<{name} xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>'
        return 200, "text/xml", f"{xml}<instanceSet>{items}</instanceSet>{more}</{name}>".encode()

    def _reservations(self, wanted: str) -> tuple[int, str, bytes]:
        if wanted not in self.reservations:
            return _error_text("ec2", Fault(code="InvalidCapacityReservationId.NotFound"))
        fields = {"capacityReservationId": wanted, **self.reservations[wanted]}
        inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items())
        text = f"<capacityReservationSet><item>{inner}</item></capacityReservationSet>"
        name = "DescribeCapacityReservationsResponse"
        xml = f'<{name} xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">{text}</{name}>'
        return 200, "text/xml", xml.encode()


_NODE_GROUP = re.compile(r"/clusters/([^/]+)/node-groups/([^/?]+)")
_SCOPE = re.compile(r"Credential=[^/]+/\d{8}/[^/]+/([^/]+)/aws4_request")


@cache
def _model(service: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(service)


def _check(values: Any, shape: Any, whose: str) -> None:
    """Raise ValidationException unless botocore's model allows it: types, required members, patterns and lengths.

    botocore itself sends what breaks a pattern or is too long; AWS refuses it.
    """
    report = ParamValidator().validate(values, shape)
    problems = [report.generate_report()] if report.has_errors() else list(_bounds(values, shape, shape.name))
    if problems:
        raise ApiError("ValidationException", f"{whose}: {'; '.join(problems)}")


def _bounds(value: Any, shape: Any, name: str) -> Iterator[str]:
    if shape.type_name == "structure":
        for member, inner in value.items():
            yield from _bounds(inner, shape.members[member], f"{name}.{member}")
    elif shape.type_name == "list":
        if len(value) > shape.metadata.get("max", len(value)):
            yield f"{name} has {len(value)} members"
        for inner in value:
            yield from _bounds(inner, shape.member, name)
    elif shape.type_name == "string":
        pattern = shape.metadata.get("pattern")
        if pattern and not re.fullmatch(pattern, value):
            yield f"{name} {value!r} does not match {pattern}"


def _handler(endpoint: AwsEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """EKS alone asks in this way."""
            found = _NODE_GROUP.fullmatch(self.path)
            assert found is not None, self.path
            cluster, name = found.groups()
            endpoint.requests.append(("DescribeNodegroup", {"clusterName": cluster, "nodegroupName": name}))
            fault = endpoint.fault_of("DescribeNodegroup")
            if fault and fault.code:
                self._reply(fault.status, "application/json", json.dumps({"code": fault.code}).encode())
                return
            self._reply(*endpoint.node_group(cluster, name))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            target = self.headers.get("X-Amz-Target", "")
            asked = json.loads(body) if target else dict(parse_qsl(body.decode()))
            operation = target.partition(".")[2] or asked["Action"]
            scope = _SCOPE.search(self.headers.get("Authorization", ""))
            assert scope is not None or operation == "AssumeRoleWithWebIdentity", "a request that is not signed"
            service = scope[1] if scope is not None else "sts"
            endpoint.requests.append((operation, asked))
            endpoint.met("before", operation)
            fault = endpoint.fault_of(operation)
            if fault and fault.code:
                self._reply(*_error_text(service, fault))
                return
            reply = endpoint.answer(service, operation, body, dict(self.headers))
            if reply[0] == 200 and "DryRun" not in asked:
                endpoint.applied.append((operation, asked))
            endpoint.met("after", operation)
            if fault:
                if fault.hangs:
                    endpoint.ended.wait()
                self.close_connection = True
                return
            self._reply(*reply)

        def _reply(self, status: int, kind: str, text: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("x-amzn-RequestId", str(uuid.uuid4()))
            self.send_header("Connection", "close")
            self.end_headers()
            # The client may have given up by now.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
            """Say nothing."""

    return Handler


def _error_text(service: str, fault: Fault) -> tuple[int, str, bytes]:
    if service in ("sagemaker", "events"):
        text = json.dumps({"__type": fault.code, "message": "as the test wants it"})
        return fault.status, "application/x-amz-json-1.1", text.encode()
    inner = f"<Code>{fault.code}</Code><Message>as the test wants it</Message>"
    if service == "ec2":
        xml = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>r</RequestID></Response>"
    else:
        xml = f"<ErrorResponse><Error><Type>Sender</Type>{inner}</Error><RequestId>r</RequestId></ErrorResponse>"
    return fault.status, "text/xml", xml.encode()
