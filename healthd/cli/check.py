"""``healthd check`` without a daemon: look at everything now. (With one, the daemon has answered already.)"""

from __future__ import annotations

from argparse import Namespace

from healthd.agent import looking_agent
from healthd.api.answers import check_answer
from healthd.api.wire import Answer
from healthd.cli.settings import loaded


def answer(options: Namespace) -> Answer:
    """The verdict of this node, from a look of our own."""
    agent = looking_agent(loaded(options).config)
    try:
        return check_answer(agent, options)
    finally:
        agent.close()
