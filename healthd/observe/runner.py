"""Runs one check and turns whatever happens into an Outcome, whose parts have names that can be shown everywhere.

This is the one place with a broad ``except``: a check that raises, for whatever cause, is *unknown*, and says why.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from msgspec.structs import replace

from healthd.core.check import Check, unknown
from healthd.core.encodable import writable
from healthd.core.errors import SourceError
from healthd.core.model import Component, Outcome, Result
from healthd.core.node import Node

_NAME_CHARACTERS = 128
_SHOWN_CHARACTERS = 119
"""How much of a longer name is shown: with ``~`` and eight digits of its digest it has the length of a name."""


def run_check(check: Check, node: Node, settings: Any, *, optional: bool = False) -> Outcome:
    """One run. Findings and clearances without a time get that of the start of the run; the duration is monotonic."""
    at, started = datetime.now(UTC), time.monotonic()
    result = _result(check, node, settings, at)
    return Outcome(check=check.name, result=result, at=at, duration_s=time.monotonic() - started, optional=optional)


def _result(check: Check, node: Node, settings: Any, at: datetime) -> Result:
    """The result of the check. Every text in it can be stored, sent and shown, whatever the machine printed."""
    try:
        return _named(writable(_stamped(_counted(check.run(node, settings)), at)))
    except SourceError as error:
        return writable(unknown(str(error), error.do))
    except Exception as error:  # noqa: BLE001 - the contract: a raising check is unknown, never absent, never fatal
        message = f"the check failed: {type(error).__name__}: {error}; this is a defect of {check.name}"
        do = f'report it; until it is fixed, `[checks."{check.name}"] optional = true` keeps it from counting'
        return writable(unknown(message, do))


def _counted(result: Result) -> Result:
    """The result, whose readings are numbers. Raises TypeError for another: history would fail on it."""
    for reading in result.readings:
        if not isinstance(reading.value, int | float):
            raise TypeError(f"{reading.name} of {reading.component} is {reading.value!r}; expected a number")
    return result


def _stamped(result: Result, at: datetime) -> Result:
    """Evidence that faults are over ends none that came while the check ran."""
    if all(each.time for each in result.findings) and all(each.time for each in result.clearances):
        return result
    return replace(
        result,
        findings=tuple(each if each.time else replace(each, time=at) for each in result.findings),
        clearances=tuple(each if each.time else replace(each, time=at) for each in result.clearances),
    )


def _named(result: Result) -> Result:
    """The result, with component names that fit into a label, a line and a row. A user may have named a mount, a device
    in a kernel line, or a plug-in's component."""
    parts = (each.component for items in (result.findings, result.readings, result.clearances) for each in items)
    reported = chain(parts, (component for component, _ in result.not_reported))
    if all(map(_is_plain, {id(part): part for part in reported}.values())):  # one object has hundreds of readings
        return result
    return replace(
        result,
        findings=tuple(replace(each, component=_plain(each.component)) for each in result.findings),
        readings=tuple(replace(each, component=_plain(each.component)) for each in result.readings),
        clearances=tuple(replace(each, component=_plain(each.component)) for each in result.clearances),
        not_reported=tuple((_plain(component), code) for component, code in result.not_reported),
    )


def _is_plain(component: Component) -> bool:
    return all(map(_is_shown, component.all_names()))


def _is_shown(name: str) -> bool:
    return len(name) <= _NAME_CHARACTERS and name.isprintable()


def _plain(component: Component) -> Component:
    """The same name for the same component, and different ones for different components: the digest distinguishes names
    that were cut or replaced. An alias that cannot be shown is dropped."""
    if _is_plain(component):
        return component
    name = str(component)
    aliases = tuple(each for each in component.aliases if _is_shown(f"{component.kind}:{each}"))
    if _is_shown(name):
        return replace(component, aliases=aliases)
    import hashlib  # loads OpenSSL; nearly every name can be shown as it is

    shown = "".join(each if each.isprintable() else "?" for each in name[:_SHOWN_CHARACTERS])
    kind, _, where = shown.partition(":")
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return Component(kind=kind, id=f"{where}~{digest}", aliases=aliases)
