"""What a package keeps of botocore: each call of the table is sent by it, and answered, and nothing else is left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import botocore
import pytest

from healthd.remediation.provisioners.aws_calls import calls
from tests.live.aws.moto_server import dummy_env
from tests.support.limits import limit_s
from tests.support.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.process]

CALLS = tuple(calls().values())
# Builds a client by aws_child's own code, fills in what the operation requires, and sends it.
SENDS_ALL = """
import json, sys
from botocore import session
from healthd.remediation.provisioners import aws_child
import botocore
assert botocore.__file__.startswith(sys.argv[1]), botocore.__file__

def filled(shape):
    match shape.type_name:
        case "structure": return {name: filled(shape.members[name]) for name in shape.required_members}
        case "list": return [filled(shape.member)]
        case "map": return {"a": filled(shape.value)}
        case "boolean": return False
        case "integer" | "long": return 1
        case "blob": return sys.argv[0]
        case "string": return shape.enum[0] if shape.enum else "a" * max(1, shape.metadata.get("min", 1))
    raise AssertionError(shape)

said = {}
for service, operation in json.loads(sys.argv[2]):
    model = session.get_session().get_service_model(service).operation_model(operation)
    parameters = filled(model.input_shape)
    if operation == "PutObject":
        parameters["Body"] = aws_child.__file__
    question = {"service": service, "operation": operation, "parameters": parameters, "region": "us-east-1",
                "endpoint_url": sys.argv[3], "timeout_s": 60}
    said[f"{service}:{operation}"] = aws_child.answer(question, aws_child.time.monotonic() + 60)
json.dump(said, sys.stdout, default=str)
"""


class Refusing(BaseHTTPRequestHandler):
    """Stands for all of AWS: it refuses each request in the words of its protocol, and keeps what it was asked."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        assert isinstance(self.server, Aws)
        self.server.asked.append(f"{self.headers.get('X-Amz-Target', '')} {self.path} {body[:200]!r}")
        as_json = "json" in self.headers.get("Content-Type", "") or "/clusters/" in self.path
        error = "<Code>NoSuchThing</Code><Message>no</Message>"
        xml = f"<Response><Errors><Error>{error}</Error></Errors></Response>" if b"Version=2016-11-15" in body else ""
        xml = xml or (f"<Error>{error}</Error>" if self.command == "PUT" else f"<E><Error>{error}</Error></E>")
        data = (json.dumps({"__type": "NoSuchThing", "message": "no"}) if as_json else xml).encode()
        self.send_response(400)
        self.send_header("x-amzn-ErrorType", "NoSuchThing")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST  # noqa: N815  the names that http.server calls

    def log_message(self, *args: object) -> None:
        """Nothing: what was asked is in the server's list."""


class Aws(ThreadingHTTPServer):
    """All of AWS, on loopback, with what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Refusing)
        self.asked: list[str] = []


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site-packages with healthd and botocore, trimmed as a package is."""
    site = tmp_path_factory.mktemp("site")
    installed = Path(botocore.__file__).parents[1]
    for name in ("botocore", "boto3", "s3transfer"):
        shutil.copytree(installed / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    (info,) = installed.glob("botocore-*.dist-info")
    shutil.copytree(info, site / info.name)
    shutil.copytree(ROOT / "healthd", site / "healthd", symlinks=False, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, ROOT / "packaging" / "trim_botocore.py", site],
        check=True,
        capture_output=True,
        text=True,
        timeout=limit_s(60),
    )
    assert "MB of models removed" in done.stdout
    subprocess.run([sys.executable, ROOT / "packaging" / "correct_records.py", site], check=True, timeout=limit_s(60))
    return site


@pytest.fixture
def aws() -> Iterator[Aws]:
    server = Aws()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(site: Path, url: str) -> dict[str, dict[str, str]]:
    """What came of each call of the table, sent by the trimmed package."""
    pairs = json.dumps([(call.service, call.operation) for call in CALLS])
    environ = {**dummy_env(), "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-c", SENDS_ALL, str(site), pairs, url]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(90), env=environ, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, dict[str, str]] = json.loads(done.stdout)
    return answers


def test_each_call_of_the_table_is_sent_by_what_a_package_keeps(trimmed: Path, aws: Aws) -> None:
    """The client is made, the request is built and sent, and the refusal is understood, for every row."""
    said = ask(trimmed, f"http://127.0.0.1:{aws.server_port}")
    assert set(said) == {call.action for call in CALLS}
    assert {action: each.get("code") for action, each in said.items() if each.get("code") != "NoSuchThing"} == {}
    assert len(aws.asked) >= len(CALLS)


def test_what_no_client_of_ours_reads_is_gone(trimmed: Path) -> None:
    """Of 440 services the called ones are left, in one version each, with those that credentials come from."""
    data = trimmed / "botocore" / "data"
    left = {path.name for path in data.iterdir() if path.is_dir()}
    assert left == {call.service for call in CALLS} | {"sts", "sso", "sso-oidc", "signin"}
    assert [path.name for path in data.iterdir() if path.is_dir() and len(list(path.iterdir())) != 1] == []
    assert sum(path.stat().st_size for path in data.rglob("*") if path.is_file()) < 5e6
    (record,) = trimmed.glob("botocore-*.dist-info/RECORD")
    listed = [line.partition(",")[0] for line in record.read_text().splitlines()]
    assert [name for name in listed if name.startswith("botocore/data/") and not (trimmed / name).exists()] == []
    assert "botocore/data/endpoints.json" in listed


def test_a_table_with_an_unknown_service_stops_the_build(tmp_path: Path) -> None:
    """A call whose model botocore does not have is told when the package is made, not on the node."""
    (tmp_path / "botocore/data/ec2/2016-11-15").mkdir(parents=True)
    table = tmp_path / "healthd/remediation/data/aws_calls.csv"
    table.parent.mkdir(parents=True)
    table.write_text("service,operation\nec3,DescribeInstances\n")
    argv = [sys.executable, str(ROOT / "packaging" / "trim_botocore.py"), str(tmp_path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60))
    assert done.returncode == 1
    assert "has no model of ec3" in done.stderr
    assert (tmp_path / "botocore/data/ec2").is_dir()
