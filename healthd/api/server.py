"""The unix socket: answers command lines. Everybody may read; acts need root, or the configured group.

Who asks is what the kernel says (SO_PEERCRED), never what the request says.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
import threading
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from healthd.agent import Agent
from healthd.api.answers import Tick, check_answer, history_answer, hook_answer, is_active, status_answer
from healthd.api.board import Board
from healthd.api.drill import drill_answer
from healthd.api.grammar import Shown, parse
from healthd.api.group import ActingGroup
from healthd.api.orders import ack_answer, order_answer, relearn_answer
from healthd.api.plan import plan_answer
from healthd.api.wire import (
    MAX_REQUEST_BYTES,
    Answer,
    Request,
    failure,
    read_request,
    write_answer,
    write_progress,
)
from healthd.errors import HealthdError, StartError, UsageError
from healthd.model import Event, Refusal

_CLIENTS = 32
_CLIENT_S = 5.0
_NOTED = 256
_PEER = struct.Struct("3i")


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """The process at the other end, as the kernel names it."""

    pid: int
    uid: int
    gid: int


class _ClientGone(OSError):
    """Nobody waits for the answer any more."""


class Server:
    """Listens on a socket path until closed. At most 32 clients are answered at once; more wait in the backlog.

    Raises StartError where it cannot listen there.
    """

    def __init__(self, path: str, agent: Agent, *, group: str, say: Callable[..., None]) -> None:
        self._agent, self._board, self._say = agent, Board.of(agent), say
        self._group = ActingGroup(group, say)
        agent.troubles.append(self._group.problem)
        self._slots = threading.BoundedSemaphore(_CLIENTS)
        self._path = path
        self._noted: set[tuple[str, int]] = set()
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._accept, name="api", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket. Answers under way are finished by their threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _accept(self) -> None:
        while True:
            self._slots.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(client,), name="client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(_CLIENT_S)
                answer = self._answer(_received(client), _peer(client), _teller(client))
                client.sendall(write_answer(answer))
        except OSError as error:
            self._say("a client went away", error=str(error))
        finally:
            self._slots.release()

    def _answer(self, raw: bytes, peer: Peer, tick: Tick) -> Answer:
        try:
            request = read_request(raw)
            return self._dispatch(request, peer, tick)
        except Shown as shown:
            return Answer(code=0, out=str(shown))
        except HealthdError as error:
            return failure(error)
        except _ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - a defect in one answer must not end the daemon; it is said loudly
            self._say("an answer failed", error=f"{type(error).__name__}: {error}")
            return Answer(code=2, err=f"healthd: the daemon failed to answer: {error}; see its log\n")

    def _dispatch(self, request: Request, peer: Peer, tick: Tick) -> Answer:
        options = parse(request.arguments)
        match options.verb:
            case "check":
                if is_active(options) and not self._may_act(peer):
                    words = f"uid {peer.uid} may not run active tests through the daemon"
                    self._denied("check", peer)
                    raise UsageError(f"healthd check: {words}; be root or in [daemon] group, or add --no-daemon")
                return check_answer(self._agent, options, request.environ, tick)
            case "status":
                return status_answer(self._agent, self._board, options)
            case "history":
                return history_answer(self._agent, options)
            case "plan":
                return plan_answer(self._agent, options)
            case "drill":
                self._only_who_may_act("drill", peer)
                return drill_answer(self._agent, options, tick, who=f"uid {peer.uid}")
            case "relearn":
                if options.yes:
                    self._only_who_may_act("relearn", peer)
                return relearn_answer(self._agent, options, who=f"uid {peer.uid}")
            case "ack":
                if not options.dry_run:
                    self._only_who_may_act("ack", peer)
                return ack_answer(self._agent, options, who=f"uid {peer.uid}")
            case "quarantine" | "release" | "repair":
                if options.verb == "repair" or not options.dry_run:  # a rehearsed repair asks the cloud
                    self._only_who_may_act(options.verb, peer)
                answer = order_answer(self._agent, options, who=f"uid {peer.uid}")
                words = (answer.err or answer.out).strip()
                self._say("order", verb=options.verb, uid=peer.uid, code=answer.code, said=words)
                return answer
            case "hook":
                answer = self._hook(options, request, peer)
                if answer.err:
                    self._say("hook", kind=options.kind, code=answer.code, said=answer.err.strip())
                return answer
            case verb:
                raise UsageError(f"healthd: the daemon does not answer {verb!r}; run it without the socket")

    def _hook(self, options: Namespace, request: Request, peer: Peer) -> Answer:
        """A caller without the right gets a word and exit 0: another exit code would drain the node, "Prolog error"."""
        if self._may_act(peer):
            return hook_answer(self._agent, options, request.environ)
        words = f"uid {peer.uid} may not act here, nothing was done; be root or in [daemon] group"
        return Answer(code=0, err=f"healthd: hook {options.kind}: {words}\n")

    def _only_who_may_act(self, verb: str, peer: Peer) -> None:
        """Raises UsageError for anybody else."""
        if not self._may_act(peer):
            self._denied(verb, peer)
            why = self._group.problem() or "be root or in [daemon] group"
            raise UsageError(f"healthd {verb}: uid {peer.uid} may not act here; {why}")

    def _denied(self, verb: str, peer: Peer) -> None:
        """Say who asked for what they may not. The trail has each once: whoever may not act must not fill a disk."""
        words = f"refused: {verb} by uid {peer.uid}, who may not act here"
        self._say(words)
        if self._agent.engine is not None:
            self._agent.engine.tally.refuse(Refusal.NOT_PERMITTED)
        if (verb, peer.uid) not in self._noted and len(self._noted) < _NOTED:
            self._noted.add((verb, peer.uid))
            self._agent.monitor.record(Event(at=datetime.now(UTC), kind="order", text=words))

    def _may_act(self, peer: Peer) -> bool:
        if peer.uid == 0:
            return True
        group = self._group.number()
        return group is not None and group in _groups_of(peer)


def _teller(client: socket.socket) -> Tick:
    """Sends lines of progress; raises _ClientGone when nobody takes them."""

    def tell(text: str) -> None:
        try:
            client.sendall(write_progress(text))
        except OSError as error:
            raise _ClientGone(f"while its tests ran: {error}") from error

    return tell


def _listen(path: str) -> socket.socket:
    """A listening socket at ``path``, replacing a dead one. Raises StartError if it is alive or cannot be made."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if _is_alive(path):
            raise StartError(f"daemon.socket = {path}: another daemon answers there; stop it or choose another path")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        os.chmod(path, 0o666)  # noqa: S103 - everybody may ask; who may act is decided by SO_PEERCRED
        listener.listen(128)
    except OSError as error:
        wrong = f"daemon.socket = {path}: {error}; expected a path that can be made (107 bytes at most)"
        raise StartError(wrong) from error
    return listener


def _is_alive(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _received(client: socket.socket) -> bytes:
    received = bytearray()
    while len(received) <= MAX_REQUEST_BYTES and (chunk := client.recv(65536)):
        received += chunk
    return bytes(received)


def _peer(client: socket.socket) -> Peer:
    pid, uid, gid = _PEER.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return Peer(pid=pid, uid=uid, gid=gid)


def _groups_of(peer: Peer) -> frozenset[int]:
    try:
        user = pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        return frozenset({peer.gid})
    return frozenset(os.getgrouplist(user, peer.gid))
