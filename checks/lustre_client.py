"""The check ``lustre.client``: what the Lustre client in this kernel says of itself and of its connections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from healthd.check import FindingCode, check, judged, not_applicable, unknown
from healthd.errors import SourceError, SourceMissing, SourceUnreadable
from healthd.model import NODE, Component, Finding, Reading, ReadingKind, Remedy, Result, Severity
from healthd.node import Node

_IMPORTS = ("kernel/debug/lustre", "fs/lustre")  # debugfs; older clients had them below /proc/fs/lustre
_MOUNT_SUFFIX = re.compile(r"-[0-9a-f]{8,16}\Z")
_KINDS = ("mdc", "osc", "mgc")
_STATE = re.compile(r"^\s*state:\s*([A-Z_]+)\s*$", re.MULTILINE)
_ATTEMPTS = re.compile(r"^\s*connection_attempts:\s*(\d+)\s*$", re.MULTILINE)
_TARGET = re.compile(r"^\s*target:\s*(\S+)\s*$", re.MULTILINE)

# lustre-release, ptlrpc_import_state_name(). IDLE: the client itself closes connections that it does not use.
_WELL = frozenset({"FULL", "IDLE", "NEW"})
_TROUBLED = frozenset(
    {"DISCONN", "CONNECTING", "REPLAY", "REPLAY_LOCKS", "REPLAY_WAIT", "RECOVER", "EVICTED", "CLOSED"}
)

LBUG = FindingCode(
    code="lustre.lbug",
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="The Lustre client has hit an assertion in this kernel: it works again after a reboot only",
)
NOT_HEALTHY = FindingCode(
    code="lustre.not_healthy",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The Lustre client calls itself not healthy",
)
DISCONNECTED = FindingCode(
    code="lustre.disconnected",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A connection of the Lustre client to a server has been down for minutes",
    lasting_s=300.0,
    symptom_of=(LBUG.code, "lustre.assertion", "lustre.io.hung", "host.network.link_down"),
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``lustre.client`` reads."""

    imports: bool = True
    """Whether the state of each connection is read. It is in debugfs, which only root can read and which some systems
    do not mount (kernel lockdown, containers): there it is unknown, unless this is switched off."""


@check("lustre.client", interval_s=60, settings=Settings, codes=(LBUG, NOT_HEALTHY, DISCONNECTED))
def lustre_client(node: Node, settings: Settings) -> Result:
    """The Lustre client is healthy by its own word, and connected to its servers.

    An assertion that failed (LBUG) leaves threads of the kernel stuck for good, so it keeps jobs off and calls for a
    reboot. An idle connection is healthy: the client closes what it does not use. One that is being recovered is only
    worth a word when that lasts, and never more than a warning: fail-overs and maintenance windows look the same from
    every node. Reading these files sends nothing to a server, so it cannot hang on one. Unproven on hardware: no Lustre
    client was at hand; the files are those of the published sources.

    Sources: lustre-release lustre/obdclass/obd_sysfs.c (health_check), lustre/ptlrpc/import.c (states);
    aws-parallelcluster-cookbook PR 3262 and 3267 (import states fired on healthy file systems, until IDLE was taken for
    healthy and trouble had to last).
    """
    try:
        word = node.sys.read("fs/lustre/health_check")
    except SourceMissing as error:
        if any(mount.fstype == "lustre" for mount in node.mounts()):
            return unknown(f"a Lustre file system is mounted, and the client does not say how it is: {error}")
        return not_applicable("no Lustre client is loaded")
    findings, gaps = list(_health(word)), [] if _is_known(word) else [f"health_check says {word!r}: expected 'healthy'"]
    readings: list[Reading] = []
    if settings.imports:
        try:
            for where, text in _imports(node):
                findings.extend(_import(where, text))
                readings.extend(_attempts(where, text, node.boot_id))
        except SourceError as error:
            gaps.append(f"the states of the connections: {error}; is debugfs mounted? Or set imports = false")
    return judged(findings, readings, gaps=gaps)


def _is_known(word: str) -> bool:
    return word == "healthy" or "LBUG" in word or "NOT HEALTHY" in word


def _health(word: str) -> Iterator[Finding]:
    if "LBUG" in word:
        yield LBUG.at(NODE, "/sys/fs/lustre/health_check says LBUG", health_check=word)
    elif "NOT HEALTHY" in word:
        yield NOT_HEALTHY.at(NODE, "/sys/fs/lustre/health_check says NOT HEALTHY", health_check=word)


def _imports(node: Node) -> Iterator[tuple[Component, str]]:
    """Every connection with the text of its ``import`` file. Raises SourceError where the folder is not to be seen."""
    root = next((root for root in _IMPORTS if any(node.sys.exists(f"{root}/{kind}") for kind in _KINDS)), _IMPORTS[0])
    node.sys.names(root)
    for kind in _KINDS:
        for device in node.sys.names(f"{root}/{kind}") if node.sys.exists(f"{root}/{kind}") else ():
            path = f"{root}/{kind}/{device}/import"
            if node.sys.exists(path):
                yield _component(device), node.sys.read(path)


def _component(device: str) -> Component:
    """Named as ``kernel.lustre`` names it, without what is new with every mount: ``6cz4zbev-OST0000-osc``."""
    return Component(kind="lustre", id=_MOUNT_SUFFIX.sub("", device))


def _import(where: Component, text: str) -> Iterator[Finding]:
    found = _STATE.search(text)
    if found is None or found[1] not in _WELL | _TROUBLED:
        raise SourceUnreadable(f"{where.id}/import: {text[:80]!r}: expected a known state, such as 'state: FULL'")
    if found[1] in _TROUBLED:
        target = name[1] if (name := _TARGET.search(text)) else "its server"
        yield DISCONNECTED.at(where, f"the connection to {target} is in state {found[1]}", state=found[1])


def _attempts(where: Component, text: str, boot_id: str) -> Iterator[Reading]:
    if found := _ATTEMPTS.search(text):
        name = "lustre_connection_attempts_total"
        yield Reading(component=where, name=name, value=int(found[1]), kind=ReadingKind.COUNTER, epoch=boot_id)
