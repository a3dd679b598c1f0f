"""The check ``plugin.run``: checks in any language, by the contract of node-problem-detector's custom plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from healthd.check import FindingCode, check, judged, not_applicable
from healthd.errors import SourceError, SourceUnreadable
from healthd.host_text import json_object
from healthd.model import NODE, Component, Finding, Remedy, Result, Severity
from healthd.node import CommandResult, Node

_OK, _PROBLEM = 0, 1
_STATUS = {"ok": _OK, "problem": _PROBLEM}

PROBLEM = FindingCode(
    code="plugin.*",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A plug-in of this site has found a problem",
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The plug-ins of this site."""

    plugins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Each plug-in by its name, with its command, one list element per argument, run as root without a shell:
    ``{disk_quota = ["/opt/site/quota.sh", "--strict"]}``. The name makes the finding: ``plugin.disk_quota``."""

    critical: tuple[str, ...] = ()
    """The names of plug-ins whose problem keeps jobs off this node. All others warn."""

    json: tuple[str, ...] = ()
    """The names of plug-ins that print one JSON object instead of a line: ``status`` (``ok``, ``problem``, or anything
    else for unknown), ``message``, and, if they like, ``component`` and ``evidence``. Their exit status is not read."""

    each_timeout_s: float = 5.0
    """How long one plug-in may run, in seconds, as node-problem-detector's default. At the end it is killed with every
    process that it started in its group, and is unknown."""

    max_characters: int = 80
    """How much of its line is shown, as node-problem-detector's default."""


def explain(code: str) -> str | None:
    """What ``plugin.disk_quota`` is, or None for another code."""
    _, dot, name = code.partition("plugin.")
    return f'The site\'s own plug-in {name!r}, of [checks."plugin.run"] plugins, found a problem.' if dot else None


@check("plugin.run", interval_s=60, timeout_s=50, settings=Settings, codes=(PROBLEM,), explain=explain)
def plugin_run(node: Node, settings: Settings) -> Result:
    """The site's own plug-ins find no problem.

    The contract is node-problem-detector's, unchanged: exit 0 is well, 1 is a problem, anything else is unknown, and
    the first line of standard output says what. A plug-in that is missing, runs too long or was killed is unknown too:
    a broken script is evidence of nothing. One plug-in hides no other. Their problems warn, unless the site calls a
    plug-in critical, and never repair anything by themselves.

    Source: node-problem-detector, docs/custom_plugin_monitor.md and pkg/custompluginmonitor (exit codes, time-out 5 s,
    80 characters).
    """
    if not settings.plugins:
        return not_applicable("no plug-in is configured")
    findings: list[Finding] = []
    gaps = []
    for name, argv in settings.plugins.items():
        try:
            findings.extend(_run(node, name, argv, settings))
        except SourceError as error:
            gaps.append(f"plug-in {name}: {error}")
    return judged(findings, gaps=gaps)


def _run(node: Node, name: str, argv: tuple[str, ...], settings: Settings) -> Iterator[Finding]:
    if not argv:
        raise SourceUnreadable("its command is empty; expected at least the program")
    answer = node.command(*argv, timeout_s=settings.each_timeout_s)
    said = json_object(answer.stdout, "its output") if name in settings.json else _line(answer)
    message = str(said.get("message", ""))[: settings.max_characters]
    status = said.get("status") if isinstance(said.get("status"), int) else _STATUS.get(str(said.get("status")))
    if status not in (_OK, _PROBLEM):
        raise SourceUnreadable(f"it answered {said.get('status')!r}, which is neither ok nor a problem: {message}")
    if status == _PROBLEM:
        yield Finding(
            code=f"plugin.{name}",
            severity=Severity.CRITICAL if name in settings.critical else PROBLEM.severity,
            remedy=PROBLEM.remedy,
            component=_component(said),
            message=message or f"plug-in {name} found a problem and said nothing",
            evidence={"plugin": name, "command": list(argv), "exit": answer.code, **_evidence(said)},
        )


def _line(answer: CommandResult) -> Mapping[str, Any]:
    first = next((line.strip() for line in answer.stdout.splitlines() if line.strip()), "")
    return {"status": answer.code, "message": first}


def _component(said: Mapping[str, Any]) -> Component:
    kind, _, where = str(said.get("component") or NODE).partition(":")
    return Component(kind=kind, id=where)


def _evidence(said: Mapping[str, Any]) -> Mapping[str, Any]:
    given = said.get("evidence")
    return {"given": given} if isinstance(given, Mapping) else {}
