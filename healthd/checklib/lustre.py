"""The connections of the Lustre client in each release: devices by kind, and their ``import`` files.

Pure over the Node protocol, like a check. Source: lustre-release, lproc_mdc.c and lproc_osc.c (``obd_vars`` in procfs
up to 2.16, in debugfs from 2.17); obd_sysfs.c (a folder in sysfs for each device, since 2.12); import.c
(ptlrpc_import_state_name).
"""

from __future__ import annotations

import contextlib
import re

from msgspec import Struct

from healthd.core.errors import SourceError, SourceUnreadable
from healthd.core.model import Component
from healthd.core.node import Node

_PROC, _DEBUG, _SYS = "fs/lustre", "kernel/debug/lustre", "fs/lustre"
KINDS = {kind: re.compile(rf".+-{kind}-[0-9a-f]{{1,16}}") for kind in ("mdc", "osc")}
"""The kinds of connection that I/O uses, and the names of a client's devices: the folders hold files beside them, and
on a server devices of its own."""

CONNECTED = frozenset({"FULL", "IDLE"})
"""IDLE: the client itself closes connections that it does not use."""
TROUBLED = frozenset({"DISCONN", "CONNECTING", "REPLAY", "REPLAY_LOCKS", "REPLAY_WAIT", "RECOVER", "EVICTED", "CLOSED"})
_NOT_YET = "NEW"
_STATE = re.compile(r"^[ \t]*state:[ \t]*([A-Z_]+)[ \t]*$", re.MULTILINE)
_ATTEMPTS = re.compile(r"^[ \t]*connection_attempts:[ \t]*(\d{1,18})[ \t]*$", re.MULTILINE)
_MOUNT_SUFFIX = re.compile(r"-[0-9a-f]{8,16}\Z")
_TARGET = re.compile(r"^[ \t]*target:[ \t]*(\S+)[ \t]*$", re.MULTILINE)


class Import(Struct, frozen=True, kw_only=True):
    """One connection. ``state``: NEW, or one of CONNECTED and TROUBLED. ``attempts``: to connect, None where they are
    not reported."""

    state: str
    target: str
    attempts: int | None


def connection(device: str) -> Component:
    """The connection behind a client's device, without the suffix, which differs with every mount:
    ``lustre:6cz4zbev-OST0000-osc``."""
    return Component(kind="lustre", id=_MOUNT_SUFFIX.sub("", device))


def client_devices(node: Node, kind: str) -> tuple[str, ...]:
    """The client's devices of a kind, by whichever tree names them; sysfs does on all releases since 2.12."""
    names: set[str] = set()
    for tree, root in ((node.sys, _SYS), (node.proc, _PROC), (node.sys, _DEBUG)):
        with contextlib.suppress(SourceError):  # one tree may be hidden; that none shows a device is undecided
            names.update(tree.names(f"{root}/{kind}"))
    return tuple(sorted(filter(KINDS[kind].fullmatch, names)))


def read_import(node: Node, kind: str, device: str) -> Import:
    """The device's ``import`` file. Raises SourceUnreadable where neither of its paths can be read, or it has no known
    state."""
    text = _import_text(node, kind, device)
    state, target, attempts = (pattern.search(text) for pattern in (_STATE, _TARGET, _ATTEMPTS))
    if state is None or state[1] not in CONNECTED | TROUBLED | {_NOT_YET}:
        raise SourceUnreadable(f"{device}/import: {text[:80]!r}: expected a known state, such as 'state: FULL'")
    return Import(
        state=state[1], target=target[1] if target else "its server", attempts=int(attempts[1]) if attempts else None
    )


def _import_text(node: Node, kind: str, device: str) -> str:
    problems = []
    for tree, root in ((node.proc, _PROC), (node.sys, _DEBUG)):
        try:
            return tree.read(f"{root}/{kind}/{device}/import")
        except SourceError as error:
            problems.append(str(error))
    raise SourceUnreadable(f"{device}: {'; '.join(problems)}")
