"""The doors hear strangers without the daemon's capabilities: real threads, as the kernel shows them."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from healthd.agent import Agent
from healthd.api.client import ask
from healthd.api.http import Answer as HttpAnswer
from healthd.api.http import HttpServer, Route
from healthd.api.peer import Peer
from healthd.api.seats import Who
from healthd.api.server import Server, _Guest
from healthd.api.wire import Request, read_answer, write_request
from healthd.capabilities import put_down, take_up, taken_up
from healthd.errors import StoreError
from healthd.model import Event
from tests.resting_agent import resting_agent
from tests.running import NOBODY


def effective() -> int:
    """The effective capabilities of the thread that asks."""
    status = Path("/proc/thread-self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)


ALL = effective()
pytestmark = [pytest.mark.process, pytest.mark.skipif(not ALL, reason="needs a process that has capabilities")]


def in_thread(work: Callable[[], object]) -> None:
    """In a thread of its own, and its error here."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(timeout=30)


def test_what_is_put_down_can_be_taken_up_and_others_keep_theirs() -> None:
    """It is the thread's own matter, also of one that it starts."""
    seen: list[int] = []

    def work() -> None:
        put_down()
        put_down()
        seen.append(effective())
        in_thread(lambda: seen.append(effective()))
        with taken_up():
            seen.append(effective())
        seen.append(effective())
        take_up()
        take_up()
        seen.append(effective())

    in_thread(work)
    assert seen == [0, 0, ALL, 0, ALL]
    assert effective() == ALL


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with resting_agent(tmp_path) as made:
        yield made


class TellingStore:
    """A store whose error tells what the thread that asks it may."""

    def events(self, *, last: int) -> tuple[Event, ...]:
        raise StoreError(f"effective {effective():x}")


def test_whoever_asks_is_answered_without_capabilities(agent: Agent, tmp_path: Path) -> None:
    """Root as well as a stranger; only what may act has them again, and a check that it starts has them all along."""
    server = Server(str(tmp_path / "s"), agent, group="", log=structlog.get_logger())
    thread = threading.Thread(target=server.serve)
    thread.start()
    store, agent.store = agent.store, TellingStore()  # type: ignore[assignment]
    try:
        answer = ask(str(tmp_path / "s"), Request(arguments=("history",)), print)
    finally:
        agent.store = store
        server.close()
        thread.join(timeout=20)
    assert answer is not None
    assert answer.err == "healthd: effective 0\n"
    seen: list[int] = []

    def ask_to_act() -> None:
        put_down()
        for uid in (NOBODY, 0):
            server._may_act(Peer(pid=os.getpid(), uid=uid, gid=uid, groups=frozenset({uid})))
            seen.append(effective())
        put_down()
        seen.append(agent.checkup._pool.submit(effective).result(timeout=20))

    in_thread(ask_to_act)
    assert seen == [0, ALL, ALL]


def test_whoever_comes_after_an_order_has_none_of_its_capabilities(agent: Agent, tmp_path: Path) -> None:
    """The next in line is answered by a thread that the thread of the one before it begins."""
    server = Server(str(tmp_path / "s"), agent, group="", log=structlog.get_logger())
    store, agent.store = agent.store, TellingStore()  # type: ignore[assignment]
    ours, theirs = socket.socketpair()
    try:
        assert effective() == ALL
        peer = Peer(pid=os.getpid(), uid=NOBODY, gid=NOBODY, groups=frozenset({NOBODY}))
        assert server._begin(_Guest(client=theirs, peer=peer, who=Who(uid=NOBODY, may_act=False)))
        ours.settimeout(20)
        ours.sendall(write_request(Request(arguments=("history",))))
        ours.shutdown(socket.SHUT_WR)
        with ours.makefile("rb") as stream:
            assert read_answer(stream, print).err == "healthd: effective 0\n"
    finally:
        agent.store = store
        ours.close()
        server.close()


def test_http_is_answered_without_capabilities() -> None:
    """No path needs any."""
    server = HttpServer(
        "127.0.0.1:0", {"/x": Route(answer=lambda: HttpAnswer(text=f"{effective():x}"))}, structlog.get_logger()
    )
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/x", timeout=20) as answer:
            assert answer.read() == b"0"
    finally:
        server.close()
