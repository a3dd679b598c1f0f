"""What the pages show works: configuration is loaded, command lines are parsed. Other fences: test_shipped.py."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.api.grammar import TextRequested, parse
from healthd.config.load import load
from healthd.core.check import discover
from tests.support.pages import FENCE, PAGES, ROOT, Block, blocks

# The usage lines of one come from the parser, and what the other shows is wrong on purpose.
MADE = (*(ROOT / "docs/reference/cli").glob("*.md"), ROOT / "docs/reference/mistakes.md")
BY_HAND = [page for page in PAGES if page not in MADE]
SHELL = ("sh", "console", "text", "")
# What may stand before the command: a prompt, sudo, exec, an assignment; and a path to it.
COMMAND = re.compile(r"^(?:[$#] )?(?:(?:sudo|exec|[A-Z_]+=\S*) )*(?:\S*/)?healthd ([a-z-].*)$")


def commands() -> Iterator[tuple[str, str]]:
    """(where, arguments) of every command line of ours, from shell blocks and from backquotes in the text."""
    by_hand = {page.relative_to(ROOT).as_posix() for page in BY_HAND}
    for block in blocks():
        if block.page in by_hand and block.language in SHELL:
            for line in block.text.splitlines():
                if found := COMMAND.match(line.strip()):
                    yield str(block), found[1]
    for page in BY_HAND:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for spoken in re.findall(r"`([^`]+)`", text):
            if (found := COMMAND.match(" ".join(spoken.split()))) and not is_a_heading(found[1]):
                yield page.relative_to(ROOT).as_posix(), found[1]


def is_a_heading(words: str) -> bool:
    """``healthd hook prolog|epilog``: alternatives, which are checked one by one where they are used."""
    return bool(re.search(r"\w\|\w", words))


TOML = [block for block in blocks() if block.language == "toml"]
COMMANDS = sorted(set(commands()))


def arguments(line: str) -> list[str]:
    """The words of a command line up to where the shell takes over."""
    words = shlex.split(line, comments=True)
    ends = [index for index, word in enumerate(words) if word in ("|", "||", "&&", "&", ">", ">>", "2>&1", ";")]
    return words[: min(ends, default=len(words))]


def test_there_is_something_to_try() -> None:
    """The pages hold configuration and commands; a fence written differently would hide them all."""
    assert len(TOML) >= 5
    assert len(COMMANDS) >= 20
    assert any("hook prolog" in line for _, line in COMMANDS)


@pytest.mark.parametrize("block", TOML, ids=str)
def test_configuration_loads(block: Block, tmp_path: Path) -> None:
    """Every TOML block is a whole configuration that healthd takes."""
    path = tmp_path / "config.toml"
    path.write_text(block.text, encoding="utf-8")
    names = {name: check.settings for name, check in discover().items()}
    assert load(path, checks=names, environ={}).config is not None


@pytest.mark.parametrize(("where", "line"), COMMANDS, ids=[f"{where} {line}" for where, line in COMMANDS])
def test_command_lines_parse(where: str, line: str) -> None:
    """Every command line of ours is one that the parser takes."""
    spoken_of = ":" not in where and " " not in line  # `healthd hook` in a sentence names the verb
    with contextlib.suppress(TextRequested):  # --help and --version are answered with a text
        assert parse([line, "--help"] if spoken_of and line != "help" else arguments(line)).verb
