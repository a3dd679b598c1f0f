"""``healthd run``: the daemon."""

from __future__ import annotations

import os
from argparse import Namespace

from healthd.agent.late_metadata import begun
from healthd.api.wire import Reply
from healthd.cli.settings import loaded, served
from healthd.daemon.late_tls import import_without_tls
from healthd.remediation.policy_files import policy_of
from healthd.sources.command import adopt_children


def answer(options: Namespace) -> Reply:
    """Run until a signal ends it. Exit 0 after SIGTERM or SIGINT; SIGHUP loads the configuration again.

    Before a reload, the running daemon tests the new configuration on this machine.
    """
    import_without_tls()
    adopt_children()
    hurry = begun()
    values = loaded(options, hurry)
    policy_of(values.config.policy, None)  # rejects rules for codes that no check reports
    from healthd.daemon.daemon import serve  # heavy: structlog, APScheduler
    from healthd.daemon.trial import try_out

    def load() -> None:
        try_out(loaded(options).config, os.environ)

    config, notices = values.cautious()
    is_decided = None if values.is_decided else lambda: loaded(options).is_decided
    return Reply(
        code=served(lambda: serve(config, notices, load=load, hurry=hurry, by_job=values.by_job, is_decided=is_decided))
    )
