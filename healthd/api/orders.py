"""What a person may order of the daemon through its socket. The server has decided already whether they may.

Every order says what it would do, does it only where ``--yes`` was given, and is written to the audit trail.
"""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime

from healthd.agent import Agent
from healthd.api.wire import Answer
from healthd.check import Learned
from healthd.errors import UsageError


def relearn_answer(agent: Agent, options: Namespace, *, who: str) -> Answer:
    """Forget what checks have learned, or say what that would be; the checks then look at once. Exit 0: as asked."""
    names = _learning(options.names, agent)
    if not options.yes:
        learned = agent.monitor.learned(names)
    else:
        learned = agent.monitor.relearn(names, datetime.now(UTC), f"{options.reason} ({who})")
        for name in names:
            if agent.checkup.checks[name].on == "interval":
                agent.checkup.start(name)
    word = "forgotten" if options.yes else "would be forgotten"
    lines = [
        f"{word}: {reading} {best.value:g} of {where}, since {best.since:%Y-%m-%d %H:%M:%S} UTC"
        for (where, reading), best in learned.items()
    ]
    return Answer(code=0, out="\n".join(lines or [f"nothing {word}: nothing has been learned yet"]) + "\n")


def _learning(names: Sequence[str], agent: Agent) -> Sequence[str]:
    """These checks, or all that learn. Raises UsageError for one that does not."""
    checks = agent.checkup.checks.values()
    able = [check.name for check in checks if any(isinstance(limit, Learned) for limit in check.limits)]
    for name in names:
        if name not in able:
            near = difflib.get_close_matches(name, able, n=1)
            hint = f"did you mean {near[0]}?" if near else f"these learn here: {', '.join(able) or 'none'}"
            raise UsageError(f"healthd relearn: {name!r} is no check that learns here; {hint}")
    return names or able
