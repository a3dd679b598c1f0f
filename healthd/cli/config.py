"""``healthd config``: every value and where it comes from, or everything that is wrong with them."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path

from healthd.api.wire import EXIT_CONFIG, Answer
from healthd.cli.settings import check_settings, loaded
from healthd.config.load import examine
from healthd.config.report import annotated, as_data, shown


def answer(options: Namespace) -> Answer:
    """``show`` fails like every verb does; ``validate`` prints the problems as marks on the user's own files."""
    if options.what == "show":
        values = loaded(options)
        text = json.dumps(as_data(values), indent=2, default=str) + "\n" if options.json else shown(values)
        return Answer(code=0, out=text)
    path = Path(options.config) if options.config else None
    examined = examine(path, checks=check_settings(), environ=os.environ)
    if options.json:
        problems = [str(problem) for problem in examined.problems]
        return Answer(code=EXIT_CONFIG if problems else 0, out=json.dumps({"problems": problems}, indent=2) + "\n")
    if examined.problems:
        return Answer(code=EXIT_CONFIG, err=annotated(examined.problems, examined.texts))
    return Answer(code=0, out="the configuration is valid\n")
