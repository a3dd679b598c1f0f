"""How the arguments of a verb are spelled, for the pages and completions that are made of the grammar."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def shown(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    """The arguments of a verb that an operator gives; --help, which all have, is none."""
    return [each for each in parser._actions if each.dest != "help" and each.help != argparse.SUPPRESS]


def usage(name: str, parser: argparse.ArgumentParser) -> str:
    """``healthd ack FAULT --for TIME --reason TEXT [--dry-run]``: one line."""
    return " ".join(["healthd", name, *(_shape(action) for action in shown(parser))])


def spelled(action: argparse.Action) -> str:
    """``--config FILE``, or the name of a positional argument."""
    name = action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)
    return f"{name} {action.metavar or 'WORD'}" if takes_value(action) else name


def takes_value(action: argparse.Action) -> bool:
    """Whether it is an option with a value behind it."""
    return bool(action.option_strings) and action.nargs != 0


def _shape(action: argparse.Action) -> str:
    """How an argument stands in the usage line."""
    word = spelled(action)
    if action.option_strings:
        return word if action.required else f"[{word}]"
    if action.choices:
        word = "|".join(str(choice) for choice in action.choices)
    return {"*": f"[{word} ...]", "+": f"{word} [{word} ...]", "?": f"[{word}]"}.get(str(action.nargs), word)
