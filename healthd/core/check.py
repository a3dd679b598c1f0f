"""The check contract: one file under ``checks/`` holds one check, and everything else follows from it.

A check is a function of a :class:`~healthd.core.node.Node` and its settings; it returns a
:class:`~healthd.core.model.Result`. It never sleeps, logs, prints, keeps state, opens a file, starts a process or knows
a back end. It may raise any :class:`~healthd.core.errors.SourceError`: the runner makes *unknown* of it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import RegistrationError
from healthd.core.model import (
    Clearance,
    ClearsBy,
    Component,
    Finding,
    Reading,
    Remedy,
    Repeats,
    Result,
    Severity,
    Status,
    status_of,
)
from healthd.core.node import KernelRecord, Node


class NoSettings(Struct, frozen=True, kw_only=True):
    """The settings of a check without settings."""


class FindingCode(Struct, frozen=True, kw_only=True):
    """One code of a check's findings: a stable slug with its meaning, its severity and the remedy that it calls for.

    A code that ends in ``.*`` stands for a family (``gpu.xid.*``) whose members a table describes.

    ``lasting_s``: for a level. It counts only once every check run has reported it for so long; a run that is unknown
    does not count. Until then it is in no diagnosis. ``healthd check`` without a daemon runs once and cannot wait:
    there it is a warning at most, calls for no more than watching, and says so. ``repeats``: it counts only once it was
    seen so many times within a window.
    """

    code: str
    severity: Severity
    remedy: Remedy
    meaning: str
    clears_by: ClearsBy | None = None
    symptom_of: tuple[str, ...] = ()
    lasting_s: float = 0.0
    repeats: Repeats | None = None

    def at(self, component: Component, message: str, *, time: datetime | None = None, **evidence: Any) -> Finding:
        """A finding of this code on ``component``; ``evidence`` holds the values and the limit that they broke."""
        return Finding(
            code=self.code,
            severity=self.severity,
            remedy=self.remedy,
            component=component,
            message=message,
            evidence=evidence,
            time=time,
            clears_by=self.clears_by,
            symptom_of=self.symptom_of,
            lasting_s=self.lasting_s,
            repeats=self.repeats,
        )


class CodeForm(Struct, frozen=True, kw_only=True):
    """The meaning of a code, in one of the forms that its finding may have.

    ``form``: what tells this form from the others of the code: ``fatal`` where the line says so; "" for the plain one.
    ``reason``: why this severity and remedy; ``source``: where that was read, "" where the check's docstring says it.
    ``notes``: what else there is to know, a sentence each.
    """

    code: str
    meaning: str
    severity: Severity
    remedy: Remedy
    clears_by: ClearsBy | None
    form: str = ""
    reason: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()


Explain = Callable[[str], tuple[CodeForm, ...]]
"""The forms of a code of the check's own family, the plain one first; none for any other code."""

# Limits, which history judges over time. A limit names a reading and the code to find; ``source`` is the source of its
# number. The first value of an epoch is a baseline for every limit on a counter, and so is a value that went backwards.


class Limit(Struct, frozen=True, kw_only=True):
    """Growth: ``reading`` may grow by at most ``max_increase`` within one epoch. Growth counts once.

    A reading that carries its own ``limit`` is judged by that one, here and in :class:`Rate`.
    """

    reading: str
    max_increase: float
    code: FindingCode
    source: str

    @property
    def text(self) -> str:
        """The limit in words, for a table."""
        return f"grows by {self.max_increase:g}"


class Rate(Struct, frozen=True, kw_only=True):
    """A counter may grow by at most ``max_increase`` in any ``window_s``. A level: it ends when the window is calm.

    ``calm_s``: how long after such growth it ends, where the window is shorter: a counter that grows about as fast as
    it may would open and end the fault every minute, in the audit trail and in the cluster.
    """

    reading: str
    max_increase: float
    window_s: float
    code: FindingCode
    source: str
    calm_s: float = 0.0

    @property
    def text(self) -> str:
        """The limit in words, for a table."""
        return f"grows by {self.max_increase:g} in {self.window_s:g} s"


