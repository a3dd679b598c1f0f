"""``healthd explain``: the runbook of a finding code or an XID, and the meaning of any text that healthd writes."""

from __future__ import annotations

from argparse import Namespace
from inspect import cleandoc
from typing import Any

from healthd.api.wire import Reply
from healthd.cli.codes import forms_of, unknown_code
from healthd.cli.node_texts import NodeText, as_data, as_text, code_in, node_text, node_texts
from healthd.cli.runbook import CodeRunbook, runbook_data, runbook_of, runbook_text
from healthd.cli.settings import loaded
from healthd.config.schema.config import Config
from healthd.core.check import discover
from healthd.core.errors import ConfigError
from healthd.core.json_documents import json_document
from healthd.judge.job_patterns import CODES as OF_A_JOB
from healthd.remediation.policy_files import policy_of

_JOB_CODES = {each.code: each for each in OF_A_JOB}

Explained = tuple[NodeText | None, CodeRunbook | None]


def answer(options: Namespace) -> Reply:
    """The runbook of one code, or of a text. Raises UsageError, with the nearest code, for one that does not exist."""
    config, notice = _configured(options)
    text, runbook = explained(options.code, config)
    if options.json:
        data: dict[str, Any] = runbook_data(runbook) if runbook is not None else {}
        if text is not None:
            data = as_data(text, options.code, data)
        return Reply(code=0, out=json_document(data), err=notice)
    parts = [as_text(text, options.code)] if text is not None else []
    parts += [runbook_text(runbook)] if runbook is not None else []
    return Reply(code=0, out="\n".join(parts), err=notice)


def explained(wanted: str, config: Config) -> Explained:
    """The row of a text that healthd writes, and the runbook of the code that is in it; one of the two at least."""
    if (runbook := _runbook(wanted, config)) is not None:
        return None, runbook
    text = node_text(wanted) or _check(wanted) or _of_a_job(wanted)
    code = code_in(wanted)
    if text is None and not code:
        raise unknown_code("healthd explain", wanted, "unknown code or text", [*discover(), *node_texts(), *_JOB_CODES])
    return text, _runbook(code, config) if code else None


def _runbook(code: str, config: Config) -> CodeRunbook | None:
    found = forms_of(code)
    if found is None:
        return None
    policy = policy_of(config.policy, config.node.instance_type or None)
    return runbook_of(*found, policy, config.notify.runbooks)


def _check(name: str) -> NodeText | None:
    """A check, which a condition and a verdict name where it is unknown."""
    check = discover().get(name)
    if check is None:
        return None
    do = (
        f"Run it now: `healthd check {name}`",
        "If it is unknown, do what its line `do:` says; `healthd doctor` names all that is missing here",
    )
    _, *notes = cleandoc(check.doc).split("\n\n")
    return NodeText(text=name, where="a check", meaning=check.title, do=do, notes=tuple(notes))


def _of_a_job(wanted: str) -> NodeText | None:
    """A pattern of a running job, which is shown in shadow: healthd does nothing about it."""
    found = _JOB_CODES.get(wanted)
    if found is None:
        return None
    do = (
        "See the numbers of each node and GPU: `healthd job JOBID --compare`",
        "Ask the job's owner what that rank does: py-spy or gdb on its process",
    )
    return NodeText(text=found.code, where="a finding about a job, in shadow", meaning=found.meaning, do=do)


def _configured(options: Namespace) -> tuple[Config, str]:
    """The configuration of this machine; the defaults, and a notice, where it cannot be read."""
    try:
        return loaded(options).config, ""
    except ConfigError as error:
        if options.config:
            raise
        return Config(), f"healthd explain: by the shipped policy, not this node's: {error.problems[0]}\n"
