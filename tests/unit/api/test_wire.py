"""The bytes on the socket: taken apart and put together."""

from __future__ import annotations

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.__main__ import _request
from healthd.api.wire import (
    MAX_REQUEST_BYTES,
    Reply,
    Request,
    failure,
    read_answer,
    read_request,
    write_answer,
    write_progress,
    write_request,
)
from healthd.core.errors import BackendUnknown, ConfigError, HealthdError, NoDaemon, StoreError, UsageError

# What an argument can be: anything but NUL, undecodable bytes as the file system encoding escapes them.
words = st.binary(max_size=12).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))
names = st.sampled_from(["SLURM_JOB_ID", "SLURM_JOB_USER", "SLURMD_NODENAME"])


def request_bytes(request: Request) -> bytes:
    """As the client builds it: see the module's docstring."""
    environ = [f"{name}={value}" for name, value in request.environ.items()]
    return os.fsencode("\0".join(["healthd/1", str(len(request.arguments)), *request.arguments, *environ]))


@given(st.lists(words, max_size=4).map(tuple), st.dictionaries(names, words, max_size=3))
def test_what_was_sent_is_what_arrives(arguments: tuple[str, ...], environ: dict[str, str]) -> None:
    """Any arguments and values, empty and undecodable ones too, with any ``=`` in them, come out as they went in."""
    request = Request(arguments=arguments, environ=environ)
    assert read_request(request_bytes(request)) == request


def test_a_hook_of_the_largest_job_is_no_wrong_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code would drain each node of the job, by "Prolog error": a variable has 128 KiB at most."""
    nodes = "n" * ((1 << 17) - len("SLURM_JOB_NODELIST=") - 1)
    monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
    monkeypatch.setenv("SLURM_NODELIST", nodes)
    assert read_request(_request(["hook", "prolog"])).environ["SLURM_JOB_NODELIST"] == nodes


def test_the_client_writes_what_the_daemon_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot path builds its request by hand; it sends a hook's variables and no others."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_JOB_USER", "o=x")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    sent = _request(["hook", "prolog", ""])
    assert read_request(sent) == Request(
        arguments=("hook", "prolog", ""), environ={"SLURM_JOB_ID": "4711", "SLURM_JOB_USER": "o=x"}
    )


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not a request"),
        (b"healthd/1", "not a request"),
        (b"GET / HTTP/1.1\r\n\r\n", "not a request"),
        (b"healthd/2\x000", "expected one that begins with healthd/1"),
        (b"healthd/1\x00\x00check", "not a request"),
        (b"healthd/1\x00-1\x00check", "not a request"),
        ("healthd/1\0²\0a\0b".encode(), "not a request"),
        ("healthd/1\0٣\0a\0b\0c".encode(), "not a request"),
        (b"healthd/1\x00" + b"9" * 5000, "not a request"),
        (b"healthd/1\x003\x00check\x00gpu.ecc", "incomplete request: 3 arguments announced, 2 received"),
        (b"\xff\xfe\x00", "not a request"),
        (b"healthd/1\x001\x00" + b"x" * MAX_REQUEST_BYTES, "expected 262144 at most"),
    ],
)
def test_what_is_no_request_is_a_usage_error(raw: bytes, words: str) -> None:
    """Torn, foreign, oversized: each is refused with what was expected, and never anything but a UsageError."""
    with pytest.raises(UsageError, match=words):
        read_request(raw)


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b"healthd/1\0" + tail))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    """Whatever arrives is a request or a usage error."""
    try:
        request = read_request(raw)
    except UsageError:
        return
    assert all("\0" not in argument for argument in request.arguments)


@given(st.integers(0, 255), words, words)
def test_an_answer_says_how_long_it_is(code: int, out: str, err: str) -> None:
    """The head carries the exit code and the exact number of bytes, in bytes and not in characters, of both streams."""
    head, _, body = write_answer(Reply(code=code, out=out, err=err)).partition(b"\n")
    version, *numbers = head.split(b" ")
    assert version == b"healthd/1"
    assert [int(number) for number in numbers] == [code, len(os.fsencode(out)), len(os.fsencode(err))]
    assert body == os.fsencode(out) + os.fsencode(err)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UsageError("healthd: no such verb"), 64, "healthd: no such verb\n"),
        (ConfigError(("a.toml:1: wrong", "a.toml:2: too")), 78, "healthd: a.toml:1: wrong\nhealthd: a.toml:2: too\n"),
        (StoreError("the disk is full"), 70, "healthd: the disk is full\n"),
        (BackendUnknown("sinfo: no answer"), 75, "healthd: sinfo: no answer\n"),
    ],
)
def test_an_error_has_its_exit_code_and_all_its_words(error: HealthdError, code: int, words: str) -> None:
    """Every problem of a configuration is on its own line; the result stays empty."""
    assert failure(error) == Reply(code=code, err=words)


@given(st.integers(0, 255), st.text(), st.text(), st.lists(st.text(max_size=20), max_size=5))
def test_an_answer_arrives_after_its_progress(code: int, out: str, err: str, message: list[str]) -> None:
    """Each line of progress is handed on, folded into one line; then the answer comes out as it went in."""
    sent = b"".join(map(write_progress, message)) + write_answer(Reply(code=code, out=out, err=err))
    heard: list[str] = []
    assert read_answer(io.BytesIO(sent), heard.append) == Reply(code=code, out=out, err=err)
    assert heard == [" ".join(text.split()) for text in message]


@given(st.data())
def test_an_answer_cut_anywhere_is_not_an_answer(data: st.DataObject) -> None:
    """Whatever part of it came before the daemon ended, a torn answer is an error, never a verdict."""
    sent = write_progress("nccl.nvlink: 5 s") + write_answer(Reply(code=0, out="OK\n", err="x"))
    with pytest.raises(NoDaemon, match="incomplete"):
        read_answer(io.BytesIO(sent[: data.draw(st.integers(0, len(sent) - 1))]), lambda text: None)


@given(st.lists(words, max_size=4).map(tuple), st.dictionaries(names, words, max_size=3))
def test_a_request_is_written_as_the_hot_path_writes_it(arguments: tuple[str, ...], environ: dict[str, str]) -> None:
    """There are two writers, one that imports nothing: they agree byte for byte."""
    assert write_request(Request(arguments=arguments, environ=environ)) == request_bytes(
        Request(arguments=arguments, environ=environ)
    )
