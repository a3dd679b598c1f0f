"""One code on very many parts: the first of them by name, and all others as one finding on the node.

Pure. A user may choose the name of a part (a mount, a process, a device in a kernel line), and each name would be a
fault of its own: they must not cost more memory than the hardware of a large node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from healthd.core.model import NODE, REMEDY_RANK, SEVERITY_RANK, Finding
from healthd.judge.hold_down import Key

MOST = 64
"""Parts of one code that are faults under their own names."""
_NAMED = 8
"""Parts that the finding on the node names."""


def without_crowds(seen: Iterable[tuple[Key, Finding]], known: Iterable[Key]) -> list[tuple[Key, Finding]]:
    """The findings of one check run, each with its key: of the parts of a code beyond ``MOST`` one finding, on the
    node.

    ``known``: the keys that are remembered already, which keep their names.
    """
    named: dict[str, set[str]] = {}
    for where, code in known:
        named.setdefault(code, set()).add(where)
    kept: list[tuple[Key, Finding]] = []
    crowds: dict[str, list[Finding]] = {}
    for (where, code), finding in seen:
        parts = named.setdefault(code, set())
        if where in parts or len(parts) < MOST:
            parts.add(where)
            kept.append(((where, code), finding))
        else:
            crowds.setdefault(code, []).append(finding)
    return [*_apart(kept, crowds), *(((str(NODE), code), _crowd(each)) for code, each in crowds.items())]


def _apart(kept: Iterable[tuple[Key, Finding]], crowds: dict[str, list[Finding]]) -> list[tuple[Key, Finding]]:
    """The findings outside a crowd. A finding on the node itself joins the crowd of its code, which is on the node."""
    apart = []
    for (where, code), finding in kept:
        if code in crowds and where == str(NODE):
            crowds[code].append(finding)
        else:
            apart.append(((where, code), finding))
    return apart


def _crowd(findings: Sequence[Finding]) -> Finding:
    """One finding on the node for all of these: it calls for the remedy of the worst of them."""
    worst = max(findings, key=lambda each: (REMEDY_RANK[each.remedy], SEVERITY_RANK[each.severity]))
    parts = list(dict.fromkeys(str(each.component) for each in findings))
    evidence: dict[str, Any] = {"components": parts[:_NAMED], "parts": len(parts), "count": sum(map(_count, findings))}
    if pids := sorted(set(chain.from_iterable(map(_pids, findings)))):
        evidence["pids"] = pids
    return replace(
        worst,
        component=NODE,
        severity=max((each.severity for each in findings), key=SEVERITY_RANK.__getitem__),
        message=f"on more than {MOST} parts, such as {worst.component}: {worst.message}",
        evidence=evidence,
        time=max((each.time for each in findings if each.time is not None), default=None),
    )


def _count(finding: Finding) -> int:
    count = finding.evidence.get("count", 1)
    return count if isinstance(count, int) else 1


def _pids(finding: Finding) -> list[int]:
    pids = finding.evidence.get("pids") or [finding.evidence.get("pid")]
    return [pid for pid in pids if isinstance(pid, int)] if isinstance(pids, list | tuple) else []