class Stall(Struct, frozen=True, kw_only=True):
    """A counter must advance: standing still for ``for_s``, over three check runs at least, is a level until it moves.

    ``among_siblings``: it is judged only while the same reading of another component moves. Where all stand still they
    share the cause, and no component stands out; the level neither begins nor ends then.
    """

    reading: str
    for_s: float
    code: FindingCode
    source: str
    among_siblings: bool = False

    @property
    def text(self) -> str:
        """The limit in words, for a table."""
        return f"stands still for {self.for_s:g} s{', while a sibling moves' if self.among_siblings else ''}"


class Learned(Struct, frozen=True, kw_only=True):
    """A gauge must not fall below the highest value that it had on this instance. It learns again only after a new
    instance id, another epoch (a count's is the instance type, which EC2 may change under the same id), or a command of
    the operator; an empty epoch is no other one. Omit the reading where the configuration sets the expected value.

    ``within``: the share of the highest value that it may fall to, 0 to 1: a count stays, a bandwidth is noisy.
    """

    reading: str
    code: FindingCode
    source: str
    within: float = 1.0

    @property
    def text(self) -> str:
        """The limit in words, for a table."""
        share = "" if self.within == 1 else f"{self.within:.0%} of "
        return f"stays at {share}the highest value seen on this instance"


class Accelerating(Struct, frozen=True, kw_only=True):
    """A counter of corrected errors may be noisy, but its daily rate must not grow from day to day. A level.

    How it tells growth from noise is explained in ``healthd.judge.trends``.
    """

    reading: str
    code: FindingCode
    source: str

    @property
    def text(self) -> str:
        """The limit in words, for a table."""
        return "does not grow faster from day to day"


Trigger = Literal["interval", "kernel", "active"]
AnyLimit = Limit | Rate | Stall | Learned | Accelerating


class Check(Struct, frozen=True, kw_only=True):
    """A registered check. ``on`` is ``"interval"``, ``"kernel"`` for a check that runs on each batch of kernel records,
    or ``"active"`` for one that puts load on the node's hardware: it runs only on demand, and only on an idle node.

    ``needles``: a kernel check sees only records whose text contains one of these, or begins with one that is written
    with a ``^`` in front, which is much cheaper. Settings with an attribute ``needles`` add their own. ``wants``:
    whether the check judges a text, with these settings. Of a past log, which may hold millions of harmless lines with
    a needle, only the lines that a check wants are judged; without ``wants``, all are.
    """

    name: str
    run: Callable[[Node, Any], Result]
    title: str
    doc: str
    interval_s: float
    timeout_s: float
    settings: type
    codes: tuple[FindingCode, ...] = ()
    limits: tuple[AnyLimit, ...] = ()
    on: Trigger = "interval"
    needles: tuple[str, ...] = ()
    wants: Callable[[str, Any], bool] | None = None
    explain: Explain | None = None

    @property
    def often(self) -> str:
        """When it runs, in words."""
        match self.on:
            case "kernel":
                return "as it happens"
            case "active":
                return "with --active"
            case "interval":
                return f"every {self.interval_s:g} s"

    def needles_with(self, settings: Any) -> tuple[str, ...]:
        """Its needles, and those that its settings add."""
        return (*self.needles, *getattr(settings, "needles", ()))

    def reads(self, records: Sequence[KernelRecord], settings: Any) -> bool:
        """Whether a kernel check may find something in these records. A search in many of them costs more than a run,
        so many are taken to hold something."""
        needles = _plain(self.needles_with(settings))
        return len(records) > _FEW or any(
            record.source != "kernel" or any(needle in record.text for needle in needles) for record in records
        )


_FEW = 8


@cache
def _plain(needles: tuple[str, ...]) -> tuple[str, ...]:
    """The needles without their anchors."""
    return tuple(needle.removeprefix("^") for needle in needles)


_NAME = re.compile(r"[a-z][a-z0-9]*(\.[a-z][a-z0-9_]*)+")
_registry: dict[str, Check] = {}


