"""Whether an answer was taken: every way in which a client can treat it, on real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from healthd.api.peer import sent
from healthd.api.wire import Receipt
from tests.support.limits import limit_s

ANSWER = b"healthd/1 1 5 5\nprinthello"
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The daemon's end, and that of a client which has asked."""
    server, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with server, client:
        server.settimeout(limit_s(5.0))
        client.settimeout(limit_s(5.0))
        client.sendall(b"healthd/1")
        client.shutdown(socket.SHUT_WR)
        while server.recv(100):
            pass
        yield server, client


def read_all(client: socket.socket) -> bytes:
    received = b""
    while chunk := client.recv(65536):
        received += chunk
    return received


def soon(act: Callable[[], object]) -> threading.Thread:
    """After the answer was sent, and while it is waited for."""

    def later() -> None:
        time.sleep(0.1)
        act()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


def test_what_a_client_reads_is_taken(pair: Pair) -> None:
    """Read at once or a moment later, to the end that the daemon sets: taken."""
    server, client = pair
    received: list[bytes] = []
    thread = soon(lambda: received.append(read_all(client)))
    assert sent(server, ANSWER, wait_s=10.0) is Receipt.TAKEN
    thread.join()
    assert received == [ANSWER]


def test_a_client_that_had_gone_took_nothing(pair: Pair) -> None:
    """Its deadline was over before the answer came: the job goes on."""
    server, client = pair
    client.close()
    assert sent(server, ANSWER, wait_s=10.0) is Receipt.GONE


def test_a_client_that_goes_with_the_answer_unread_took_nothing(pair: Pair) -> None:
    """The answer lies in its queue when it closes: the same, however well the sending went."""
    server, client = pair
    thread = soon(client.close)
    assert sent(server, ANSWER, wait_s=10.0) is Receipt.GONE
    thread.join()


def test_a_client_that_reads_a_part_and_goes_took_nothing(pair: Pair) -> None:
    """A torn answer is none."""
    server, client = pair

    def reads_a_part() -> None:
        client.recv(4)
        client.close()

    thread = soon(reads_a_part)
    assert sent(server, ANSWER, wait_s=10.0) is Receipt.GONE
    thread.join()


def test_an_answer_that_nobody_reads_is_not_known(pair: Pair) -> None:
    """A client that is stopped may read it yet: no more is said than that, and no thread waits for ever."""
    server, client = pair
    began = time.monotonic()
    assert sent(server, ANSWER, wait_s=0.2) is Receipt.UNKNOWN
    assert 0.2 <= time.monotonic() - began < limit_s(3.0)
    assert read_all(client) == ANSWER


def test_an_answer_that_is_read_at_once_costs_no_wait(pair: Pair) -> None:
    """A client that waits is answered in far less than a hook takes to start, also where a thousand ask."""
    took_s = []
    for _ in range(200):
        server, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with server, client:
            reader = threading.Thread(target=read_all, args=(client,))
            reader.start()
            began = time.monotonic()
            assert sent(server, ANSWER, wait_s=10.0) is Receipt.TAKEN
            took_s.append(time.monotonic() - began)
            reader.join()
    assert min(took_s) < 0.05, "how long the others take is the machine's business"
