"""When there is no daemon, and when there is one that does not answer: real sockets, real queues."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.__main__ import main
from healthd.api.client import ask
from healthd.api.listener import Listener
from healthd.api.wire import Request
from healthd.core.errors import NoDaemon, StartError
from healthd.core.reach import OPERATORS, connected
from healthd.core.unseen import Unseen
from tests.support.limits import limit_s


@contextlib.contextmanager
def listening(path: str, queue: int = 8) -> Iterator[socket.socket]:
    """Somebody listens there, and takes nobody."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
        made.listen(queue)
        yield made


@contextlib.contextmanager
def full(path: str) -> Iterator[socket.socket]:
    """Somebody listens there, and the queue has no more room."""
    with listening(path, 0) as listener, socket.socket(socket.AF_UNIX) as first:
        first.connect(path)
        yield listener


def let_one_in(listener: socket.socket) -> None:
    """A little later, and hang up."""

    def hang_up() -> None:
        client, _ = listener.accept()
        client.close()

    threading.Timer(0.2, hang_up).start()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def test_no_socket_and_a_dead_one_are_no_daemon(path: str) -> None:
    """Nothing else is: these two are what the kernel says where nobody listens."""
    assert connected(path, 1.0) is None
    with listening(path), listening(path + OPERATORS):
        pass
    assert os.path.exists(path)
    assert connected(path, 1.0) is None
    assert connected("/tmp/" + "s" * 200, 1.0) is None


def test_a_full_queue_is_waited_for(path: str) -> None:
    """Python's own time-out gives up at once; a daemon that lets others in first is there all the same."""
    with full(path) as listener:
        with socket.socket(socket.AF_UNIX) as hasty:
            hasty.settimeout(8.0)
            assert hasty.connect_ex(path) == errno.EAGAIN
        let_one_in(listener)
        reached = connected(path, 30.0)
        assert reached is not None
        reached.close()


def test_a_queue_that_stays_full_is_a_daemon_that_does_not_answer(path: str) -> None:
    """After the time that it was given, and never before; a second daemon is not started in its place."""
    with full(path):
        began = time.monotonic()
        with pytest.raises(BlockingIOError) as told:
            connected(path, 0.5)
        assert (told.value.errno, time.monotonic() - began >= 0.5) == (errno.EAGAIN, True)
        with pytest.raises(StartError, match="another daemon answers there"):
            Listener(path)


@pytest.mark.parametrize("suffix", ["", OPERATORS])
def test_a_file_at_the_path_of_a_socket_is_kept(path: str, suffix: str) -> None:
    """A path that is mistaken costs no file: the start is refused, and names what stands there."""
    file = Path(path + suffix)
    file.write_text("kept")
    with pytest.raises(StartError, match=f"{file} is no socket"):
        Listener(path)
    assert file.read_text() == "kept"


def test_operators_have_a_queue_of_their_own(path: str) -> None:
    """The other one is full: nobody waits."""
    with full(path), listening(path + OPERATORS):
        reached = connected(path, 0.5)
        assert reached is not None
        reached.close()


def test_the_operators_socket_is_not_for_everybody(path: str) -> None:
    """Root alone, then the group too; both go at the end."""
    listener = Listener(path)
    try:
        assert [os.stat(each).st_mode & 0o777 for each in (path, path + OPERATORS)] == [0o666, 0o600]
        assert listener.is_due(os.getegid(), None)
        listener.give_to(os.getegid(), None)
        assert not listener.is_due(os.getegid(), None)
        made = os.stat(path + OPERATORS)
        assert (made.st_mode & 0o777, made.st_gid) == (0o660, os.getegid())
        assert os.stat(path).st_mode & 0o777 == 0o666
    finally:
        listener.shut()
        listener.close()
    assert [os.path.exists(each) for each in (path, path + OPERATORS)] == [False, False]


