"""``healthd config``: every value and where it comes from, everything that is wrong with them, or what editors ask."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path

from healthd.api.wire import EXIT_CONFIG, Answer
from healthd.cli.settings import check_settings, loaded
from healthd.config.json_schema import config_schema_text
from healthd.config.load import Examined, examine
from healthd.config.report import annotated, as_data, shown
from healthd.config.text import Problem
from healthd.remediation.policy_files import code_problems


def answer(options: Namespace) -> Answer:
    """``show`` fails like every verb does; ``validate`` prints the problems as marks on the user's own files.

    ``schema`` reads no configuration: it is the JSON Schema that editors check one with.
    """
    if options.what == "schema":
        return Answer(code=0, out=config_schema_text(check_settings()))
    if options.what == "show":
        values = loaded(options)
        text = json.dumps(as_data(values), indent=2, default=str) + "\n" if options.json else shown(values)
        return Answer(code=0, out=text)
    path = Path(options.config) if options.config else None
    examined = examine(path, checks=check_settings(), environ=os.environ)
    problems = examined.problems or _policy_problems(examined)
    if options.json:
        said = [str(problem) for problem in problems]
        return Answer(code=EXIT_CONFIG if said else 0, out=json.dumps({"problems": said}, indent=2) + "\n")
    if problems:
        return Answer(code=EXIT_CONFIG, err=annotated(problems, examined.texts))
    return Answer(code=0, out="the configuration is valid\n")


def _policy_problems(examined: Examined) -> tuple[Problem, ...]:
    """What the schema cannot see: rules about codes that no check finds."""
    if examined.loaded is None:
        return ()
    source = examined.loaded.origins["policy.rule"].rpartition(":")[0] or "configuration"
    return code_problems(examined.loaded.config.policy, source, examined.texts.get(source, ""))
