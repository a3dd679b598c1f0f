"""The unix sockets: answer command lines. Every user may read; acts need root, or the configured group.

The kernel names the user who asks (SO_PEERCRED); the request's own claim does not count.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from healthd.agent.agent import Agent
from healthd.api.answers import (
    HookReply,
    Tick,
    check_answer,
    history_answer,
    hook_answer,
    hook_ended,
    is_active,
    job_answer,
    status_answer,
)
from healthd.api.client_queue import ClientLane, ClientQueue, ClientUser
from healthd.api.commands import ack_answer, command_answer, relearn_answer
from healthd.api.drill import drill_answer
from healthd.api.grammar import TextRequested, parse
from healthd.api.group import SocketGroup
from healthd.api.listener import Listener
from healthd.api.peer import Peer, peer_of, sent
from healthd.api.plan import plan_answer
from healthd.api.plan_cache import PlanCache
from healthd.api.rate_limit import RateLimit
from healthd.api.wire import MAX_REQUEST_BYTES, Reply, Request, failure, read_request, write_answer, write_progress
from healthd.core.capabilities import drop_capabilities
from healthd.core.encodable import encodable
from healthd.core.errors import HealthdError, NotPermitted, UsageError
from healthd.core.model import Event, Refusal

_REQUEST_S = 5.0
"""The deadline for a whole request, in seconds, however its bytes come; and another for the answer to be read."""
_TAKEN_S = 10.0
"""How long a refusal may lie unread, in seconds, until its receipt counts as unknown: a hook waits for 8 s at most."""
_AGAIN_S = 0.2
_STUCK_AFTER_S = 60.0
_LOG_EVERY_S = 60.0
_NOTED = 256
_LAST_FOR_ALL = 1000
"""The most lines of the audit trail for a user who may not act: more would slow the disk for those who may."""


class _Guest(Struct, frozen=True, kw_only=True):
    """A connection, and the user at its other end."""

    client: socket.socket
    peer: Peer
    who: ClientUser


class _Reply(Struct, frozen=True, kw_only=True):
    """The bytes of an answer. ``hook``: the hook's reply, to be recorded once its receipt is known."""

    raw: bytes
    hook: HookReply | None = None


class _ClientGone(OSError):
    """The client no longer waits for the answer."""