def test_readers_can_be_a_group(path: str) -> None:
    """Nobody but root until it is known, and then the group: the kernel lets no other user open the socket."""
    listener = Listener(path, everybody=False)
    try:
        assert os.stat(path).st_mode & 0o777 == 0o600
        listener.give_to(None, os.getegid())
        assert (os.stat(path).st_mode & 0o777, os.stat(path).st_gid) == (0o660, os.getegid())
    finally:
        listener.shut()
        listener.close()


def test_whoever_waits_for_clients_is_woken_by_the_end(path: str) -> None:
    """Also one that begins to wait only then, while others take descriptors: no number of ours is anybody else's."""
    listener = Listener(path)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        listener.shut()
        for each in (path + "2", path + "3"):
            stack.enter_context(listening(each))
        began = time.monotonic()
        with pytest.raises(OSError, match="Invalid argument"):
            listener.accept()
        assert time.monotonic() - began < limit_s(5.0)


def test_operators_are_let_in_first(path: str) -> None:
    """However many others wait: the next that is let in is the operator."""
    listener = Listener(path)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        for _ in range(20):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        operator = stack.enter_context(socket.socket(socket.AF_UNIX))
        operator.connect(path + OPERATORS)
        first = listener.accept()
        assert first is not None
        with first:
            first.sendall(b"you")
        operator.settimeout(limit_s(10))
        assert operator.recv(3) == b"you"


@pytest.mark.parametrize(("verb", "code"), [(("hook", "prolog"), 0), (("hook", "epilog"), 0), (("check",), 2)])
def test_a_daemon_that_does_not_answer_is_no_healthy_node(
    path: str, verb: tuple[str, ...], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """A check is unknown. A hook lets its job pass, and writes down that it did: who counts it is told."""
    with listening(path) as listener:
        let_one_in(listener)
        assert main([*verb, "--socket", path]) == code
    assert "the daemon did not answer" in capfd.readouterr().err
    unseen = Unseen(path)
    kinds = {kind: count for kind, count in unseen.counted().items() if count}
    assert kinds == ({verb[1]: 1} if verb[0] == "hook" else {})
    assert bool(unseen.news()) == (verb[0] == "hook")
    assert unseen.news() == ""


def test_a_hook_whose_daemon_dies_runs_the_checks_itself(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    """As without a daemon: a kill -9 in the middle of an answer takes no verdict with it. Its configuration is missing
    here, which it would not have read otherwise."""
    missing = f"{path}.toml"
    with listening(path) as listener:

        def die() -> None:
            client, _ = listener.accept()
            client.close()
            time.sleep(0.1)  # a process that ends closes its sockets one after the other
            listener.close()

        threading.Timer(0.2, die).start()
        assert main(["hook", "epilog", "--socket", path, "--config", missing]) == 0
    told = capfd.readouterr().err
    assert "hook epilog could not run its checks; the job passes" in told
    assert missing in told


def test_hooks_that_passed_unseen_are_added_up(path: str) -> None:
    """Each kind by itself, and a link in the way is not followed."""
    unseen = Unseen(path)
    for kind in ("prolog", "prolog", "health-check-program"):
        with listening(path) as listener:
            let_one_in(listener)
            assert main(["hook", "--socket", path, kind]) == 0
        os.unlink(path)
    assert unseen.counted() == {"prolog": 2, "epilog": 0, "health-check-program": 1}
    assert unseen.news().endswith(": 2 prolog, 1 health-check-program; their jobs passed")
    other = path + "2"
    os.symlink("/dev/null", other + ".unseen")
    with listening(other) as listener:
        let_one_in(listener)
        assert main(["hook", "prolog", "--socket", other]) == 0
    assert os.path.islink(other + ".unseen")
    assert Unseen(other).counted().total() == 0


def test_a_client_is_told_that_the_daemon_does_not_answer(path: str) -> None:
    """An order must not be taken for one that no daemon was there to take."""
    assert ask(path, Request(arguments=("status",)), print) is None
    with listening(path) as listener:
        let_one_in(listener)
        with pytest.raises(NoDaemon, match="does not answer|torn"):
            ask(path, Request(arguments=("status",)), print)
