"""The drawn messages show what the body says, and nothing of it is markup that healthd did not mean."""

from __future__ import annotations

import pytest

from healthd.notify.slack import content_of
from tests.support.notifications import a_message
from tests.support.pages import ROOT
from tests.support.scripts import load_script

looks = load_script("docs_message_looks", ROOT / "docs/message_looks.py")


def test_slack_shows_each_block() -> None:
    """The sign as a dot, the facts with their names, the text as it is, the links by their names."""
    shown = looks.slack(content_of(a_message()))
    assert "drained: GPU 3 fell off the bus (XID 79). Rebooting now.</h2>" in shown
    assert ":red_circle:" not in shown
    assert "<b>Cluster</b><br>train-a" in shown
    assert "PROBLEM: &lt;a&gt; &amp; b" in shown
    assert '<a href="https://docs.example.com/runbooks/gpu.xid.79.html">Runbook</a>' in shown


def test_a_block_that_healthd_does_not_send_is_no_picture() -> None:
    """A new kind of block is drawn before it is shown."""
    with pytest.raises(KeyError, match="divider"):
        looks.slack({"blocks": [{"type": "divider"}]})


def test_teams_shows_the_texts_of_the_card_without_their_escapes() -> None:
    """The first is the title."""
    texts = [{"type": "TextBlock", "text": "title"}, {"type": "TextBlock", "text": r"\[train\-a\] <b>"}]
    shown = looks.card({"attachments": [{"content": {"body": texts}}]})
    assert "<h2>title</h2>" in shown
    assert "[train-a] &lt;b&gt;" in shown


def test_a_mail_shows_its_subject_and_its_text() -> None:
    """Of a mail without HTML the text."""
    shown = looks.mail("From: a@example.com\nTo: b@example.com\nSubject: gpu-1 <x>\n\nPROBLEM: <a>\n")
    assert "<h2>gpu-1 &lt;x&gt;</h2>" in shown
    assert "PROBLEM: &lt;a&gt;" in shown


def test_a_terminal_shows_its_colours() -> None:
    """Each run of one colour is one span."""
    assert looks.terminal("\x1b[1;31mX <a>\x1b[0m ok\n") == '<pre><span class="c1 c31">X &lt;a&gt;</span> ok\n</pre>'
