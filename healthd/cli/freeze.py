"""``healthd freeze``: for a time no node of the cluster is reset, rebooted or replaced. It needs no daemon.

The freeze stands in one place in the cluster, which every node reads before each act, and ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Protocol

from healthd.agent.node_facts import runs_kubernetes, runs_slurm
from healthd.api.wire import Reply
from healthd.cli.settings import loaded
from healthd.config.schema.config import Config
from healthd.core.errors import BackendError, UsageError
from healthd.core.json_documents import json_document
from healthd.observe.text_lines import printable
from healthd.remediation.decide.freeze import Freeze

SCHEMA = "healthd.freeze/v1"


class FreezePlace(Protocol):
    """The place of the fleet's freeze in the cluster. Each call raises BackendError."""

    def freezes(self) -> tuple[Freeze, ...]:
        """The freezes that are on."""

    def freeze(self, reason: str, by: str, minutes: int) -> None:
        """Freeze the fleet from now on."""

    def unfreeze(self) -> None:
        """End every freeze."""


def answer(options: Namespace) -> Reply:
    """Exit 0: it is so, or was shown; 1: refused; 2: the cluster did not answer, and the freeze may be on or not."""
    if options.end and options.length:
        raise UsageError("healthd freeze: --for begins a freeze and --end ends it; give one of them")
    if (options.reason or options.dry_run) and not (options.length or options.end):
        raise UsageError("healthd freeze: nothing is frozen or ended; add --for TIME, such as 12h, or --end")
    if options.length and not options.reason:
        raise UsageError("healthd freeze: the operators who wait need to know why; add --reason TEXT")
    config = loaded(options, names=()).config
    try:
        with _place(config) as place:
            return _done(options, place)
    except BackendError as error:
        return Reply(code=2, err=f"healthd freeze: {error}; read it back with `healthd freeze`\n")


def _done(options: Namespace, place: FreezePlace) -> Reply:
    before = place.freezes()
    if options.end:
        if before and not options.dry_run:
            place.unfreeze()
        word = "would be ended" if options.dry_run else "ended"
        return _shown(options, before, word)
    if not options.length:
        return _shown(options, before, "on")
    if before:
        message = f"there is one already: {before[0].text}; end it first with `healthd freeze --end`"
        shown = _data(before, "on", refused=message) if options.json else ""
        return Reply(code=1, out=shown, err=f"healthd freeze: refused: {printable(message)}\n")
    return _begun(options, place)


def _begun(options: Namespace, place: FreezePlace) -> Reply:
    minutes = int(options.length / timedelta(minutes=1))
    if options.dry_run and options.json:
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=minutes)
        return _shown(options, (Freeze(reason=options.reason, by=_user(), until=until),), "would be on")
    if options.dry_run:
        effect = "no reset, reboot or replacement would be begun on any node; nodes are still taken out and put back"
        return Reply(code=0, out=f"for {minutes} minutes {effect}\n")
    place.freeze(options.reason, _user(), minutes)
    return _shown(options, place.freezes(), "on")


def _shown(options: Namespace, freezes: tuple[Freeze, ...], word: str) -> Reply:
    return Reply(code=0, out=_data(freezes, word) if options.json else _lines(freezes, word))


def _data(freezes: tuple[Freeze, ...], word: str, *, refused: str = "") -> str:
    """The freezes for programs. ``state``: on, ended, or with --dry-run what they would be."""
    rows = [
        {
            "state": word,
            "reason": each.reason,
            "by": each.by,
            "until": each.until.isoformat() if each.until is not None else None,
            "allow": sorted(each.allow),
        }
        for each in freezes
    ]
    return json_document({"schema": SCHEMA, "refused": refused, "freezes": rows})


def _lines(freezes: tuple[Freeze, ...], word: str) -> str:
    return "".join(f"{word}: {printable(each.text)}\n" for each in freezes) or "no freeze is on\n"


def _user() -> str:
    """The user as the kernel names it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


@contextlib.contextmanager
def _place(config: Config) -> Iterator[FreezePlace]:
    """The place in the cluster that this machine belongs to. Raises UsageError, ConfigError."""
    if runs_kubernetes(config, os.environ):
        from healthd.remediation.orchestrators.kubernetes.freezes import KubeFreezes  # heavy: lightkube
        from healthd.remediation.orchestrators.kubernetes.from_config import open_api

        with contextlib.closing(open_api(config, os.environ)) as api:
            yield KubeFreezes(api, namespace=config.orchestrator.kubernetes.namespace)
    elif runs_slurm(config, os.environ):
        from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator

        yield SlurmOrchestrator.of(config, socket.gethostname().partition(".")[0])
    else:
        raise UsageError(
            "healthd freeze: no cluster is found here; set [orchestrator] kind, or freeze this node alone by its file "
            f"{config.remediation.opt_out_file or '[remediation] opt_out_file'}"
        )
