"""The check ``plugin.run``: checks in any language, by the contract of node-problem-detector's custom plugins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from healthd.checklib.host_text import json_object, json_text
from healthd.core.check import CodeForm, FindingCode, check, judged, nothing_expected
from healthd.core.errors import SourceError, SourceUnreadable
from healthd.core.model import NODE, Component, Finding, Remedy, Result, Severity
from healthd.core.node import CommandResult, Node
from healthd.core.setting_types import AtLeastOne, Seconds

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_OK, _PROBLEM = 0, 1
_EVIDENCE_CHARACTERS = 4096
"""As JSON. The evidence is kept with the finding, in memory, in the store and in the audit trail."""
_STATUS = {"ok": _OK, "problem": _PROBLEM}

PROBLEM = FindingCode(
    code="plugin.*",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="A plug-in of this site has found a problem",
)


class Plugin(Struct, frozen=True, kw_only=True):
    """One plug-in of the site."""

    name: str
    """The name of the plug-in: lower-case letters, digits and ``_``. Its finding is ``plugin.<name>``."""

    command: tuple[str, ...]
    """The command, one element per argument, run as root without a shell: ``["/opt/site/quota.sh", "--strict"]``."""

    critical: bool = False
    """Whether its finding is critical and keeps jobs off this node. Otherwise it is a warning."""

    json: bool = False
    """Whether it prints one JSON object instead of a line: ``status`` (``ok``, ``problem``, or anything else for
    unknown), ``message``, and optionally ``component`` (128 characters at most) and ``evidence`` (4096 characters of
    JSON; more is kept as text, cut off there). Its exit status does not count then."""

    timeout_s: Seconds = 5.0
    """How long it may run, in seconds; node-problem-detector's default. At the end healthd kills it with every process
    in its group, and the outcome is unknown."""

    def __post_init__(self) -> None:
        """Refuse a name that is no slug, and an empty command."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r}: expected lower-case letters, digits and _, such as disk_quota")
        if not self.command:
            raise ValueError(f"plug-in {self.name}: the command is empty; expected at least the program")

    @property
    def code(self) -> str:
        """The code of its finding."""
        return f"plugin.{self.name}"


class PluginRunSettings(Struct, frozen=True, kw_only=True):
    """The plug-ins of this site."""

    plugins: tuple[Plugin, ...] = ()
    """The plug-ins, each a table: ``[[checks."plugin.run".plugins]]`` with ``name`` and ``command``, and if you like
    ``critical``, ``json`` and ``timeout_s``. They run one after the other; together they may take 50 s."""

    max_characters: AtLeastOne = 80
    """How many characters of a plug-in's line become the message; node-problem-detector's default."""

    def __post_init__(self) -> None:
        """Refuse duplicate names: one finding would hide the other."""
        names = [plugin.name for plugin in self.plugins]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"plugins: two plug-ins have the name {twice[0]!r}; rename one")

    @property
    def own_codes(self) -> frozenset[str]:
        """The codes of the plug-ins: a fault of another one ends, because its plug-in was taken away."""
        return frozenset(plugin.code for plugin in self.plugins)


def explain(code: str) -> tuple[CodeForm, ...]:
    """The meaning of ``plugin.disk_quota``; none for another code."""
    before, dot, name = code.partition("plugin.")
    if before or not dot or not _NAME.fullmatch(name):
        return ()
    meaning = f'The site\'s own plug-in {name!r}, of [checks."plugin.run"] plugins, has found a problem'
    note = "Critical where the plug-in has critical = true."
    return (
        CodeForm(
            code=code,
            meaning=meaning,
            severity=PROBLEM.severity,
            remedy=PROBLEM.remedy,
            clears_by=PROBLEM.clears_by,
            notes=(note,),
        ),
    )


@check("plugin.run", interval_s=60, timeout_s=50, settings=PluginRunSettings, codes=(PROBLEM,), explain=explain)
def plugin_run(node: Node, settings: PluginRunSettings) -> Result:
    """The site's own plug-ins find no problem.

    The contract is node-problem-detector's, unchanged: exit 0 is healthy, 1 is a problem, anything else is unknown, and
    the first line of standard output is the message. A plug-in that is missing, runs too long or was killed is unknown
    too: a broken script is evidence of nothing. One plug-in hides no other. Their problems are warnings, unless the
    site calls a plug-in critical, and never repair anything by themselves.

    Source: node-problem-detector, docs/custom_plugin_monitor.md and pkg/custompluginmonitor (exit codes, time-out 5 s,
    80 characters).
    """
    if not settings.plugins:
        return nothing_expected("no plug-in is configured")
    findings: list[Finding] = []
    undecided = []
    for plugin in settings.plugins:
        try:
            findings.extend(_run(node, plugin, settings.max_characters))
        except SourceError as error:
            undecided.append(f"plug-in {plugin.name}: {error}")
    return judged(findings, undecided=undecided)


def _run(node: Node, plugin: Plugin, max_characters: int) -> Iterator[Finding]:
    answer = node.command(*plugin.command, timeout_s=plugin.timeout_s)
    report = json_object(answer.stdout, "its output") if plugin.json else _line(answer)
    message = str(report.get("message", ""))[:max_characters]
    given = report.get("status")
    status = given if type(given) is int else _STATUS.get(str(given))  # true and false are no status
    if status not in (_OK, _PROBLEM):
        raise SourceUnreadable(f"status {given!r}; expected ok or problem: {message}")
    if status == _PROBLEM:
        yield Finding(
            code=plugin.code,
            severity=Severity.CRITICAL if plugin.critical else PROBLEM.severity,
            remedy=PROBLEM.remedy,
            component=Component.named(str(report.get("component") or NODE)),
            message=message or f"plug-in {plugin.name} found a problem and printed no message",
            evidence={"plugin": plugin.name, "command": list(plugin.command), "exit": answer.code, **_evidence(report)},
        )


def _line(answer: CommandResult) -> Mapping[str, Any]:
    first = next((line.strip() for line in answer.stdout.splitlines() if line.strip()), "")
    return {"status": answer.code, "message": first}


def _evidence(report: Mapping[str, Any]) -> Mapping[str, Any]:
    given = report.get("evidence")
    if not isinstance(given, Mapping):
        return {}
    text = json_text(given)
    return {"given": given} if len(text) <= _EVIDENCE_CHARACTERS else {"given_cut": text[:_EVIDENCE_CHARACTERS]}
