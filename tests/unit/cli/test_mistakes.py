"""Every mistake of the table is answered as one, with a next step; the reference page has the answers."""

from __future__ import annotations

import pytest

from healthd.api.wire import Reply
from tests.support.mistakes import COMMANDS, CONFIGURATIONS, answered_commands, answered_configurations

NEXT_STEPS = ("did you mean ", "see ", "correct the ", "keep one", "write [", "lists all", "choose from", "expected ")


@pytest.mark.parametrize(("line", "reply"), list(answered_commands()))
def test_a_mistyped_command_does_nothing_and_says_the_next_step(line: str, reply: Reply) -> None:
    """Exit code 64, one line on standard error, nothing on standard output."""
    assert (reply.code, reply.out, reply.err.count("\n")) == (64, "", 1), line
    assert reply.err.startswith("healthd")
    assert any(words in reply.err for words in NEXT_STEPS), reply.err


@pytest.mark.parametrize(("text", "problems"), list(answered_configurations()))
def test_a_wrong_configuration_is_refused_with_line_and_next_step(text: str, problems: tuple[str, ...]) -> None:
    """Each problem names the file and the line."""
    assert problems, text
    for problem in problems:
        assert problem.startswith("config.toml:"), problem
        assert any(words in problem for words in NEXT_STEPS), problem


def test_there_are_forty_of_each() -> None:
    """None twice."""
    assert len(set(COMMANDS)) == len(COMMANDS) == 40
    assert len(set(CONFIGURATIONS)) == len(CONFIGURATIONS) == 40
