"""The canary: the first repairs of the fleet after a change of healthd, its policy or the driver ask an operator. Pure.

A revision stands for all that decides about a repair: the version of healthd, the rules and limits of its policy, the
driver of the node. Each act in the history of a handoff record carries the revision that decided about it, so the
records of all nodes count how often a revision has repaired with success. Until it has often enough, each of its
repairs waits as in the mode ``approve``; then those that still wait go on. Only what has ended well counts, so nodes
that ask at the same moment cannot pass each other. A record that is lost makes the fleet ask again, and lets nothing
through.
"""

from __future__ import annotations

from zlib import crc32

from msgspec.structs import replace

from healthd.remediation.decide.ledger import Bounds, FleetRecords
from healthd.remediation.decide.rules import Policy
from healthd.remediation.records.handoff import PastAct, RepairResult


def revision_of(version: str, policy: Policy, bounds: Bounds, driver: str) -> str:
    """The revision of what decides, as eight hexadecimal digits. ``driver``: "" where it cannot be read, which is a
    revision of its own. How many repairs the canary takes is no part of it."""
    decides = (version, policy.rules, replace(bounds, canary_repairs=0), driver)
    return f"{crc32(repr(decides).encode()):08x}"


def worked(records: FleetRecords, revision: str) -> int:
    """How many repairs of this revision, on whichever node, have ended and helped."""
    past = (each for record in records.records.values() for each in record.history if each.act is not PastAct.RETURN)
    return sum(each.revision == revision and each.outcome is RepairResult.HELPED for each in past)


def canary(records: FleetRecords, revision: str, bounds: Bounds) -> str:
    """Why the next repair of this revision asks an operator, or "". The words are the same on every node of it, and do
    not change from one repair to the next. ``revision``: "" where nothing is counted."""
    if not revision or worked(records, revision) >= bounds.canary_repairs:
        return ""
    first = (
        "repair of the fleet asks"
        if bounds.canary_repairs == 1
        else f"{bounds.canary_repairs} repairs of the fleet ask"
    )
    return f"canary: the first {first} after a change of healthd, policy or driver (now revision {revision})"
