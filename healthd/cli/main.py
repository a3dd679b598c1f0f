"""Runs one verb: parse, hand over to the verb's module, print what comes back."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence

from healthd.api.grammar import TextRequested, parse
from healthd.api.wire import Reply, failure
from healthd.core.errors import HealthdError
from healthd.core.streams import FAILED, print_answer


def run(arguments: Sequence[str], *, colour: bool = False) -> int:
    """One command line, from its arguments to its exit code. The module of a verb has ``answer(options) -> Reply``.

    ``colour``: standard output shows colours.
    """
    try:
        options = parse(arguments)
        options.arguments, options.colour = tuple(arguments), colour
        module = importlib.import_module(f"healthd.cli.{options.module or options.verb.replace('-', '_')}")
        gc.freeze()
        gc.enable()
        answer: Reply = module.answer(options)
    except TextRequested as shown:
        answer = Reply(code=0, out=str(shown))
    except HealthdError as error:
        answer = failure(error)
    except Exception:  # noqa: BLE001 - Python would exit with 1, which is a verdict: critical
        answer = _defect()
    gc.enable()  # also where a wrong command line kept it from that
    return print_answer(answer.code, answer.out, answer.err)


def _defect() -> Reply:
    """The error that is being handled, for those who can correct healthd."""
    import traceback

    from healthd.observe.text_lines import printable

    lines = [
        *traceback.format_exc().rstrip("\n").split("\n"),
        "healthd: this is a defect of healthd; report these lines",
    ]
    return Reply(code=FAILED, err="".join(f"{printable(line)}\n" for line in lines))
