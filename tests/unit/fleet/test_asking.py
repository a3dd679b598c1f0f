"""A node is asked within one deadline, and why it gave no answer is a sentence that names the next place to check."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
import structlog
from msgspec.structs import replace

from healthd.api.http import HttpServer, agent_routes
from healthd.config.schema.config import Config
from healthd.config.schema.daemon import DaemonSection
from healthd.config.schema.ledger import LedgerSection
from healthd.core.errors import BackendUnknown
from healthd.fleet.asking import NodeAnswer, NodeDocument, ask_here, ask_nodes, url_of
from healthd.fleet.node_detail import READS_VERDICT, NodeDetail
from tests.support.limits import limit_s
from tests.support.resting_agent import resting_agent

HERE = "127.0.0.1"
SCHEMA = "healthd.verdict/v1"
DOCUMENT = {"schema": SCHEMA, "node": HERE, "verdict": "ok"}


@pytest.fixture
def port() -> Iterator[int]:
    """A node's HTTP server, and what else may listen at that port."""
    stop = threading.Event()

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/slow":
                stop.wait(limit_s(30))
                return
            self.send_response({"/closed": 403, "/moved": 302}.get(self.path, 200))
            self.send_header("Location", "/verdict")
            self.end_headers()
            self._say()

        def _say(self) -> None:
            match self.path:
                case "/verdict" | "/moved":
                    self.wfile.write(json.dumps(DOCUMENT).encode())
                case "/other":
                    self.wfile.write(json.dumps({**DOCUMENT, "node": "another"}).encode())
                case "/closed":
                    self.wfile.write(b"this page is\nfor this machine only")
                case "/endless":
                    while not stop.is_set():
                        self.wfile.write(b"x" * 65536)
                case "/drips":
                    while not stop.wait(0.05):
                        self.wfile.write(b"x")
                case _:
                    self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None: ...

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                stop.is_set()  # the client has gone away

    server = ThreadingHTTPServer((HERE, 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


def asked(port: int, path: str, timeout_s: float = 30.0) -> NodeAnswer:
    return ask_nodes(f"http://{{node}}:{port}{path}", [HERE], timeout_s=limit_s(timeout_s))[HERE]


def problem(answer: NodeAnswer) -> str:
    with pytest.raises(BackendUnknown) as raised:
        answer.document(msgspec.json.Decoder(NodeDocument), SCHEMA)
    return str(raised.value)


def test_a_node_answers_with_its_own_document(port: int) -> None:
    """And the answer names its URL."""
    answer = asked(port, "/verdict")
    assert answer.document(msgspec.json.Decoder(NodeDocument), SCHEMA) == NodeDocument(schema=SCHEMA, node=HERE)
    assert (answer.asked, answer.problem) == (f"http://{HERE}:{port}/verdict", "")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/html", "answered with something else"),
        ("/other", "answered with healthd.verdict/v1 of another; expected healthd.verdict/v1 of 127.0.0.1"),
        ("/closed", "answered 403 Forbidden: this page is for this machine only"),
        ("/moved", "answered 302"),
        ("/endless", "has sent more than"),
    ],
)
def test_another_answer_is_none(port: int, path: str, words: str) -> None:
    """A page, another node's document, a refusal, a redirect, which is not followed, and more than is read."""
    assert words in problem(asked(port, path))


@pytest.mark.parametrize("path", ["/slow", "/drips"])
def test_one_deadline_holds_for_the_whole_answer(port: int, path: str) -> None:
    """Also for a server that sends a byte at a time."""
    answer = ask_nodes(f"http://{{node}}:{port}{path}", [HERE], timeout_s=0.4)[HERE]
    assert "did not answer within 0.4 s" in problem(answer)


def test_a_node_that_refuses_is_named_with_its_setting() -> None:
    """A port without a server: the daemon is down, or serves its own machine alone."""
    with socket.socket() as unused:
        unused.bind((HERE, 0))
        free = unused.getsockname()[1]
    text = problem(asked(free, "/verdict"))
    assert text.startswith(f"http://{HERE}:{free}/verdict refuses connections: ")
    assert "[daemon] http" in text


def test_http_that_is_off_is_not_asked() -> None:
    """Without a URL, and for a name that is no host name."""
    assert '[daemon] http is ""' in problem(ask_nodes("", ["n1"])["n1"])
    assert "no host name" in problem(ask_nodes("http://{node}:1/", ["n1/../x"])["n1/../x"])
    assert ask_nodes("http://{node}:1/", []) == {}


def test_the_url_is_that_of_the_inventory_or_the_port_of_the_daemon() -> None:
    """One setting for both where it is set."""
    config = Config()
    assert url_of(config, "/verdict") == "http://{node}:9809/verdict"
    known = replace(config, ledger=LedgerSection(inventory_url="http://{node}.hpc:9000/inventory"))
    assert url_of(known, "/verdict") == "http://{node}.hpc:9000/verdict"
    assert url_of(replace(config, daemon=DaemonSection(http="")), "/verdict") == ""


def test_a_machine_without_a_daemon_says_so(tmp_path: Path) -> None:
    """At its socket."""
    path = str(tmp_path / "no.sock")
    assert problem(ask_here(path, "n1", "check", "--json")) == f"no daemon answers at {path}"


@pytest.mark.process  # the probe workers of the daemon
def test_a_real_daemon_answers_other_machines_without_evidence(tmp_path: Path) -> None:
    """As a head node asks: the verdict is read as it is sent, and the log lines stay on the node."""
    with resting_agent(tmp_path) as agent:
        routes = agent_routes(agent, metrics=lambda: ("", ""), problem=lambda: "")
        server = HttpServer(f"{HERE}:0", routes, structlog.get_logger(), local=False)
        try:
            name = agent.machine.name
            answer = ask_nodes(f"http://{HERE}:{server.port}/verdict", [name], timeout_s=limit_s(30))[name]
        finally:
            server.close()
        verdict = answer.document(READS_VERDICT, SCHEMA)
        assert {each.name for each in verdict.checks} >= {"kmsg.reader", "gpu.count"}
        assert f"from {answer.asked}\n" in NodeDetail(now=verdict.generated_at, answer=answer).text
