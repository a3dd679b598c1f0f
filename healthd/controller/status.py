"""The last status of the leading controller, for ``healthd controller --status``. On Slurm it is a file in the state
directory, which all controllers share; on Kubernetes an annotation of a Lease, which every replica and operator reads.

On Kubernetes it is written at a change, and at least every ``KEEP_S`` seconds: its age shows whether a controller still
leads.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from healthd.core.encodable import NOT_JSON
from healthd.core.errors import StoreError
from healthd.core.json_documents import json_document
from healthd.core.model import Mode
from healthd.daemon.textfile import replace_file
from healthd.remediation.controller.node_status import NodeStatus

SCHEMA = "healthd.controller/v1"
KEEP_S = 20.0
FILE = "status.json"
_MOST_BYTES = 150_000  # all annotations of an object have 262,144 together, with their keys


class _ShownNode(Struct, frozen=True, kw_only=True):
    """The part of a node's status that is read."""

    node: str
    message: str
    page: bool


class _ShownStatus(Struct, frozen=True, kw_only=True):
    """The part of a status that is read. Its text may be of another version, with more keys, or of another origin."""

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    leader: str
    mode: str
    nodes: tuple[_ShownNode, ...]
    notices: tuple[str, ...] = ()
    left_out: int = 0


_READS_STATUS = msgspec.json.Decoder(_ShownStatus)


class KeptText(Protocol):
    """One text that outlives its writer. Either call raises StoreError."""

    def kept(self) -> str:
        """The text that was kept last, or ""."""

    def keep(self, text: str) -> None:
        """Keep this text."""


class StatusBoard(Protocol):
    """Where the status is stored. Raises StoreError."""

    def show(self, status: Mapping[str, Any]) -> None:
        """Show this one; only the controller that leads may."""


def status_of(
    mode: Mode, statuses: Sequence[NodeStatus], *, leader: str, now: datetime, notices: Sequence[str] = ()
) -> dict[str, Any]:
    """The status as it is kept. ``notices``: a sentence for each receiver that takes no messages."""
    return {
        "schema": SCHEMA,
        "at": now.isoformat(),
        "leader": leader,
        "mode": mode,
        "notices": list(notices),
        "nodes": [asdict(each) for each in statuses],
    }


class StatusFile:
    """A file in the state directory of a head node."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def show(self, status: Mapping[str, Any]) -> None:
        """Replace the file whole. Raises StoreError."""
        try:
            replace_file(self._path, json_document(status))
        except OSError as error:
            raise StoreError(f"{self._path}: not written: {error.strerror or error}") from error

    def shown(self) -> dict[str, Any] | None:
        """The status in the file; None for no file, or for one that is no status. Raises StoreError."""
        try:
            return _read(self._path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise StoreError(f"{self._path}: not read: {error.strerror}; run it as root") from error


class StatusNote:
    """A text of the cluster. ``monotonic_s``: a monotonic clock, in seconds."""

    def __init__(self, note: KeptText, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._note, self._monotonic_s = note, monotonic_s
        self._last: tuple[float, Mapping[str, Any]] | None = None

    def show(self, status: Mapping[str, Any]) -> None:
        """Write the status where it has changed, or is ``KEEP_S`` old. Raises StoreError."""
        now_s, body = self._monotonic_s(), {key: value for key, value in status.items() if key != "at"}
        if self._last is not None and self._last[1] == body and now_s - self._last[0] < KEEP_S:
            return
        self._note.keep(fitted(status, _MOST_BYTES))
        self._last = (now_s, body)

    def shown(self) -> dict[str, Any] | None:
        """The status in the text; None where it is none. Raises StoreError where the cluster does not answer."""
        return _read(self._note.kept())


def fitted(status: Mapping[str, Any], most_bytes: int) -> str:
    """The status as text of at most so many bytes. Nodes that need an operator come first; ``left_out`` counts those
    that do not fit."""
    nodes = sorted(status["nodes"], key=lambda each: not each["page"])
    room = most_bytes - len(json.dumps({**status, "nodes": [], "left_out": len(nodes)}))
    kept: list[Any] = []
    for each in nodes:
        room -= len(json.dumps(each)) + 2
        if room < 0:
            break
        kept.append(each)
    kept.sort(key=lambda each: each["node"])
    return json.dumps({**status, "nodes": kept, "left_out": len(nodes) - len(kept)})


def _read(text: str) -> dict[str, Any] | None:
    try:
        _READS_STATUS.decode(text)
        status: dict[str, Any] = json.loads(text)
    except NOT_JSON:
        return None
    return status