class Server:
    """Listens on a socket path until closed; ``serve`` accepts clients. ``seats`` bounds how many are answered at once.

    ``group``: the group that may act, beside root; "" for none. ``readers``: the group that may ask, beside these; ""
    for every user. Raises StartError where it cannot listen.
    """

    def __init__(
        self,
        path: str,
        agent: Agent,
        *,
        group: str,
        readers: str = "",
        log: Any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._agent, self._board, self._log = agent, PlanCache.of(agent), log
        self._do = agent.checkup.do
        self._has_groups = bool(group or readers)
        self._group = SocketGroup("group", group, log.info)
        self._readers = SocketGroup("readers", readers, log.info)
        agent.troubles.extend((self._group.problem, self._readers.problem))
        self._seats: ClientQueue[_Guest] = ClientQueue()
        self._rate_limit, self._troubles = RateLimit(_LOG_EVERY_S), RateLimit(_LOG_EVERY_S)
        self._noted: set[tuple[str, int]] = set()
        self._reads_trail = threading.Lock()
        self._closed, self._served, self._ended = threading.Event(), False, False
        self._failed_s, self._failing_since_s = -math.inf, math.inf
        self._listener = Listener(path, everybody=not readers)

    def serve(self) -> None:
        """Accept clients until closed: the work of one thread, without which no client gets an answer.

        This thread, and each that answers a client, has no capability. The agent's privileged threads execute commands
        and ask the cluster.
        """
        self._served = True
        self._drop_capabilities()
        try:
            while not self._closed.is_set():
                if not self._let_in():
                    self._closed.wait(_AGAIN_S)
        finally:
            self._ended = True
            self._listener.close()

    def _drop_capabilities(self) -> None:
        try:
            drop_capabilities()
        except OSError as error:
            if self._troubles.due("capabilities") is not None:
                self._log.error("the socket is served with the daemon's capabilities", error=str(error))

    def problem(self) -> str:
        """Why no client is accepted, or "". Meanwhile a prolog waits in vain and lets its job pass."""
        if self._ended and not self._closed.is_set():
            return f"{self._listener.path} accepts no clients: its thread has ended"
        now_s = self._clock()
        lasts_s = now_s - self._failing_since_s
        if now_s - self._failed_s < 10 * _AGAIN_S and lasts_s > _STUCK_AFTER_S:
            return f"{self._listener.path} has accepted no client for {lasts_s:.0f} s: see the log"
        return ""

    def close(self) -> None:
        """Stop listening and remove the sockets. Answers under way are finished by their threads."""
        self._closed.set()
        self._listener.shut()
        if not self._served:
            self._listener.close()

    # -- accepting ----------------------------------------------------------------------------------------------------

    def _let_in(self) -> bool:
        """Wait for one client and have it answered. Whether that worked."""
        try:
            self._let_groups_in()
            client = self._listener.accept(awaits_group=self._has_groups)
        except (OSError, ValueError, HealthdError) as error:  # no descriptor or no memory is left; or it was closed
            return self._has_failed(f"cannot accept a client: {error}")
        if client is None:
            return True
        try:
            peer = peer_of(client)
        except OSError as error:
            client.close()
            return self._has_failed(f"the kernel does not name the user of a client: {error}")
        guest = _Guest(client=client, peer=peer, who=ClientUser(uid=peer.uid, may_act=self._surely_may_act(peer)))
        match self._seats.take(guest.who, guest):
            case ClientLane.SEAT:
                return self._begin(guest)
            case ClientLane.LINE:
                return True
            case ClientLane.NOWHERE:
                client.close()
                self._log_limited("too many clients wait: one was refused", peer)
                return True

    def _let_groups_in(self) -> None:
        """Give the sockets to their groups once these are known. Raises OSError."""
        operators, readers = self._group.known(), self._readers.known()
        if self._listener.is_due(operators, readers):
            self._do(lambda: self._listener.give_to(operators, readers))

    def _begin(self, guest: _Guest | None) -> bool:
        """Answer a client that has a seat, or the next one in line. Whether the first client got a thread."""
        first = guest
        while guest is not None and not self._has_thread(guest):
            guest = self._seats.leave(guest.who)
        return guest is first

    def _has_thread(self, guest: _Guest) -> bool:
        try:
            threading.Thread(target=self._serve, args=(guest,), name="client", daemon=True).start()
        except RuntimeError as error:  # no more threads of this process, of its cgroup, of the machine
            with guest.client:
                return self._has_failed(f"cannot start a thread for a client: {error}")
        self._failing_since_s = math.inf
        return True

    def _has_failed(self, message: str) -> bool:
        """Log a failure, at most once a minute, and return False: a moment later it may work again."""
        if not self._closed.is_set():
            self._failed_s = self._clock()
            self._failing_since_s = min(self._failing_since_s, self._failed_s)
            if (more := self._troubles.due(message)) is not None:
                self._log.error(message, socket=self._listener.path, suppressed=more)
        return False

    def _log_limited(self, message: str, peer: Peer, **more: object) -> None:
        """Log an event that any user can cause, once a minute for each user."""
        if (suppressed := self._rate_limit.due((message, peer.uid))) is not None:
            self._log.info(message, uid=peer.uid, suppressed=suppressed, **more)

    # -- answering ----------------------------------------------------------------------------------------------------

    def _serve(self, guest: _Guest) -> None:
        self._drop_capabilities()
        try:
            with guest.client as client:
                raw = _received(client, time.monotonic() + _REQUEST_S)
                client.settimeout(_REQUEST_S)
                reply = self._answer(raw, guest.peer, _teller(client))
                if reply.hook is None:
                    client.sendall(reply.raw)
                else:
                    self._answer_hook(client, reply.raw, reply.hook)
        except OSError as error:
            self._log_limited("a client closed its connection", guest.peer, error=str(error))
        finally:
            self._begin(self._seats.leave(guest.who))

    def _answer_hook(self, client: socket.socket, raw: bytes, hook: HookReply) -> None:
        """Send a hook's answer and record its receipt: a hook that has waited for too long lets its job pass."""
        receipt = sent(client, raw, wait_s=_TAKEN_S if hook.refuses else 0.0)
        message = self._do(lambda: hook_ended(self._agent, hook, receipt))
        if hook.answer.err:
            text = message or hook.answer.err.strip()
            self._log.info("hook", kind=hook.kind, code=hook.answer.code, receipt=receipt.value, message=text)

    def _answer(self, raw: bytes, peer: Peer, tick: Tick) -> _Reply:
        """The bytes of the answer, whatever happens. Raises _ClientGone."""
        try:
            answer = self._answered(raw, peer, tick)
            if isinstance(answer, HookReply):
                return _Reply(raw=write_answer(answer.answer), hook=answer)
            return _Reply(raw=write_answer(answer))
        except _ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - a defect in one answer must not end the daemon; the log has it
            if self._troubles.due(type(error).__name__) is not None:
                self._log.error("an answer failed; please report this defect of healthd", exc_info=True)
            message = encodable(f"healthd: the daemon failed to answer: {error}; see its log\n")
            return _Reply(raw=write_answer(Reply(code=2, err=message)))

    def _answered(self, raw: bytes, peer: Peer, tick: Tick) -> Reply | HookReply:
        try:
            return self._dispatch(read_request(raw), peer, tick)
        except TextRequested as shown:
            return Reply(code=0, out=str(shown))
        except HealthdError as error:
            return failure(error)

    def _dispatch(self, request: Request, peer: Peer, tick: Tick) -> Reply | HookReply:
        options = parse(request.arguments)
        options.colour = request.colour
        match options.verb:
            case "check":
                return self._check(options, request, peer, tick)
            case "status":
                return status_answer(self._agent, self._board, options)
            case "history":
                most = None if self._surely_may_act(peer) else _LAST_FOR_ALL
                with self._turn_of(peer):
                    return history_answer(self._agent, options, most=most)
            case "job":
                with self._turn_of(peer):
                    return job_answer(self._agent, options)
            case "plan":
                return self._do(lambda: plan_answer(self._agent, options))
            case "hook":
                return self._hook(options, request, peer)
            case "drill" | "relearn" | "ack" | "quarantine" | "release" | "repair" | "approve" | "undo":
                if _acts(options):
                    self._only_who_may_act(options.verb, peer)
                return self._do(lambda: self._act(options, tick, peer))
            case verb:
                raise UsageError(f"healthd: the daemon does not answer {verb!r}; run it without the socket")

    def _act(self, options: Namespace, tick: Tick, peer: Peer) -> Reply:
        who = f"uid {peer.uid}"
        match options.verb:
            case "drill":
                return drill_answer(self._agent, options, tick, who=who)
            case "relearn":
                return relearn_answer(self._agent, options, who=who)
            case "ack":
                return ack_answer(self._agent, options, who=who)
        answer = command_answer(self._agent, options, who=who)
        words = (answer.err or answer.out).strip()
        self._log.info("command", verb=options.verb, uid=peer.uid, code=answer.code, message=words)
        return answer

    def _check(self, options: Namespace, request: Request, peer: Peer, tick: Tick) -> Reply:
        def answer() -> Reply:
            note = partial(self._note, peer=peer)
            return check_answer(self._agent, options, request.environ, tick, note=note)

        if not is_active(options):
            return answer()
        if not self._may_act(peer):
            message = f"uid {peer.uid} may not run active tests through the daemon"
            self._denied("check", peer)
            raise NotPermitted(f"healthd check: {message}; be root or in [daemon] group, or add --no-daemon")
        return self._do(answer)

    def _hook(self, options: Namespace, request: Request, peer: Peer) -> Reply | HookReply:
        """Answer a hook. A user who may not act gets a message and exit 0: another code drains the node as "Prolog
        error"."""
        if not self._may_act(peer):
            message = f"healthd: hook {options.kind} did nothing: uid {peer.uid} may not act here"
            self._log_limited(message, peer)
            return Reply(code=0, err=f"{message}; be root or in [daemon] group\n")
        return self._do(lambda: hook_answer(self._agent, options, request.environ))

    def _note(self, event: Event, peer: Peer) -> None:
        """Record in the audit trail the verdict that a script got. A user who may not act is named, and the same text
        is recorded at most once a minute for all such users: in a user namespace one has thousands of uids."""
        if not self._surely_may_act(peer):
            suppressed = self._rate_limit.due(event.text)
            if suppressed is None:
                return
            more = f", and {suppressed} more times since the last such line" if suppressed else ""
            event = replace(event, text=f"{event.text} (uid {peer.uid}{more})")
        self._agent.monitor.record(event)

    def _only_who_may_act(self, verb: str, peer: Peer) -> None:
        """Raises NotPermitted for a user who may not act."""
        if not self._may_act(peer):
            self._denied(verb, peer)
            why = self._group.problem() or "be root or in [daemon] group"
            raise NotPermitted(f"healthd {verb}: uid {peer.uid} may not act here; {why}")

    def _denied(self, verb: str, peer: Peer) -> None:
        """Log a refused command. The audit trail has each once, so that a user who may not act cannot fill a disk."""
        message = f"refused {verb}: uid {peer.uid} may not act here"
        self._log_limited(message, peer)
        if self._agent.engine is not None:
            self._agent.engine.stats.refuse(Refusal.NOT_PERMITTED)
        if (verb, peer.uid) not in self._noted and len(self._noted) < _NOTED:
            self._noted.add((verb, peer.uid))
            self._agent.monitor.record(Event(at=datetime.now(UTC), kind="command", text=message))

    def _turn_of(self, peer: Peer) -> contextlib.AbstractContextManager[object]:
        """Users who may not act read the audit trail one at a time: of those who may, each waits for one at most."""
        return contextlib.nullcontext() if self._surely_may_act(peer) else self._reads_trail

    def _may_act(self, peer: Peer) -> bool:
        """Whether the user may act."""
        return peer.uid == 0 or peer.may_act(self._group.number())

    def _surely_may_act(self, peer: Peer) -> bool:
        """Whether the user may act, as far as that is known without asking a directory service."""
        return peer.surely_may_act(self._group.known())


def _acts(options: Namespace) -> bool:
    """Whether the command needs the right to act. A dry run does not; that of a repair does, as it asks the cloud."""
    match options.verb:
        case "drill" | "repair":
            return True
        case "relearn":
            return bool(options.yes)
        case _:
            return not options.dry_run


def _teller(client: socket.socket) -> Tick:
    """Sends lines of progress; raises _ClientGone when the client has closed its side."""

    def tell(text: str) -> None:
        try:
            client.sendall(write_progress(text))
        except OSError as error:
            raise _ClientGone(f"gone while its tests ran: {error}") from error

    return tell


def _received(client: socket.socket, until_s: float) -> bytes:
    """The bytes that the client sends until it closes its side. Raises TimeoutError at ``until_s``, monotonic, even if
    bytes still come."""
    received = bytearray()
    while len(received) <= MAX_REQUEST_BYTES:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"request not complete within {_REQUEST_S:g} s")
        client.settimeout(left_s)
        chunk = client.recv(65536)
        if not chunk:
            break
        received += chunk
    return bytes(received)