def check(
    name: str,
    *,
    interval_s: float = 60.0,
    timeout_s: float = 10.0,
    settings: type = NoSettings,
    codes: Iterable[FindingCode] = (),
    limits: Iterable[AnyLimit] = (),
    on: Trigger = "interval",
    needles: Iterable[str] = (),
    wants: Callable[[str, Any], bool] | None = None,
    explain: Explain | None = None,
) -> Callable[[Callable[[Node, Any], Result]], Callable[[Node, Any], Result]]:
    """Register the decorated function as the check ``name``.

    ``interval_s``: how often the daemon runs it. ``timeout_s``: how long a caller waits for a run.
    ``settings``: a frozen struct, every field with a default and a docstring; ``[checks."<name>"]`` fills it.
    ``explain``: for a family of codes, the forms of ``gpu.xid.79``, or none if it is not one of the family.

    Raises RegistrationError when the name or a code is taken, the name is malformed, the settings are no struct, a
    limit or a code could not be judged, or the function has no docstring.
    """
    codes, limits = tuple(codes), tuple(limits)

    def register(function: Callable[[Node, Any], Result]) -> Callable[[Node, Any], Result]:
        doc = (function.__doc__ or "").strip()
        if not doc:
            raise RegistrationError(
                f"check {name!r} in {function.__module__} has no docstring: its first line is the title"
            )
        if not _NAME.fullmatch(name):
            raise RegistrationError(
                f"check name {name!r} in {function.__module__}: expected dotted lower case, such as gpu.ecc"
            )
        if name in _registry and _origin(_registry[name].run) != _origin(function):
            taken = _origin(_registry[name].run)
            raise RegistrationError(f"check name {name!r} of {_origin(function)} is already taken by {taken}")
        if not issubclass(settings, Struct):
            raise RegistrationError(
                f"check {name!r}: settings = {settings.__qualname__}; expected a class of "
                f"msgspec.Struct: class {settings.__qualname__}(Struct, frozen=True, kw_only=True)"
            )
        if on == "kernel" and not (needles or hasattr(settings, "needles")):
            raise RegistrationError(f"check {name!r}: no needles, so it would read no line; give needles=(TEXT, ...)")
        _refuse_bad_codes(name, codes)
        _refuse_bad_limits(name, codes, limits)
        _registry[name] = Check(
            name=name,
            run=function,
            title=doc.splitlines()[0].rstrip("."),
            doc=doc,
            interval_s=interval_s,
            timeout_s=timeout_s,
            settings=settings,
            codes=codes,
            limits=limits,
            on=on,
            needles=tuple(needles),
            wants=wants,
            explain=explain,
        )
        return function

    return register


def _origin(function: Callable[[Node, Any], Result]) -> str:
    """The origin of a function: the same when its module is loaded again, another for a function of the same name."""
    return f"{function.__module__}.{function.__qualname__}"


def _refuse_bad_codes(name: str, codes: tuple[FindingCode, ...]) -> None:
    for other in _registry.values():
        if other.name != name and (shared := {code.code for code in codes} & {code.code for code in other.codes}):
            raise RegistrationError(f"check {name!r}: code {min(shared)!r} is already taken by check {other.name!r}")
    for code in codes:
        if code.lasting_s and (code.clears_by is not None or code.repeats is not None):
            raise RegistrationError(
                f"check {name!r}: {code.code!r} has lasting_s, which is for a level; expected no clears_by, no repeats"
            )


def _refuse_bad_limits(name: str, codes: tuple[FindingCode, ...], limits: tuple[AnyLimit, ...]) -> None:
    for limit in limits:
        if limit.code not in codes:
            raise RegistrationError(
                f"check {name!r}: limit on {limit.reading} uses {limit.code.code!r}, not one of its codes"
            )
        if not isinstance(limit, Limit) and limit.code.clears_by is not None:
            raise RegistrationError(
                f"check {name!r}: {type(limit).__name__} on {limit.reading} is a level, which ends by itself; "
                f"expected {limit.code.code!r} without clears_by"
            )
        if isinstance(limit, Learned) and not 0 < limit.within <= 1:
            raise RegistrationError(f"check {name!r}: within = {limit.within} on {limit.reading}; expected 0 < it <= 1")
    if len({(type(limit), limit.reading) for limit in limits}) < len(limits):
        raise RegistrationError(f"check {name!r}: two limits on one reading of one kind; only one could be judged")


