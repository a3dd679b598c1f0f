"""The reply to a command line, and the bytes that carry both across the unix socket. Pure.

Request, ended by the client's shutdown of its side: ``healthd/1 NUL count NUL argument… NUL NAME=value…``.
Answer: ``healthd/1 CODE OUT_BYTES ERR_BYTES\\n`` and then exactly so many bytes for standard output and standard error.
Before the answer to ``check --active`` come lines ``healthd/1 progress TEXT\\n``, while the tests run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import BinaryIO

from msgspec import Struct, field

from healthd.api.exit_codes import exit_code_of
from healthd.core.errors import ConfigError, HealthdError, NoDaemon, NotPermitted, UsageError

VERSION = "healthd/1"
MAX_REQUEST_BYTES = 1 << 18
"""A hook sends the node list of its job: Linux gives a variable 131,072 bytes (MAX_ARG_STRLEN, execve(2))."""

_HEAD = rb"healthd/1 ([0-9]{1,3}) ([0-9]{1,9}) ([0-9]{1,9})\n"
_COLOUR = "HEALTHD_COLOUR"
"""In a request: standard output is a terminal that shows colours. ``healthd.__main__`` sends it by itself too."""
_COUNT = r"[0-9]{1,5}"


class Request(Struct, frozen=True, kw_only=True):
    """A command line, and the few variables of its environment that a hook needs. ``colour``: a text is wanted in
    colours."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    colour: bool = False


class Reply(Struct, frozen=True, kw_only=True):
    """The output of a command, and its exit code."""

    code: int
    out: str = ""
    err: str = ""


class Receipt(Enum):
    """Whether the client read an answer. UNKNOWN: the client may still read it."""

    TAKEN = "taken"
    GONE = "gone"
    UNKNOWN = "unknown"


def read_request(raw: bytes) -> Request:
    """Parse a request. Raises UsageError for anything else."""
    if len(raw) > MAX_REQUEST_BYTES:
        raise UsageError(f"a request of {len(raw)} bytes or more; expected {MAX_REQUEST_BYTES} at most")
    version, *rest = os.fsdecode(raw).split("\0")
    if version != VERSION or not rest or not re.fullmatch(_COUNT, rest[0]):
        raise UsageError(f"not a request: {raw[:40]!r}; expected one that begins with {VERSION}")
    count = int(rest[0])
    arguments, environ = rest[1 : count + 1], rest[count + 1 :]
    if len(arguments) != count:
        raise UsageError(f"incomplete request: {count} arguments announced, {len(arguments)} received")
    named = dict(item.partition("=")[::2] for item in environ)
    return Request(arguments=tuple(arguments), colour=named.pop(_COLOUR, "") == "1", environ=named)


def write_answer(answer: Reply) -> bytes:
    """The bytes of an answer."""
    out, err = (text.encode("utf-8", "surrogateescape") for text in (answer.out, answer.err))
    return f"{VERSION} {int(answer.code)} {len(out)} {len(err)}\n".encode() + out + err


def write_request(request: Request) -> bytes:
    """The bytes of a request; the client ends it by shutting down its side."""
    environ = [f"{name}={value}" for name, value in request.environ.items()]
    environ += [f"{_COLOUR}=1"] if request.colour else []
    return os.fsencode("\0".join([VERSION, str(len(request.arguments)), *request.arguments, *environ]))


def write_progress(text: str) -> bytes:
    """The bytes of one line of progress."""
    return f"{VERSION} progress {' '.join(text.split())}\n".encode("utf-8", "surrogateescape")


def read_answer(stream: BinaryIO, progress: Callable[[str], None]) -> Reply:
    """The answer; ``progress`` gets each line of progress as it comes. Raises NoDaemon for an incomplete or malformed
    one."""
    while line := stream.readline(MAX_REQUEST_BYTES):
        words = line.decode("utf-8", "surrogateescape").split(None, 2)
        if words[:2] == [VERSION, "progress"] and line.endswith(b"\n"):
            progress(words[2].rstrip("\n") if len(words) > 2 else "")
            continue
        head = re.fullmatch(_HEAD, line)
        if head is None:
            break
        code, out_bytes, err_bytes = (int(group) for group in head.groups())
        body = stream.read(out_bytes + err_bytes)
        if len(body) < out_bytes + err_bytes:
            break
        out, err = (part.decode("utf-8", "surrogateescape") for part in (body[:out_bytes], body[out_bytes:]))
        return Reply(code=code, out=out, err=err)
    raise NoDaemon(
        "the daemon's answer is incomplete: it may have stopped meanwhile, and have done what was asked; see its log"
    )


def failure(error: HealthdError) -> Reply:
    """The message and the exit code of an error."""
    match error:
        case UsageError() | NotPermitted():  # these begin with the command
            message = f"{error}\n"
        case ConfigError():
            message = "".join(f"healthd: {problem}\n" for problem in error.problems)
        case _:
            message = f"healthd: {error}\n"
    return Reply(code=exit_code_of(error), err=message)
