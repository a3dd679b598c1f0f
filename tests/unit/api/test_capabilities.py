"""The doors hear strangers without the daemon's capabilities, which they cannot take up again: real threads, as the
kernel shows them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from healthd.agent.agent import Agent
from healthd.api.client import ask
from healthd.api.client_queue import ClientUser
from healthd.api.http import HttpResponse as HttpAnswer
from healthd.api.http import HttpServer, Route
from healthd.api.peer import Peer
from healthd.api.server import Server, _Guest
from healthd.api.wire import Request, read_answer, write_request
from healthd.core.capabilities import _HEADER, _SETS, _VERSION_3, PrivilegedThreads, drop_capabilities
from healthd.core.errors import BackendUnknown, HealthdError, StoreError
from healthd.core.model import Event
from healthd.state.store import EventFilter
from tests.support.ports import free_ports
from tests.support.resting_agent import resting_agent
from tests.support.running import NOBODY, QUARANTINES, RunningNode

ANSWERS_WITHIN_S = 120.0


def status_of(thread: Path = Path("/proc/thread-self")) -> dict[str, str]:
    """What the kernel says of a thread: of the one that asks."""
    lines = (line.partition(":") for line in (thread / "status").read_text().splitlines())
    return {name: value.strip() for name, _, value in lines}


def sets(thread: Path = Path("/proc/thread-self")) -> tuple[int, ...]:
    """Its effective, permitted, inheritable and ambient capabilities."""
    found = status_of(thread)
    return tuple(int(found[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"))


def threads_of(pid: int) -> list[tuple[tuple[int, ...], str]]:
    """The capabilities of each thread of a process, and whether what it runs may gain any."""
    found = []
    for each in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found.append((sets(each), status_of(each)["NoNewPrivs"]))
    return found


def permitted() -> int:
    return sets()[1]


OURS, NONE = sets(), (0, 0, 0, 0)
pytestmark = [pytest.mark.process, pytest.mark.skipif(not any(OURS), reason="needs a process that has capabilities")]


def in_thread(work: Callable[[], object]) -> None:
    """In a thread of its own, which drops its own alone; and its error here."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(timeout=ANSWERS_WITHIN_S)


def test_what_is_laid_down_is_gone_and_others_keep_theirs() -> None:
    """For this thread, for each that it starts, and for what these run; nothing takes them up again."""
    seen: list[tuple[int, ...]] = []

    def cannot_take_up() -> None:
        header = _HEADER.pack(_VERSION_3, 0)
        wanted = _SETS.pack(OURS[1] & 0xFFFFFFFF, OURS[1] & 0xFFFFFFFF, 0, OURS[1] >> 32, OURS[1] >> 32, 0)
        assert ctypes.CDLL(None, use_errno=True).capset(header, wanted) == -1
        assert ctypes.get_errno() == errno.EPERM

    def work() -> None:
        drop_capabilities()
        drop_capabilities()
        seen.append(sets())
        in_thread(lambda: seen.append(sets()))
        cannot_take_up()
        in_thread(cannot_take_up)
        ran = subprocess.run(["grep", "-E", "^Cap(Eff|Prm)", "/proc/self/status"], capture_output=True, check=True)
        seen.append(tuple(int(word, 16) for word in ran.stdout.split()[1::2]))

    in_thread(work)
    assert seen == [NONE, NONE, (0, 0)]
    assert sets() == OURS


def test_privileged_threads_have_the_capabilities_of_their_maker() -> None:
    """Results and exceptions pass through; a thread with the capabilities runs it itself; closed, they begin none."""
    privileged = PrivilegedThreads()
    here = threading.get_ident()

    def refused() -> None:
        raise BackendUnknown("no")

    def work() -> None:
        drop_capabilities()
        assert privileged.do(sets) == OURS
        assert privileged.do(threading.get_ident) != threading.get_ident()
        with pytest.raises(BackendUnknown, match="no"):
            privileged.do(refused)
        privileged.close()
        privileged.close()
        with pytest.raises(HealthdError, match="healthd is stopping"):
            privileged.do(sets)

    in_thread(work)
    assert privileged.do(threading.get_ident) == here


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with resting_agent(tmp_path) as made:
        yield made