def discover(names: Collection[str] = ()) -> Mapping[str, Check]:
    """Import the modules of ``healthd.checks`` and return the registered checks by name, in name order.

    ``names``: only these, ``gpu.ecc`` from the module ``gpu_ecc``; all checks where one of the names has none.

    Raises RegistrationError for a module that cannot be imported: a check that is silently absent looks like health.
    """
    package = importlib.import_module("healthd.checks")
    files = [path for folder in package.__path__ for path in Path(folder).glob("*.py")]
    present = sorted(path.stem for path in files if path.stem != "__init__")
    asked = {name.replace(".", "_") for name in names}
    for module in sorted(asked.intersection(present)):
        _import(module)
    if names and all(name in _registry for name in names):
        return {name: _registry[name] for name in sorted(set(names))}
    for module in present:
        _import(module)
    return dict(sorted(_registry.items()))


def declared_by(code: str, checks: Iterable[Check]) -> tuple[Check, FindingCode] | None:
    """The one of these checks that finds a code, and what it declares: the code itself, else the longest family of it.
    None where none of them finds it."""
    fitting = [
        (check, known)
        for check in checks
        for known in check.codes
        if known.code == code or (known.code.endswith(".*") and code.startswith(known.code[:-1]))
    ]
    return max(fitting, key=lambda pair: (pair[1].code == code, len(pair[1].code)), default=None)


def _import(module: str) -> None:
    try:
        importlib.import_module(f"healthd.checks.{module}")
    except (ImportError, SyntaxError) as error:
        raise RegistrationError(f"checks/{module}.py cannot be imported: {error}; fix or remove it") from error


def ok(readings: Iterable[Reading] = (), *, clearances: Iterable[Clearance] = (), reason: str = "") -> Result:
    """Everything was read, and nothing is wrong."""
    return Result(status=Status.OK, reason=reason, readings=tuple(readings), clearances=tuple(clearances))


SOON = "run `healthd check` again in a minute"
"""The operator's next step about a check that is unknown only because it is too early."""


class LeftTo(Struct, frozen=True, kw_only=True):
    """Among the undecided: a component that did not answer for a cause that another check finds. It makes nothing
    unknown here, and ends nothing either. ``reason``: the cause, and the check that finds it."""

    component: Component
    reason: str


def judged(
    findings: Iterable[Finding],
    readings: Iterable[Reading] = (),
    *,
    undecided: Iterable[str | LeftTo] = (),
    clearances: Iterable[Clearance] = (),
    not_reported: Iterable[tuple[Component, str]] = (),
    left_out: str = "",
) -> Result:
    """The result of a check run that could read; ``status_of`` gives its status.

    ``not_reported``: see Result. ``left_out``: a text on values that this node does not report and need not; it makes
    nothing unknown.
    """
    findings, mixed = tuple(findings), tuple(undecided)
    left = [gap for gap in mixed if isinstance(gap, LeftTo)]
    real = tuple(gap for gap in mixed if isinstance(gap, str))
    return Result(
        status=status_of(findings, real),
        reason="; ".join([*real, *(each.reason for each in left), *([left_out] if left_out else [])]),
        findings=findings,
        readings=tuple(readings),
        clearances=tuple(clearances),
        undecided=real,
        not_reported=(*not_reported, *((each.component, "") for each in left)),
    )


def unknown(reason: str, do: str = "") -> Result:
    """The check could not decide. Never healthy, never alone a reason to repair. ``do``: the operator's next step, ""
    where `healthd doctor` names it."""
    return Result(status=Status.UNKNOWN, reason=reason, do=do)


def not_applicable(reason: str) -> Result:
    """The node certainly has nothing for this check to read. Earlier faults stay: what broke may be what is gone."""
    return Result(status=Status.NOT_APPLICABLE, reason=reason)


def nothing_expected(reason: str) -> Result:
    """The node certainly has nothing for this check to read, and no setting asks for it. Earlier faults end: the
    operator took away what was broken, or no longer asks for it."""
    return Result(status=Status.NOT_APPLICABLE, reason=reason, is_expected=False)


def none_there(reason: str, to_learn: Iterable[Reading], expected: int | None) -> Result:
    """The result where no device of a kind is there and none is expected, with the count that history compares with the
    highest one. ``expected``: the configured number. Without either, nothing shows that there is none, and earlier
    faults stay."""
    readings = tuple(to_learn)
    result = not_applicable(reason) if expected is None and not readings else nothing_expected(reason)
    return replace(result, readings=readings)
