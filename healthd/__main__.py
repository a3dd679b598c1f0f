"""The way in, and the hot path: ``healthd check`` and the Slurm hooks, answered by the daemon.

This file passes bytes and imports next to nothing: the arguments go to the daemon's socket as they are, and the daemon
renders text and exit code. Without a daemon, and for every other verb, the full command line takes over.
``healthd.api.wire`` describes request and answer.
"""

import os
import sys
from time import monotonic

from healthd.core.streams import open_streams, print_answer

TYPE_CHECKING = False  # the name that type checkers know; the module typing is too dear for the hot path
if TYPE_CHECKING:
    from _socket import socket

DEFAULT_SOCKET = "/run/healthd/healthd.sock"
_DEADLINE_S = {"check": 30.0, "status": 10.0, "hook": 8.0}  # a hook's own limit is 10 s, Python's start included
_STREAMED = ("--active", "boot", "--context=boot")  # minutes of work, with progress: for the full command line
_REPEATED = ("--watch",)  # repeated requests: for the full command line
_LOCAL_ONLY = ("--no-daemon", "--config", "--help", "-h", "--version")
_HOOK_LOCAL_ONLY = ("--help", "-h")  # a hook's --config is for check runs without a daemon; a daemon comes first
_DIED_WITHIN_S = 2.0  # of a hook: later there is no time left for check runs of its own
_DYING_S = 0.3  # a process that dies may close the socket that it listens on after the one of its client
_NOT_PERMITTED = 77  # EX_NOPERM, as `healthd.api.exit_codes`
_INTERRUPTED = 130  # by Ctrl-C: 128 and the number of the signal, as shells count
_HOOK_CODES = (0, 1, 64)  # any other drains the node with "Prolog error": an error of healthd never refuses a job
_HOOK_ENVIRON = (  # what healthd.job.job reads of a hook's job
    "SLURMD_NODENAME",
    "SLURM_JOB_DERIVED_EC",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_EXIT_CODE2",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_RESTART_COUNT",
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_USER",
    "SLURM_NODELIST",
)


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    open_streams()
    try:
        code = _ask_daemon(arguments)
        if code is None:
            import gc

            gc.disable()  # modules are no garbage; the command line enables it when it has loaded them
            from healthd.cli.main import run

            code = run(arguments, colour=_wants_colour())
    except KeyboardInterrupt:
        code = print_answer(_INTERRUPTED, "", "healthd: interrupted\n")
    return code if arguments[:1] != ["hook"] or code in _HOOK_CODES else 0


def _wants_colour() -> bool:
    """Whether standard output shows colours: a terminal, unless NO_COLOR says no or FORCE_COLOR says yes. As in
    CPython 3.13, NO_COLOR counts first, and neither counts where it is empty."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (os.environ.get("TERM") != "dumb" and os.isatty(1))


def _ask_daemon(arguments: list[str]) -> int | None:
    """Print the daemon's answer and return its exit code; None without a daemon, or for another verb."""
    verb = arguments[0] if arguments else ""
    local_only = _HOOK_LOCAL_ONLY if verb == "hook" else _LOCAL_ONLY
    if verb not in _DEADLINE_S or any(a.partition("=")[0] in local_only for a in arguments):
        return None
    if verb == "check" and any(a in _STREAMED for a in arguments):
        return None
    if verb == "status" and any(a in _REPEATED for a in arguments):
        return None
    from healthd.core.reach import connected

    until_s, path, connection = monotonic() + _DEADLINE_S[verb], _socket_path(arguments), None
    try:
        connection = connected(path, _DEADLINE_S[verb])
        if connection is None:
            return None  # no daemon listens there: the command line runs the checks itself, and says so
        _send(connection, _request(arguments), until_s)
        code, out, err = _answer(connection, until_s)
    except (OSError, ValueError) as error:
        if verb == "hook" and _has_died(path, until_s):
            return None  # as without a daemon; one that was killed in the middle has taken no verdict with it
        return _unanswered(verb, path, arguments, error)
    finally:
        if connection is not None:
            connection.close()
    return print_answer(code, out, err)


def _has_died(path: str, until_s: float) -> bool:
    """Whether a hook's daemon has ended without an answer, and there is time to run the checks instead."""
    if until_s - monotonic() < _DEADLINE_S["hook"] - _DIED_WITHIN_S:
        return False
    try:
        return _is_refused(path) or _is_refused(path)
    except OSError:
        return False


def _is_refused(path: str) -> bool:
    """Whether no daemon listens. Returns False once one that did has hung up; raises OSError for one that waits for a
    request."""
    from healthd.core.reach import connected

    connection = connected(path, _DYING_S)
    if connection is None:
        return True
    try:
        connection.settimeout(_DYING_S)
        connection.recv(1)
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    return False


def _unanswered(verb: str, path: str, arguments: list[str], error: Exception) -> int:
    """A daemon listens but does not answer, or not this user: the node is unknown, and the hook lets the job pass."""
    if verb == "hook":
        from healthd.core.unseen import note

        note(path, arguments)
    elif isinstance(error, PermissionError):
        may_not = f"uid {os.geteuid()} may not ask the daemon at {path}; be root, or in [daemon] readers or group"
        return print_answer(_NOT_PERMITTED, "", f"healthd: {may_not}\n")
    passes = "; the job passes" if verb == "hook" else ""
    words = f"healthd: the daemon did not answer: {error}{passes}; see `journalctl -u healthd`\n"
    return print_answer(0 if verb == "hook" else 2, "", words)


def _socket_path(arguments: list[str]) -> str:
    for index, argument in enumerate(arguments):
        if argument.startswith("--socket="):
            return argument[9:]
        if argument == "--socket" and index + 1 < len(arguments):
            return arguments[index + 1]
    return os.environ.get("HEALTHD_SOCKET") or DEFAULT_SOCKET


def _request(arguments: list[str]) -> bytes:
    there = {name: os.environ[name] for name in _HOOK_ENVIRON if name in os.environ}
    if "SLURM_JOB_NODELIST" in there:
        there.pop("SLURM_NODELIST", None)  # the same list, which may fill half of a request
    environ = [f"{name}={value}" for name, value in there.items()]
    if _wants_colour():
        environ.append("HEALTHD_COLOUR=1")
    return os.fsencode("\0".join(["healthd/1", str(len(arguments)), *arguments, *environ]))


def _send(connection: "socket", request: bytes, until_s: float) -> None:
    import _socket

    connection.settimeout(_left_s(until_s))
    connection.sendall(request)
    connection.shutdown(_socket.SHUT_WR)


def _left_s(until_s: float) -> float:
    """The seconds left of a deadline (monotonic). Never zero, which would be no time-out."""
    return max(0.001, until_s - monotonic())


def _answer(connection: "socket", until_s: float) -> tuple[int, str, str]:
    """Exit code and texts of ``healthd/1 CODE OUT_BYTES ERR_BYTES\\n<out><err>``. Raises ValueError if incomplete."""
    answer = bytearray()
    while chunk := connection.recv(65536):
        answer += chunk
        connection.settimeout(_left_s(until_s))
    head, _, body = bytes(answer).partition(b"\n")
    _, code, out_bytes, err_bytes = head.split(b" ")
    cut = int(out_bytes)
    if len(body) != cut + int(err_bytes):
        raise ValueError("the answer is incomplete")
    out, err = (part.decode("utf-8", "surrogateescape") for part in (body[:cut], body[cut:]))
    return int(code), out, err


if __name__ == "__main__":
    sys.exit(main())
