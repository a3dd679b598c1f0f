"""The check ``lustre.client``: the health of the Lustre client in this kernel, and of its connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from healthd.checklib.lustre import CONNECTED, KINDS, TROUBLED, Import, client_devices, connection, read_import
from healthd.core.check import FindingCode, check, judged, not_applicable, nothing_expected, unknown
from healthd.core.errors import SourceError, SourceMissing
from healthd.core.model import (
    NODE,
    Clearance,
    ClearsBy,
    Component,
    Finding,
    Reading,
    ReadingKind,
    Remedy,
    Result,
    Severity,
)
from healthd.core.node import Node

LBUG = FindingCode(
    code="lustre.lbug",
    severity=Severity.CRITICAL,
    remedy=Remedy.REBOOT_NODE,
    meaning="The Lustre client hit an assertion (LBUG): only a reboot makes it work again",
)
NOT_HEALTHY = FindingCode(
    code="lustre.not_healthy",
    severity=Severity.WARNING,
    remedy=Remedy.ASK_HUMAN,
    meaning="The Lustre client reports itself not healthy",
)
DISCONNECTED = FindingCode(
    code="lustre.disconnected",
    severity=Severity.WARNING,
    remedy=Remedy.WATCH,
    meaning="A connection of the Lustre client to a server has been down for minutes",
    lasting_s=300.0,
    symptom_of=(LBUG.code, "lustre.assertion", "lustre.io.hung", "host.network.link_down"),
)


_NONE_LEFT = Clearance(by=ClearsBy.LOG_LINE, note="no Lustre connection is left", code="lustre.connection_lost")


class LustreClientSettings(Struct, frozen=True, kw_only=True):
    """Whether ``lustre.client`` reads the connections."""

    imports: bool = True
    """Whether the state of each connection is read: below /proc/fs/lustre up to Lustre 2.16, in debugfs from 2.17 on.
    Only root reads debugfs, and some systems do not mount it (kernel lockdown, containers): there it is unknown, unless
    you switch this off."""


@check("lustre.client", interval_s=60, settings=LustreClientSettings, codes=(LBUG, NOT_HEALTHY, DISCONNECTED))
def lustre_client(node: Node, settings: LustreClientSettings) -> Result:
    """The Lustre client reports itself healthy, and is connected to its servers.

    An assertion that failed (LBUG) leaves threads of the kernel stuck for good, so it keeps jobs off and calls for a
    reboot. An idle connection is healthy: the client closes connections that it does not use. A connection in recovery
    is a finding only when that lasts, and never more than a warning: fail-overs and maintenance windows look the same
    from every node. A connection that is there ends ``lustre.connection_lost``: of many that are restored at once the
    kernel log names one. So does a client without any connection, and a client that is not loaded has no fault. A
    device whose state cannot be read is unknown, and so is a mounted client that shows no device. The check skips the
    connection to the management server (mgc), which carries no I/O. Reading these files sends nothing to a server, so
    it cannot hang on one. Unproven on hardware: no Lustre client was at hand; the files are those of the published
    sources.

    Sources: lustre-release lustre/obdclass/obd_sysfs.c (health_check), lustre/ptlrpc/import.c (states);
    libcfs/libcfs/debug.c (lines that are alike within a time are printed once: "Skipped 1 previous similar message");
    lustre/mdc/lproc_mdc.c and lustre/osc/lproc_osc.c (``import`` in procfs in 2.12 to 2.16, in debugfs from 2.17);
    aws-parallelcluster-cookbook PR 3262 and 3267 (import states fired on healthy file systems, until IDLE was taken for
    healthy and trouble had to last).
    """
    try:
        word = node.sys.read("fs/lustre/health_check")
    except SourceMissing as error:
        if any(mount.fstype == "lustre" for mount in node.mounts()):
            why = f"a Lustre file system is mounted, but the client does not report its health: {error}"
            return unknown(why, "see whether its modules are loaded, `lsmod`; in a container mount the host's /sys")
        return _without_client(node)
    findings = list(_health(word))
    undecided = [] if _is_known(word) else [f"/sys/fs/lustre/health_check says {word!r}; expected 'healthy'"]
    found, is_used = list[tuple[Component, Import]](), not settings.imports
    for kind in KINDS if settings.imports else ():
        devices = client_devices(node, kind)
        is_used = is_used or bool(devices)
        unread: list[str] = []
        for device in devices:
            try:
                found.append((connection(device), read_import(node, kind, device)))
            except SourceError as error:
                unread.append(str(error))
        undecided.extend(_gap(node, kind, devices, unread))
    findings += [_disconnected(where, each) for where, each in found if each.state in TROUBLED]
    over = [*_restored(found), *(() if is_used or undecided else (_NONE_LEFT,))]
    return judged(findings, _readings(found, node.boot_id), undecided=undecided, clearances=over)


def _without_client(node: Node) -> Result:
    """Where the module is not loaded, as after a boot with an automount that nothing uses, its trouble is over."""
    if node.sys.exists("module") and not node.sys.exists("module/lustre"):
        return replace(nothing_expected("no Lustre client is loaded"), clearances=(_NONE_LEFT,))
    return not_applicable("this kernel does not report whether a Lustre client is loaded")


def _is_known(word: str) -> bool:
    return word == "healthy" or "LBUG" in word or "NOT HEALTHY" in word


def _health(word: str) -> Iterator[Finding]:
    if "LBUG" in word:
        yield LBUG.at(NODE, "/sys/fs/lustre/health_check says LBUG", health_check=word)
    elif "NOT HEALTHY" in word:
        yield NOT_HEALTHY.at(NODE, "/sys/fs/lustre/health_check says NOT HEALTHY", health_check=word)


def _gap(node: Node, kind: str, devices: Sequence[str], unread: Sequence[str]) -> Iterator[str]:
    """Why some connections of this kind have no state; at most one line, however many they are."""
    if unread:
        advice = "mount debugfs, or set imports = false"
        yield f"{len(unread)} of {len(devices)} {kind} connections report no state: {unread[0]}; {advice}"
    elif not devices and any(mount.fstype == "lustre" for mount in node.mounts()):
        yield f"a Lustre file system is mounted, but /sys, /proc and debugfs show no {kind} device"


def _disconnected(where: Component, found: Import) -> Finding:
    message = f"the connection to {found.target} is in state {found.state}"
    return DISCONNECTED.at(where, message, state=found.state)


def _restored(found: Sequence[tuple[Component, Import]]) -> Iterator[Clearance]:
    """Of many connections that are restored at once the client logs one: the faults of the others end here."""
    broken = {where for where, each in found if each.state not in CONNECTED}
    for where in dict.fromkeys(where for where, _ in found if where not in broken):
        note = "the client is connected to it again"
        yield Clearance(by=ClearsBy.LOG_LINE, component=where, note=note, code="lustre.connection_lost")


def _readings(found: Sequence[tuple[Component, Import]], boot_id: str) -> Iterator[Reading]:
    name, kind = "lustre_connection_attempts_total", ReadingKind.COUNTER
    for where, each in found:
        if each.attempts is not None:
            yield Reading(component=where, name=name, value=each.attempts, kind=kind, epoch=boot_id)
