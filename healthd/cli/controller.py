"""``healthd controller``: on the head node, acts for nodes that have no right to."""

from __future__ import annotations

import json
from argparse import Namespace
from datetime import UTC, datetime
from typing import Any

from healthd.api.wire import Reply
from healthd.cli.settings import loaded, served
from healthd.config.schema.config import Config
from healthd.core.errors import StoreError, UsageError


def answer(options: Namespace) -> Reply:
    """Run until a signal ends it, or tell what the one that leads said last, from any replica on Kubernetes.

    ``--status``: exit 0, 1 where a person is needed, 2 where no controller leads.
    """
    if options.json and not options.status:
        raise UsageError("healthd controller: --json goes with --status; the log is JSON already")
    config = loaded(options).config
    from healthd.controller.run import control, open_work  # heavy: structlog

    if options.status:
        return _status(config, as_json=options.json)

    def load() -> None:
        open_work(loaded(options).config)  # what a start would find wrong

    return Reply(code=served(lambda: control(config, once=options.once, load=load)))


def _status(config: Config, *, as_json: bool) -> Reply:
    from healthd.controller.run import FRESH_ROUNDS, FRESH_S, read_status

    interval_s = config.controller.interval_s
    try:
        status = read_status(config)
    except StoreError as error:
        return Reply(code=2, err=f"healthd: {error}\n")
    if status is None:
        return Reply(code=2, err="healthd: no controller has said anything yet; start `healthd controller`\n")
    age_s = (datetime.now(UTC) - datetime.fromisoformat(status["at"])).total_seconds()
    stale = age_s > max(FRESH_S, FRESH_ROUNDS * interval_s)
    pages = any(each["page"] for each in status["nodes"])
    code = 2 if stale else int(pages)
    if as_json:
        return Reply(code=code, out=json.dumps({**status, "stale": stale}, indent=2) + "\n")
    err = f"healthd: that was {age_s:.0f} s ago; no controller leads now, or it hangs\n" if stale else ""
    return Reply(code=code, out=_told(status), err=err)


def _told(status: dict[str, Any]) -> str:
    head = f"leader  {status['leader']}, in {status['mode']} mode, at {status['at']}\n"
    head += "".join(f"! {notice}\n" for notice in status.get("notices", ()))
    lines = [f"{'PAGE ' * each['page']}{each['node'] or 'cluster'}  {each['said']}\n" for each in status["nodes"]]
    more = f"and {left_out} more, in the log of the one that leads\n" if (left_out := status.get("left_out")) else ""
    return head + ("".join(lines) or "nothing is asked of it\n") + more
