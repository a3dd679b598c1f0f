"""``healthd check`` past the hot path: run the checks here without a daemon; request active tests from the daemon."""

from __future__ import annotations

import os
from argparse import Namespace

from healthd.agent.agent import reading_agent
from healthd.api.answers import check_answer, is_active
from healthd.api.wire import Reply, Request
from healthd.cli.output import talk
from healthd.cli.settings import loaded, socket_path
from healthd.core.errors import NoDaemon


def answer(options: Namespace) -> Reply:
    """The verdict of this node: the daemon's for active tests, else from check runs in this process. Raises NoDaemon
    where the socket was named and no daemon answers there: checks in this process would answer another question."""
    active = is_active(options)
    if options.socket and not active and not options.no_daemon and not options.config:
        raise NoDaemon(f"no daemon answers at {options.socket}; leave --socket out to run the checks here")
    if active and not options.no_daemon and not options.config:
        answered = _asked(options)
        if answered is not None:
            return answered
        if options.socket:
            raise NoDaemon(f"no daemon answers at {options.socket}; leave --socket out to run the tests here")
    values = loaded(options, names=options.names or None)
    agent = reading_agent(values.config, values.notices, options.names, asks_all=not options.names)
    try:
        if active:
            from healthd.agent.wiring import open_orchestrator  # loads remediation

            agent.orchestrator = open_orchestrator(values.config, agent.machine, os.environ)
        return check_answer(agent, options, os.environ, talk)
    finally:
        agent.close()


def _asked(options: Namespace) -> Reply | None:
    """The daemon's answer to a request for active tests; None without a daemon."""
    from healthd.api.client import ask  # loads socket

    environ = {name: os.environ[name] for name in ("SLURM_JOB_ID",) if name in os.environ}
    request = Request(arguments=options.arguments, environ=environ, colour=options.colour)
    return ask(socket_path(options), request, talk)
