"""The socket and the HTTP port: while somebody wants to keep others from them, and while nothing is left to give."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from msgspec import Struct, field

from healthd.agent.agent import Agent
from healthd.api.client import ask
from healthd.api.http import HttpResponse as HttpAnswer
from healthd.api.http import HttpServer, Route, common_routes
from healthd.api.server import Server
from healthd.api.wire import Reply, Request, write_request
from healthd.core.errors import StoreError
from healthd.core.model import Event, Verdict
from healthd.state.store import Store
from healthd.testing import FakeClock
from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.resting_agent import resting_agent
from tests.support.running import NOBODY, ROOT, RunningNode

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask as another user")

REQUEST_S = 5.0
SLOW = NOBODY - 1
# Holds connections, sends a byte a second on each, and comes again whenever one is closed.
_HOLDS = """
import os, socket, sys, time
family, address, uid, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)

def come():
    host, _, port = address.rpartition(":")
    made = socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET)
    made.connect(address if family == "unix" else (host, int(port)))
    return made

held = [come() for _ in range(count)]
print("all are there", flush=True)
while True:
    for index, each in enumerate(held):
        try:
            each.send(b"x")
        except OSError:
            each.close()
            held[index] = come()
    time.sleep(1)
"""


class Log(Struct):
    """What is said, in place of the daemon's log."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def debug(self, words: str, **more: object) -> None:
        self.lines.append(("debug", words))

    def info(self, words: str, **more: object) -> None:
        self.lines.append(("info", words))

    def error(self, words: str, **more: object) -> None:
        self.lines.append(("error", words))

    def errors(self) -> list[str]:
        return [words for level, words in self.lines if level == "error"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node whose daemon has looked once, with both doors open."""
    (port,) = free_ports(1)
    made = RunningNode(tmp_path / "node", "n1", sections='[orchestrator]\nkind = "local"\n', http=f"127.0.0.1:{port}")
    made.open_to_all()
    made.start()
    made.healthd("check", "--socket", str(made.socket))
    yield made
    made.stop()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with resting_agent(tmp_path) as made:
        yield made


class Door(Struct):
    """A server of the unix socket in this process, and the thread that lets clients in."""

    path: str
    server: Server
    log: Log
    thread: threading.Thread


@pytest.fixture
def door(agent: Agent, tmp_path: Path) -> Iterator[Door]:
    log = Log()
    server = Server(str(tmp_path / "s"), agent, group="", log=log)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield Door(path=str(tmp_path / "s"), server=server, log=log, thread=thread)
    server.close()
    thread.join(timeout=limit_s(5))
    assert not thread.is_alive()


@contextlib.contextmanager
def held(family: str, address: str, count: int, *, cwd: Path, uid: int = SLOW) -> Iterator[None]:
    """So many slow connections of another user, for as long as it lasts."""
    argv = [sys.executable, "-c", _HOLDS, family, address, str(uid), str(count)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=cwd)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"all are there\n"
        yield
    finally:
        process.kill()
        process.communicate()


def took_s(began: float) -> float:
    return time.monotonic() - began


def until(condition: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not condition():
        assert took_s(began) < limit_s(10)
        time.sleep(0.01)


def http_of(node: RunningNode) -> str:
    return node.config.read_text().partition('http = "')[2].partition('"')[0]


def fetched(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=limit_s(20)) as answer:
        text: str = answer.read().decode()
        return text


def until_closed_s(connection: socket.socket, piece: bytes, began: float) -> float:
    """How long the other side takes a piece every half second before it ends the connection that ``began`` then."""
    connection.settimeout(0.5)
    while took_s(began) < limit_s(10):
        try:
            connection.send(piece)
            if connection.recv(1) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return took_s(began)


# -- whoever wants to keep others out ----------------------------------------------------------------------------------


@needs_root
def test_no_user_keeps_the_prolog_from_its_answer(node: RunningNode) -> None:
    """Nor another user: one holds more connections than are answered at once, each a byte a second, for ever."""
    with held("unix", node.socket.name, 60, cwd=node.folder):
        time.sleep(0.5)
        began = time.monotonic()
        hook = node.healthd("hook", "prolog", "--socket", str(node.socket))
        assert (hook.returncode, "did not answer" in hook.stderr, took_s(began) < limit_s(2.0)) == (0, False, True), (
            hook.stderr
        )
        began = time.monotonic()
        assert node.as_nobody("status").returncode == 0
        assert took_s(began) < limit_s(2.0)
    logged = [json.loads(line)["event"] for line in node.log.read_text().splitlines()]
    assert logged.count("a client closed its connection") <= 2


@needs_root
def test_many_of_one_user_are_answered_in_turn(node: RunningNode) -> None:
    """As the ranks of a job ask, all at once: nobody is sent away."""
    asks = [
        "import os, socket, sys",
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})",
        "sockets = [socket.socket(socket.AF_UNIX) for _ in range(100)]",
        "request = b'healthd/1\\0' + b'2\\0status\\0--json'",
        "[each.connect(sys.argv[1]) for each in sockets]",
        "[(each.sendall(request), each.shutdown(socket.SHUT_WR)) for each in sockets]",
        "print(sum(each.makefile('rb').readline().startswith(b'healthd/1 0 ') for each in sockets))",
    ]
    argv = [sys.executable, "-c", "\n".join(asks), node.socket.name]
    done = subprocess.run(argv, cwd=node.folder, capture_output=True, text=True, timeout=limit_s(60), check=False)
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_a_request_has_one_deadline_however_its_bytes_come(door: Door) -> None:
    """Each byte in time, and the whole of it never: the seat is free again after it."""
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(door.path)
        assert REQUEST_S <= until_closed_s(slow, b"x", began) < limit_s(REQUEST_S)
    assert ask(door.path, Request(arguments=("status",)), print) is not None


def test_http_has_one_deadline_for_a_request_and_a_bound(node: RunningNode) -> None:
    """A slow one goes when its time is over, and before that where too many are there: a scraper is always answered."""
    address = http_of(node)
    host, _, port = address.partition(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert REQUEST_S <= until_closed_s(slow, b"x", began) < limit_s(REQUEST_S)
    assert node.process is not None
    with held("tcp", address, 100, cwd=node.folder):
        time.sleep(0.5)
        for path in ("/healthz", "/metrics"):
            began = time.monotonic()
            assert fetched(address, path)
            assert took_s(began) < limit_s(2.0)
        status = Path(f"/proc/{node.process.pid}/status").read_text()
        (threads,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads:"))
        assert threads < 80
    assert "Traceback" not in node.log.read_text()


def test_http_answers_all_who_ask_and_refuses_only_beyond_that() -> None:
    """Those that were heard keep their place until they are answered. One host has half of the places at most, and the
    last are for probes. A request without an end is cut off."""
    go_on, log = threading.Event(), Log()
    asked: list[int] = []

    def slowly() -> HttpAnswer:
        asked.append(1)
        go_on.wait(20)
        return HttpAnswer(text="done\n")

    routes = {"/slow": Route(answer=slowly), "/probe": Route(answer=slowly, probe=True), "/x": Route(answer=slowly)}
    server = HttpServer("127.0.0.1:0", routes, log)
    asking: list[socket.socket] = []
    try:
        for path, host in (*[("/slow", 1)] * 14, *[("/slow", 2)] * 14, *[("/probe", 1)] * 4):
            address, here = ("127.0.0.1", server.port), (f"127.0.0.{host}", 0)
            asking.append(socket.create_connection(address, timeout=limit_s(20), source_address=here))
            asking[-1].sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            until(lambda: len(asked) == len(asking))
            if len(asking) in (14, 28):
                with pytest.raises(urllib.error.HTTPError, match="503") as refused:
                    fetched(f"127.0.0.1:{server.port}", "/slow")
                refused.value.close()
        with socket.create_connection(("127.0.0.1", server.port), timeout=limit_s(20)) as one_more:
            assert one_more.recv(100) == b""
        go_on.set()
        assert all(each.makefile("rb").read().endswith(b"done\n") for each in asking)
        with socket.create_connection(("127.0.0.1", server.port)) as endless:
            endless.settimeout(limit_s(20))
            with contextlib.suppress(OSError):
                endless.sendall(b"GET /x HTTP/1.0\r\nX: " + b"x" * 100_000)
                assert endless.recv(1) == b""
        assert log.errors() == ["too many clients: one was refused", "too many clients: one was closed"]
    finally:
        for each in asking:
            each.close()
        server.close()
    assert "its thread has ended" in server.problem()


def test_clients_that_take_no_answer_keep_no_other_from_theirs() -> None:
    """They have asked, as many as there is room for, and read nothing: the oldest makes room."""
    log = Log()
    routes = {"/big": Route(answer=lambda: HttpAnswer(text="x" * 1_000_000)), "/x": Route(answer=HttpAnswer)}
    server = HttpServer("127.0.0.1:0", routes, log)
    asking: list[socket.socket] = []
    try:
        for _ in range(32):
            asking.append(socket.socket())
            asking[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            asking[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # as of a client far away: no big buffers
            asking[-1].connect(("127.0.0.1", server.port))
            asking[-1].sendall(b"GET /big HTTP/1.0\r\n\r\n")
        assert all(each.recv(1) == b"H" for each in asking)
        assert fetched(f"127.0.0.1:{server.port}", "/x") == ""
        assert log.errors() == []
    finally:
        for each in asking:
            each.close()
        server.close()


def test_one_host_keeps_no_other_from_its_place() -> None:
    """It has many connections, and another one a slow one: room is made among the many."""
    log = Log()
    server = HttpServer("127.0.0.1:0", {"/x": Route(answer=lambda: HttpAnswer(text="x"))}, log)
    address, held = ("127.0.0.1", server.port), []
    try:
        with socket.create_connection(address, timeout=limit_s(20), source_address=("127.0.0.2", 0)) as other:
            other.sendall(b"GET /x HTTP/1.0\r\n")
            held = [socket.create_connection(address, timeout=limit_s(20)) for _ in range(60)]
            until(lambda: all(each.recv(1) == b"" for each in held[:20]))
            other.sendall(b"\r\n")
            assert other.makefile("rb").read().endswith(b"x")
    finally:
        for each in held:
            each.close()
        server.close()


def test_a_page_that_fails_is_answered_and_said() -> None:
    """A defect is no silence; a text that UTF-8 has no bytes for is no defect."""
    log = Log()

    def broken() -> tuple[str, str]:
        raise ValueError("a defect")

    routes = common_routes(metrics=broken, problem=lambda: "half a pair \udcff")
    server = HttpServer("127.0.0.1:0", routes, log)
    try:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            fetched(f"127.0.0.1:{server.port}", "/metrics")
        with pytest.raises(urllib.error.HTTPError, match="503") as message:
            fetched(f"127.0.0.1:{server.port}", "/healthz")
        assert message.value.read() == b"half a pair ?\n"
        message.value.close()
    finally:
        server.close()
    assert log.errors() == ["a page failed; please report this defect of healthd"]


# -- nothing is left ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_more_descriptors(pid: int) -> Iterator[None]:
    """The process has as many as it may have."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_daemon_without_descriptors_answers_again_when_it_has_some(node: RunningNode) -> None:
    """Who waits in between is answered then, and the log has one line, not one for each try."""
    assert node.process is not None
    asked: list[Reply | None] = []
    asking = threading.Thread(target=lambda: asked.append(ask(str(node.socket), Request(arguments=("status",)), print)))
    with no_more_descriptors(node.process.pid):
        ask_late(node)
        with socket.socket(socket.AF_UNIX) as first:  # for whoever comes next a descriptor is there already
            first.connect(str(node.socket))
        node.wait(lambda: "cannot accept a client" in node.log.read_text(), 10, "it is said")
        asking.start()
        time.sleep(1.0)
        assert not asked
        usage = cpu_s(node.process.pid)
        time.sleep(1.0)
        assert cpu_s(node.process.pid) - usage < 0.5
    asking.join(timeout=limit_s(20))
    assert asked[0] is not None
    assert asked[0].code == 0
    assert fetched(http_of(node), "/healthz") == "ok\n"
    lines = [json.loads(line) for line in node.log.read_text().splitlines()]
    messages = [line for line in lines if line["event"].startswith("cannot accept a client: [Errno 24]")]
    assert [set(line) >= {"socket", "suppressed"} or "http" in line for line in messages] in ([True], [True, True])


def ask_late(node: RunningNode) -> None:
    """Have somebody wait at the HTTP port, whose listener would be asked again and again."""
    host, _, port = http_of(node).partition(":")
    waits = socket.create_connection((host, int(port)))
    threading.Timer(8, waits.close).start()


def cpu_s(pid: int) -> float:
    """What a process has used of a core so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def no_more_threads() -> Iterator[None]:
    """No thread can be started in this process: there is no memory for a stack so large."""
    before = threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(before)


def test_a_thread_that_cannot_be_started_costs_one_client_and_no_more(door: Door) -> None:
    """It is told at once, and its seat is free; whoever comes when there are threads again is answered."""
    with no_more_threads():
        for _ in range(40):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(door.path)
                client.settimeout(limit_s(10))
                with contextlib.suppress(OSError):
                    client.sendall(write_request(Request(arguments=("status",))))
                    client.shutdown(socket.SHUT_WR)
                    assert client.recv(1) == b""
    assert ask(door.path, Request(arguments=("status",)), print) is not None
    assert [words.partition(":")[0] for words in door.log.errors()] == ["cannot start a thread for a client"]
    assert door.server.problem() == ""


def test_a_thread_of_the_socket_that_ends_is_a_problem_of_the_daemon(agent: Agent, tmp_path: Path) -> None:
    """A defect ends it, and that is seen: no word to the watchdog, and /healthz says why. Closing is no defect."""

    class Broken(Log):
        def error(self, words: str, **more: object) -> None:
            raise ValueError("a defect")

    server = Server(str(tmp_path / "s"), agent, group="", log=Broken())
    assert server.problem() == ""
    with ThreadPoolExecutor(max_workers=1) as own:  # a thread that serves puts its capabilities down, for ever
        own.submit(int).result()
        with no_more_threads(), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))
            with pytest.raises(ValueError, match="a defect"):
                own.submit(server.serve).result()
    assert server.problem() == f"{tmp_path / 's'} accepts no clients: its thread has ended"
    server.close()
    assert server.problem() == ""


def test_a_socket_that_lets_nobody_in_for_a_minute_is_a_problem(agent: Agent, tmp_path: Path) -> None:
    """While it lasts, and not when it is over."""
    path, log, clock = str(tmp_path / "s"), Log(), FakeClock()
    server = Server(path, agent, group="", log=log, clock=clock)
    thread = threading.Thread(target=server.serve)
    thread.start()

    def come() -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.settimeout(limit_s(10))
            assert client.recv(1) == b""

    with no_more_threads():
        come()
        clock.advance(30)
        come()
        assert server.problem() == ""
        clock.advance(31)
        come()
        assert server.problem() == f"{path} has accepted no client for 61 s: see the log"
        clock.advance(10)
        assert server.problem() == ""
        come()
        assert server.problem() != ""
    assert ask(path, Request(arguments=("status",)), print) is not None
    until(lambda: server.problem() == "")  # the client may be answered before the thread that let it in goes on
    server.close()
    thread.join(timeout=limit_s(5))
    assert not thread.is_alive()


# Two questions about a job, at once.
_ASKS = f"""
import os, socket, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
held = []
for job in (b"1", b"2"):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    one.sendall(b"\\0".join((b"healthd/1", b"2", b"job", job)))
    one.shutdown(socket.SHUT_WR)
    held.append(one)
print("asked", flush=True)
for one in held:
    while one.recv(65536):
        pass
"""


class SlowTrail(Struct):
    """A trail that answers once it may."""

    asked: list[str] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    def events_of_job(self, job: str) -> tuple[Event, ...]:
        self.asked.append(job)
        assert self.may_answer.wait(limit_s(20))
        return ()

    def close(self) -> None:
        """As a store."""


@needs_root
def test_users_who_may_not_act_read_the_trail_one_at_a_time(agent: Agent, door: Door, tmp_path: Path) -> None:
    """An operator waits for none of them but the one that reads."""
    assert agent.store is not None
    agent.store.close()
    trail = SlowTrail()
    agent.store = cast("Store", trail)
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    guests = subprocess.Popen([sys.executable, "-c", _ASKS, "s"], stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        assert guests.stdout is not None
        assert guests.stdout.readline() == b"asked\n"
        with ThreadPoolExecutor(max_workers=1) as own:
            operator = own.submit(ask, door.path, Request(arguments=("job", "3")), print)
            until(lambda: "3" in trail.asked and len(trail.asked) > 1)
            before = sorted(trail.asked)
            trail.may_answer.set()
            assert before[1:] == ["3"]
            assert operator.result() is not None
        assert guests.wait(timeout=limit_s(20)) == 0
        assert sorted(trail.asked) == ["1", "2", "3"]
    finally:
        trail.may_answer.set()
        guests.kill()
        guests.communicate()


# -- what is kept and told ---------------------------------------------------------------------------------------------


@needs_root
def test_nobody_can_fill_the_trail_by_asking(node: RunningNode) -> None:
    """A script of root's is noted each time it asks; of anybody else's the same once a minute, and whose it was."""
    for _ in range(3):
        node.healthd("check", "--context", "prolog", "--socket", str(node.socket))
    for _ in range(4):
        node.as_nobody("check", "--context", "prolog")
        node.as_nobody("check", "--context", "epilog")
    asked = [event.text for event in node.events() if "asked for the verdict" in event.text]
    assert len([text for text in asked if "(uid " not in text]) == 3
    others = [text.rpartition(" (")[2] for text in asked if "(uid " in text]
    verdicts = {text.partition(": ")[2].partition(" ")[0] for text in asked if "(uid " in text}
    assert others == [f"uid {NOBODY})"] * len(others)
    assert 2 <= len(others) <= 2 * len(verdicts)
    assert verdicts <= set(Verdict)


# The same question of many users: in a user namespace one user has as many.
_ASKS_AS_MANY = """
import os, sys
from healthd.api.client import ask
from healthd.api.wire import Request

os.setgroups([]); os.setegid(60000)
for uid in range(60000, 60020):
    os.seteuid(uid)
    ask(sys.argv[1], Request(arguments=("check", "--context", "prolog")), print)
    os.seteuid(0)
"""


@needs_root
def test_a_user_of_many_names_cannot_fill_the_trail_either(node: RunningNode) -> None:
    """The trail keeps so many lines: those of such a user would take the place of all others within hours."""
    node.open_to_all()
    argv, environ = [sys.executable, "-c", _ASKS_AS_MANY, node.socket.name], {"PYTHONPATH": str(ROOT)}
    subprocess.run(argv, env=environ, cwd=node.folder, timeout=limit_s(60), check=True)
    others = [event.text for event in node.events() if "asked for the verdict" in event.text]
    verdicts = {text.partition(": ")[2].partition(" ")[0] for text in others}
    assert 1 <= len(others) <= 2 * len(verdicts)


@needs_root
def test_the_trail_is_told_to_everybody_but_not_all_of_it_at_once(node: RunningNode) -> None:
    """Where lines were left out the answer says so, as text and as JSON; root is told all."""
    node.stop()
    fill(node, 1200)
    node.start()
    text = node.as_nobody("history", "--last", "5000")
    assert text.stdout.startswith("! the newest 1000 lines, the most for a user who may not act")
    assert len(text.stdout.splitlines()) >= 1001
    answer = json.loads(node.as_nobody("history", "--last", "5000", "--json").stdout)
    assert (len(answer["events"]), answer["cut"].partition(",")[0]) == (1000, "the newest 1000 lines")
    assert json.loads(node.as_nobody("history", "--last", "20", "--json").stdout)["cut"] == ""
    whole = json.loads(node.healthd("history", "--last", "5000", "--json", "--socket", str(node.socket)).stdout)
    assert (len(whole["events"]) > 1200, whole["cut"]) == (True, "")


def fill(node: RunningNode, lines: int) -> None:
    """Put so many lines into the trail of a daemon that does not run."""
    store = Store(node.state_dir / "healthd.db", now=datetime.now(UTC))
    try:
        now = datetime.now(UTC)
        store.append(*(Event(at=now, kind="step", text=f"line {number}") for number in range(lines)))
    finally:
        store.close()


# -- text that cannot be written ---------------------------------------------------------------------------------------

ODD_PLUGIN = """
[[checks."plugin.run".plugins]]
name = "odd"
json = true
command = ["printf", '{"status": 1, "message": "half a pair \\\\udcff and \\\\ud800", "component": "disk:\\\\udcff"}']
[notify]
severity = "warning"
command = ["sh", "-c", "cat >> FOLDER/told"]
"""


def test_half_a_surrogate_pair_in_a_finding_is_told_by_every_door(tmp_path: Path) -> None:
    """A plug-in's JSON may hold one. Messages, metrics, status, verdict and history have it, and the daemon goes on."""
    (port,) = free_ports(1)
    folder = tmp_path / "node"
    sections = '[orchestrator]\nkind = "local"\n' + ODD_PLUGIN.replace("FOLDER", str(folder))
    node = RunningNode(folder, "n1", sections=sections, http=f"127.0.0.1:{port}")
    node.start()
    try:
        node.wait(lambda: "plugin.odd" in str(node.check("plugin.run")), 20, "it is found")
        node.wait(lambda: (folder / "told").exists() and "plugin.odd" in (folder / "told").read_text(), 30, "told")
        time.sleep(6)  # a further turn of the notifier
        words = "half a pair ? and ?"
        assert "plugin.odd on disk:? (ask_human)" in (folder / "told").read_text()
        assert 'component="disk:?"' in fetched(http_of(node), "/metrics")
        for verb in (("check", "plugin.run"), ("check", "--json"), ("status",), ("history",)):
            assert words in node.healthd(*verb, "--socket", str(node.socket)).stdout, verb
        for path in ("/status", "/verdict"):
            assert words in fetched(http_of(node), path)
        assert fetched(http_of(node), "/healthz") == "ok\n"
        assert "defect" not in node.log.read_text()
    finally:
        assert node.stop() == 0


class OddStore:
    """A store whose error has half a surrogate pair in it."""

    def events(self, *, last: int) -> Sequence[Event]:
        raise StoreError("half a pair \ud800")


def test_an_answer_that_cannot_be_written_is_an_answer_all_the_same(door: Door, agent: Agent) -> None:
    """Whatever lets such text in: the client is told, and the log."""
    store, agent.store = agent.store, OddStore()  # type: ignore[assignment]
    answer = ask(door.path, Request(arguments=("history",)), print)
    agent.store = store
    assert answer is not None
    assert (answer.code, answer.err.startswith("healthd: the daemon failed to answer: ")) == (2, True)
    assert door.log.errors() == ["an answer failed; please report this defect of healthd"]


def test_the_arguments_of_a_client_need_not_be_text(door: Door) -> None:
    """Bytes that are no UTF-8 are a usage error, in the same bytes."""
    answer = ask(door.path, Request(arguments=("check", "\udcff")), print)
    assert answer is not None
    assert answer.code == 64
