"""A message leaves by HTTP or by a command, and counts as delivered only when the other side says so."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.notify.delivery import NotDeliveredError, RefusedError, to_command, to_webhook
from healthd.notify.slack import to_slack
from tests.support.limits import limit_s
from tests.support.notifications import a_message
from tests.support.receiver import Receiver, receiving

MESSAGE = a_message(text="p5-1: critical\nPROBLEM: <a> & b")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def url_file(tmp_path: Path, receiver: Receiver) -> str:
    path = tmp_path / "slack-url"
    path.write_text(f"{receiver.url}\n")
    return str(path)


def test_slack_gets_its_text_with_its_three_characters_escaped(receiver: Receiver, url_file: str) -> None:
    """Slack reads &, < and > as its own; all else is as it stands."""
    to_slack(url_file)(MESSAGE)
    assert [each["text"] for each in receiver.taken] == ["p5-1: critical\nPROBLEM: &lt;a&gt; &amp; b"]


def test_a_webhook_gets_the_data_and_the_token(receiver: Receiver, tmp_path: Path) -> None:
    """JSON by POST, with the token of the file as Bearer; without a file no such header goes along."""
    token = tmp_path / "token"
    token.write_text("s3cret\nnot this\n")
    to_webhook(receiver.url, str(token))(MESSAGE)
    to_webhook(receiver.url)(MESSAGE)
    assert receiver.taken == [MESSAGE.data] * 2
    assert [headers.get("Authorization") for headers in receiver.headers] == ["Bearer s3cret", None]
    assert receiver.headers[0]["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("user", "token", "sent"),
    [
        ("ops:s3cret", "", "Basic b3BzOnMzY3JldA=="),
        ("ops", "", "Basic b3BzOg=="),
        ("o%40ps:s%3Acret", "", "Basic b0BwczpzOmNyZXQ="),
        ("ops:s3cret", "t0ken", "Bearer t0ken"),
    ],
)
def test_a_user_in_the_url_is_sent_as_http_has_it(
    receiver: Receiver, tmp_path: Path, user: str, token: str, sent: str
) -> None:
    """By the header, as curl and browsers do, and never as a part of the host. A token of its own comes first."""
    (tmp_path / "token").write_text(token)
    url = receiver.url.replace("//", f"//{user}@")
    to_webhook(url, str(tmp_path / "token") if token else "")(MESSAGE)
    assert receiver.headers[0]["Authorization"] == sent
    receiver.answers.append((503, {}))
    with pytest.raises(NotDeliveredError) as caught:
        to_webhook(url)(MESSAGE)
    assert "s3cret" not in str(caught.value)


def test_an_error_is_said_with_the_answer_and_without_the_secret(receiver: Receiver, url_file: str) -> None:
    """The status and what the other side says; the path of the URL, which is Slack's secret, is in no message."""
    receiver.answers.append((503, {}))
    with pytest.raises(NotDeliveredError, match="answered 503 Service Unavailable: no_service") as caught:
        to_slack(url_file)(MESSAGE)
    assert ("secret" in str(caught.value), caught.value.retry_s) == (False, 0)


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [(400, True), (403, True), (413, True), (500, True), (429, False), (502, False), (503, False), (504, False)],
)
def test_an_answer_says_whether_the_receiver_takes_others(receiver: Receiver, code: int, *, is_refused: bool) -> None:
    """Too many requests, and no server behind a gateway, are about the receiver; else it has refused this message."""
    receiver.answers.append((code, {}))
    with pytest.raises(NotDeliveredError, match=f"answered {code}") as caught:
        to_webhook(receiver.url)(MESSAGE)
    assert isinstance(caught.value, RefusedError) is is_refused


def test_a_webhooks_url_may_be_a_secret(receiver: Receiver, url_file: str) -> None:
    """It is read from its file for each message, as Slack's is."""
    to_webhook("", url_file=url_file)(MESSAGE)
    assert receiver.taken == [MESSAGE.data]


