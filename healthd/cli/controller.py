"""``healthd controller``: the cluster controller, which reboots and replaces nodes that lack AWS permissions."""

from __future__ import annotations

from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

from healthd.api.wire import Reply
from healthd.cli.settings import loaded, served
from healthd.cli.watch import watched
from healthd.config.schema.config import Config
from healthd.core.errors import StoreError, UsageError
from healthd.core.json_documents import json_document
from healthd.observe.text_lines import TextLine, joined


def answer(options: Namespace) -> Reply:
    """Run until a signal ends it, or print the status of the leader, from any replica on Kubernetes.

    ``--status``: exit 0; 1 where a node needs an operator; 2 where no controller leads. With ``--watch`` 0, at Ctrl-C.
    """
    if (options.json or options.watch) and not options.status:
        raise UsageError("healthd controller: --json and --watch work only with --status; the log is always JSON")
    config = loaded(options).config
    from healthd.controller.run import control, open_work  # heavy: structlog

    if options.status:
        return watched(options, lambda: _status(config, as_json=options.json))

    def load() -> None:
        open_work(loaded(options).config)  # finds the problems that a start would find

    return Reply(code=served(lambda: control(config, once=options.once, load=load)))


def _status(config: Config, *, as_json: bool) -> Reply:
    from healthd.controller.run import FRESH_S, FRESH_SYNCS, read_status

    interval_s = config.controller.interval_s
    try:
        status = read_status(config)
    except StoreError as error:
        return Reply(code=2, err=f"healthd: {error}\n")
    if status is None:
        return Reply(code=2, err="healthd: no controller has written a status yet; start `healthd controller`\n")
    age_s = (datetime.now(UTC) - datetime.fromisoformat(status["at"])).total_seconds()
    stale = age_s > max(FRESH_S, FRESH_SYNCS * interval_s)
    pages = any(each["page"] for each in status["nodes"])
    code = 2 if stale else int(pages)
    if as_json:
        return Reply(code=code, out=json_document({**status, "stale": stale}))
    err = f"healthd: this status is {age_s:.0f} s old: no controller leads now, or the leader hangs\n" if stale else ""
    return Reply(code=code, out=_status_text(status), err=err)


def _status_text(status: dict[str, Any]) -> str:
    nodes = [f"{'PAGE ' * each['page']}{each['node'] or 'cluster'}  {each['message']}" for each in status["nodes"]]
    left_out = status.get("left_out")
    lines = [
        f"leader  {status['leader']}, in {status['mode']} mode, at {status['at']}",
        *(f"! {notice}" for notice in status.get("notices", ())),
        *(nodes or ["no node has a request"]),
        *([f"and {left_out} more; see the leader's log"] if left_out else []),
    ]
    return joined(map(TextLine, lines))