class TellingStore:
    """A store whose error tells what the thread that asks it may."""

    def events_of(self, wanted: EventFilter, *, last: int) -> tuple[tuple[Event, ...], int]:
        raise StoreError(f"permitted {permitted():x}")


def test_whoever_asks_is_answered_without_capabilities(agent: Agent, tmp_path: Path) -> None:
    """Root as well as a stranger."""
    server = Server(str(tmp_path / "s"), agent, group="", log=structlog.get_logger())
    thread = threading.Thread(target=server.serve)
    thread.start()
    store, agent.store = agent.store, TellingStore()  # type: ignore[assignment]
    try:
        answer = ask(str(tmp_path / "s"), Request(arguments=("history",)), print)
    finally:
        agent.store = store
        server.close()
        thread.join(timeout=ANSWERS_WITHIN_S)
    assert answer is not None
    assert answer.err == "healthd: permitted 0\n"


def test_a_check_that_a_stranger_asked_for_has_all_that_it_needs(agent: Agent) -> None:
    """Its thread is not begun by the one that asks."""
    seen: list[tuple[int, ...]] = []

    def ask_for_it() -> None:
        drop_capabilities()
        agent.checkup.start("host.memory").result(timeout=ANSWERS_WITHIN_S)
        seen.append(agent.checkup._pool.submit(sets).result(timeout=ANSWERS_WITHIN_S))

    in_thread(ask_for_it)
    assert seen == [OURS]


def test_whoever_comes_after_an_order_has_none_of_its_capabilities(agent: Agent, tmp_path: Path) -> None:
    """The next in line is answered by a thread that the thread of the one before it begins."""
    server = Server(str(tmp_path / "s"), agent, group="", log=structlog.get_logger())
    store, agent.store = agent.store, TellingStore()  # type: ignore[assignment]
    ours, theirs = socket.socketpair()
    try:
        assert sets() == OURS
        peer = Peer(uid=NOBODY, gid=NOBODY, groups=frozenset({NOBODY}))
        assert server._begin(_Guest(client=theirs, peer=peer, who=ClientUser(uid=NOBODY, may_act=False)))
        ours.settimeout(ANSWERS_WITHIN_S)
        ours.sendall(write_request(Request(arguments=("history",))))
        ours.shutdown(socket.SHUT_WR)
        with ours.makefile("rb") as stream:
            assert read_answer(stream, print).err == "healthd: permitted 0\n"
    finally:
        agent.store = store
        ours.close()
        server.close()


def test_http_is_answered_without_capabilities() -> None:
    """No path needs any."""
    server = HttpServer(
        "127.0.0.1:0", {"/x": Route(answer=lambda: HttpAnswer(text=f"{permitted():x}"))}, structlog.get_logger()
    )
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/x", timeout=ANSWERS_WITHIN_S) as answer:
            assert answer.read() == b"0"
    finally:
        server.close()


def test_the_doors_of_a_daemon_have_none(tmp_path: Path) -> None:
    """Each thread of a real one that hears strangers, while they are connected; all others have what the daemon has.
    Orders and checks are carried out as ever."""
    (port,) = free_ports(1)
    node = RunningNode(tmp_path / "node", "n1", sections=QUARANTINES, http=f"127.0.0.1:{port}")
    try:
        node.start()
        assert node.process is not None
        pid = node.process.pid
        with socket.socket(socket.AF_UNIX) as client, socket.create_connection(("127.0.0.1", port)) as other:
            client.connect(str(node.socket))
            other.sendall(b"GET /")  # each waits in a thread of its own for the rest
            node.wait(lambda: [each for each, _ in threads_of(pid)].count(NONE) >= 4, 20, "two doors, two clients")
            found = {each for each in threads_of(pid) if each[0] != OURS}
        assert found == {(NONE, "1")}
        assert node.check()["verdict"] in ("ok", "warning", "critical", "unknown")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/verdict", timeout=ANSWERS_WITHIN_S) as answer:
            assert answer.status == 200
        done = node.healthd("quarantine", "--reason", "a test", "--socket", str(node.socket))
        assert done.returncode == 0, done.stderr
    finally:
        node.stop()