SECRET = "T024XYZ89/B0-sesame-42"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    ("url", "token"),
    [
        (f"http://127.0.0.1:9/services/{SECRET}", "x"),
        (f"http://127.0.0.1:9/services/{SECRET} and more", "x"),
        (f"http://127.0.0.1:9/?key={SECRET}\x0b", "x"),
        (f"http://127.0.0.1:9?key={SECRET.replace('/', ':')}", "x"),
        (f"http://127.0.0.1:9#{SECRET.replace('/', ':')}", "x"),
        (f"ftp://{SECRET.replace('/', ':')}@127.0.0.1:9/", "x"),
        ("http://127.0.0.1:9/", SECRET),
        ("http://127.0.0.1:9/", f"{SECRET}\x0bmore"),
        ("http://127.0.0.1:9/", f"{SECRET}\u20ac"),
    ],
)
def test_no_failure_says_a_secret(tmp_path: Path, url: str, token: str) -> None:
    """Neither the path of a URL, nor its user, nor a token: also where the library quotes what it refuses."""
    (tmp_path / "url").write_text(url)
    (tmp_path / "token").write_text(token)
    with pytest.raises(NotDeliveredError) as caught:
        to_webhook("", str(tmp_path / "token"), url_file=str(tmp_path / "url"))(MESSAGE)
    assert "sesame" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_what_the_other_side_quotes_is_no_secret_either(receiver: Receiver, tmp_path: Path) -> None:
    """A server that says which path or token it refuses tells it to nobody else."""
    (tmp_path / "token").write_text("no_service")  # what this receiver says
    receiver.answers.append((503, {}))
    with pytest.raises(NotDeliveredError, match="answered 503 Service Unavailable: …"):
        to_webhook(receiver.url, str(tmp_path / "token"))(MESSAGE)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("30", 30, 30),
        ("Fri, 01 Jan 2100 00:00:00 +0000", 3_600, 3_600),
        ("9999999", 3_600, 3_600),
        ("soon", 0, 0),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", 0, 0),
        ("Thu, 01 Jan 2026 00:00:00 +0000", 0, 0),
    ],
)
def test_a_receiver_says_when_to_come_again(receiver: Receiver, header: str, least: float, most: float) -> None:
    """Retry-After in seconds or as a date, an hour at most; what is neither says nothing."""
    receiver.answers.append((429, {"Retry-After": header}))
    with pytest.raises(NotDeliveredError) as caught:
        to_webhook(receiver.url)(MESSAGE)
    assert least <= caught.value.retry_s <= most


def test_a_redirect_delivers_nothing(receiver: Receiver) -> None:
    """Followed, a POST would become a GET that any page answers with 200."""
    receiver.answers.append((302, {"Location": receiver.url}))
    with pytest.raises(NotDeliveredError, match="302"):
        to_webhook(receiver.url)(MESSAGE)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_receiver_that_drips_has_one_deadline(scheme: str) -> None:
    """A byte at a time, of an answer or of the handshake of TLS: not one deadline for each of them. On a busy machine
    the deadline may pass before the first byte comes: then it is tried with a longer one."""
    said: list[int] = []

    def speak() -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    for byte in b"\x16\x03\x03\x3f\xff\x02" + bytes(9000) if scheme == "https" else b"H" * 9000:
                        client.sendall(bytes([byte]))
                        said.append(byte)
                        time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        speaker = threading.Thread(target=speak)
        speaker.start()
        for timeout_s in (0.5, 2.0, 8.0, 32.0):
            began = time.monotonic()
            with pytest.raises(NotDeliveredError, match="timed out|no whole answer within"):
                to_webhook(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/x", timeout_s=timeout_s)(MESSAGE)
            assert 0.8 * timeout_s < time.monotonic() - began < timeout_s + limit_s(3.0)
            if len(said) >= 2:
                break
        listener.shutdown(socket.SHUT_RDWR)
        speaker.join()
    assert len(said) >= 2


def test_nobody_there_is_an_error_in_words(tmp_path: Path) -> None:
    """A port that nobody listens on, a file that is not there, an empty one, one without a URL."""
    with receiving() as gone:
        url = gone.url
    with pytest.raises(NotDeliveredError, match=r"^http://127\.0\.0\.1:\d+ cannot be reached: .*refused"):
        to_webhook(url)(MESSAGE)
    for name, text, words in (
        ("none", None, "cannot be read"),
        ("empty", "\n", "the first line is empty"),
        ("text", "xoxb-no-url\n", "not a URL; expected https"),
        ("odd", "http://[::1/x\n", "cannot be reached"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(NotDeliveredError, match=words):
            to_slack(str(tmp_path / name))(MESSAGE)


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root is particular about who else may write")
def test_root_runs_no_command_that_others_may_write(tmp_path: Path) -> None:
    """The message is not delivered, and why is said."""
    script = tmp_path / "page.sh"
    script.write_text(f"#!/bin/sh\ncat >{tmp_path}/got\n")
    script.chmod(0o777)
    with pytest.raises(NotDeliveredError, match=f"not run, since {script} may be written by every user"):
        to_command([str(script)])(MESSAGE)
    script.chmod(0o755)
    to_command([str(script)])(MESSAGE)
    assert (tmp_path / "got").exists()


@pytest.mark.process
def test_a_command_reads_the_message_and_its_exit_code_counts(tmp_path: Path) -> None:
    """The JSON comes by standard input; another exit code than 0, no such tool, and too long are not delivered."""
    to_command(["/bin/sh", "-c", f"cat >{tmp_path}/got"])(MESSAGE)
    assert json.loads((tmp_path / "got").read_text()) == MESSAGE.data
    with pytest.raises(RefusedError, match=r"/bin/sh exited with 3, expected 0: no mailer"):
        to_command(["/bin/sh", "-c", "echo no mailer >&2; exit 3"])(MESSAGE)
    with pytest.raises(NotDeliveredError, match="no-such-mailer"):
        to_command(["no-such-mailer"])(MESSAGE)
    began = time.monotonic()
    with pytest.raises(NotDeliveredError) as caught:
        to_command([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.5)(MESSAGE)
    assert not isinstance(caught.value, RefusedError)
    assert time.monotonic() - began < limit_s(3.0)
