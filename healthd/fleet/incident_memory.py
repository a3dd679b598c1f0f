"""The memory of incidents on disk: a file in the state directory of the controller, which every reader there may use.

The leading controller alone writes it. Losing it loses the ends and the slow stories, and no open incident: those are
found again in what nodes have now, under the same id.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from healthd.config.schema.config import PolicySection
from healthd.core.encodable import NOT_JSON
from healthd.core.errors import StoreError
from healthd.daemon.textfile import replace_file
from healthd.fleet.incidents import IncidentMemory, IncidentRules

FILE = "incidents.json"
_READS = msgspec.json.Decoder(IncidentMemory)


def rules_of(policy: PolicySection) -> IncidentRules:
    """The limits by which many nodes with one finding are one thing: those that hold back their repairs."""
    return IncidentRules(nodes=policy.same_fault_nodes, minutes=policy.same_fault_minutes)


def kept_memory(folder: str | Path) -> IncidentMemory | None:
    """The memory as it was kept last; None where there is none, or one of another version."""
    try:
        return _READS.decode((Path(folder) / FILE).read_bytes())
    except (OSError, *NOT_JSON):
        return None


def keep_memory(folder: str | Path, memory: IncidentMemory) -> None:
    """Keep it, whole. Raises StoreError."""
    path = Path(folder) / FILE
    try:
        replace_file(path, msgspec.json.encode(memory).decode() + "\n")
    except OSError as error:
        raise StoreError(f"{path}: not written: {error.strerror or error}") from error
