"""Shared by the NCCL checks: the required speed of an all-reduce, its repetition, and its result.

Pure over the Node protocol, like a check. Only figures that were measured on the same GPUs are limits; without one, the
node is compared with itself. No node can reach some published limits (300 to 900 GB/s, above the figures of one node
without a network); they are no rows of ``nccl_limits.csv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from typing import Any, Literal

from msgspec import Struct

from healthd.checklib.tables import as_row, instance_profile, keyed_rows
from healthd.core.check import FindingCode, Learned, judged, ok
from healthd.core.errors import SourceError, SourceTimeout
from healthd.core.model import NODE, Finding, Reading, Remedy, Result, Severity
from healthd.core.node import AllReduce, Node

Path = Literal["nvlink", "network"]
Attempt = AllReduce | SourceError

_DEFAULT_BYTES = 1 << 30
_SHARE = 0.9
_BASELINE = f"{_SHARE:.0%} of the node's own best, since no figure is published for its type"


class NcclLimit(Struct, frozen=True, kw_only=True):
    """The least bus bandwidth of a type in a test, a row of ``nccl_limits.csv``: a share of the measured figure.

    It holds for messages of ``size_bytes`` over all GPUs of the type. ``date``: that of the source.
    """

    type: str
    test: str
    size_bytes: int
    min_busbw_gb_s: float
    measured_gb_s: float
    source: str
    date: date


class Demand(Struct, frozen=True, kw_only=True):
    """The requirement of one run. ``least_gb_s`` None: only the node's own best. ``source``: of the figure, with
    date."""

    test: str
    path: Path
    size_bytes: int
    timeout_s: float
    least_gb_s: float | None
    source: str


class Codes(Struct, frozen=True, kw_only=True):
    """The findings of an all-reduce. All are warnings: none is proven on hardware yet, and an operator decides."""

    wrong: FindingCode
    failed: FindingCode
    slow: FindingCode
    hung: FindingCode

    def all(self) -> tuple[FindingCode, ...]:
        """Every one, for the check's declaration."""
        return (self.wrong, self.failed, self.slow, self.hung)


def codes_of(test: str, way: str) -> Codes:
    """The codes of ``nccl.<test>``; ``way``: the path of the bytes, as text."""

    def code(word: str, meaning: str) -> FindingCode:
        return FindingCode(
            code=f"nccl.{test}.{word}", severity=Severity.WARNING, remedy=Remedy.ASK_HUMAN, meaning=meaning
        )

    return Codes(
        wrong=code("wrong", f"An all-reduce {way} gave wrong numbers"),
        failed=code("failed", f"An all-reduce {way} failed twice with an error of NCCL or CUDA"),
        slow=code("slow", f"An all-reduce {way} is slower than it should be"),
        hung=code("hung", f"An all-reduce {way} did not end, twice in a row"),
    )


def own_best(test: str, codes: Codes) -> Learned:
    """The limit on the reading that is there only where no other limit is."""
    return Learned(reading=f"nccl_{test}_own_busbw_gb_s", code=codes.slow, source=_BASELINE, within=_SHARE)


@cache
def nccl_limits() -> Mapping[tuple[str, str], NcclLimit]:
    """``nccl_limits.csv`` by type and test. Raises ValueError naming the line that cannot be read."""
    return keyed_rows("nccl_limits.csv", _limit, lambda row: (row.type, row.test))


def demand(
    node: Node, path: Path, test: str, *, size_bytes: int | None, min_busbw_gb_s: float | None, timeout_s: float
) -> Demand:
    """The configured requirement, else the row of this instance type; a row does not apply to another message size."""
    profile = instance_profile(node.instance_type)
    row = nccl_limits().get((profile.type, test)) if profile else None
    size = size_bytes or (row.size_bytes if row else _DEFAULT_BYTES)
    least, source = min_busbw_gb_s, "settings.min_busbw_gb_s"
    if least is None and row is not None and row.size_bytes == size:
        least, source = row.min_busbw_gb_s, f"{row.source} ({row.date})"
    if least is None:
        source = _BASELINE
    return Demand(test=test, path=path, size_bytes=size, timeout_s=timeout_s, least_gb_s=least, source=source)


def reduce(node: Node, asked: Demand) -> tuple[Attempt, ...]:
    """One all-reduce, and a second one where the first was not good. The last one counts, but for wrong numbers.

    Raises SourceError other than SourceTimeout where the first could not be run: that is unknown, and no evidence about
    the hardware.
    """
    first = _attempt(node, asked)
    return (first,) if _state(first, asked) == "good" else (first, _again(node, asked))


Further = Callable[[AllReduce], tuple[Sequence[Finding], Sequence[str]]]
"""A check's findings and undecided parts in a measurement whose numbers are right."""


def outcome(
    node: Node, asked: Demand, attempts: Sequence[Attempt], codes: Codes, further: Further = lambda _: ((), ())
) -> Result:
    """Judge the attempts; of two runs the last one counts, but for wrong numbers."""
    measured = [attempt for attempt in attempts if isinstance(attempt, AllReduce)]
    last = measured[-1] if measured and not measured[-1].failed else None
    findings, undecided = _judged(asked, attempts, codes, further)
    if last is not None and not findings and (few := _too_few(node, last)):
        undecided = [*undecided, few]
    if last is None or findings or undecided:
        return judged(findings, [] if last is None else _readings(asked, last), undecided=undecided)
    return ok([*_readings(asked, last), *_own(asked, last)], reason=_text(asked, last, attempts))


# ---------------------------------------------------------------------------------------------------------------------


def _attempt(node: Node, asked: Demand) -> Attempt:
    try:
        return node.active.all_reduce(asked.path, size_bytes=asked.size_bytes, timeout_s=asked.timeout_s)
    except SourceTimeout as error:
        return error


def _again(node: Node, asked: Demand) -> Attempt:
    try:
        return _attempt(node, asked)
    except SourceError as error:
        return error


def _state(attempt: Attempt, asked: Demand) -> Literal["good", "wrong", "failed", "slow", "hung", "unread"]:
    if isinstance(attempt, SourceTimeout):
        return "hung"
    if isinstance(attempt, SourceError):
        return "unread"
    if attempt.failed:
        return "failed"
    if attempt.wrong:
        return "wrong"
    least, got = asked.least_gb_s, attempt.busbw_gb_s
    return "slow" if least is not None and got is not None and got < least else "good"


def _judged(
    asked: Demand, attempts: Sequence[Attempt], codes: Codes, further: Further
) -> tuple[Sequence[Finding], Sequence[str]]:
    """Wrong numbers; then the check's own findings; then the same result twice. Two different results are no
    finding."""
    measured = [attempt for attempt in attempts if isinstance(attempt, AllReduce)]
    states, runs = [_state(attempt, asked) for attempt in attempts], [_run_text(attempt) for attempt in attempts]
    if any(attempt.wrong for attempt in measured):
        return [_wrong(codes, asked, measured)], ()
    if states[-1] in ("good", "slow"):
        found = further(measured[-1])
        if any(found) or states[-1] == "good":
            return found
    code = {"failed": codes.failed, "slow": codes.slow, "hung": codes.hung}.get(states[-1])
    if code is None or len(set(states)) > 1:
        return (), [f"two runs gave two results: {'; then '.join(runs)}"]
    return [code.at(NODE, f"twice: {runs[-1]}", runs=runs, **_evidence(asked, measured))], ()


def _wrong(codes: Codes, asked: Demand, measured: Sequence[AllReduce]) -> Finding:
    """The finding of wrong numbers. One run is enough; the second run shows whether it lasts."""
    counts = [attempt.wrong for attempt in measured]
    message = f"wrong elements of {asked.size_bytes >> 20} MiB on each GPU: {', then '.join(map(str, counts))}"
    return codes.wrong.at(NODE, message, value=max(counts), **_evidence(asked, measured))


def _evidence(asked: Demand, measured: Sequence[AllReduce]) -> dict[str, Any]:
    last = measured[-1] if measured else None
    return {
        "busbw_gb_s": [attempt.busbw_gb_s for attempt in measured],
        "size_bytes": asked.size_bytes,
        "limit_gb_s": asked.least_gb_s,
        "limit_source": asked.source,
        "timeout_s": asked.timeout_s,
        "way": last.way if last else "",
        "nccl": last.nccl_version if last else "",
        "network": last.network if last else "",
    }


def _run_text(attempt: Attempt) -> str:
    if isinstance(attempt, SourceError):
        return str(attempt)
    if attempt.failed:
        return attempt.failed
    return "no bandwidth" if attempt.busbw_gb_s is None else f"{attempt.busbw_gb_s:.1f} GB/s"


def _too_few(node: Node, measured: AllReduce) -> str:
    """A ring of seven is no evidence about eight, and its bandwidth another."""
    profile = instance_profile(node.instance_type)
    if profile is None or measured.failed or measured.gpus >= profile.gpus:
        return ""
    return f"only {measured.gpus} of the {profile.gpus} GPUs of {profile.type} took part; gpu.count says why"


def _text(asked: Demand, measured: AllReduce, attempts: Sequence[Attempt]) -> str:
    again = f"; the first of two runs: {_run_text(attempts[0])}" if len(attempts) > 1 else ""
    right = f"{measured.gpus} GPUs, {asked.size_bytes >> 20} MiB, every element right, by {measured.way}"
    if measured.busbw_gb_s is None:
        return f"{right}; with one GPU there is no bandwidth to judge{again}"
    if asked.least_gb_s is None:
        return f"{right}; {measured.busbw_gb_s:.1f} GB/s, and no limit: {asked.source}{again}"
    return f"{right}; {measured.busbw_gb_s:.1f} GB/s, limit {asked.least_gb_s:g}: {asked.source}{again}"


def _readings(asked: Demand, measured: AllReduce) -> Iterator[Reading]:
    test = f"nccl_{asked.test}"
    yield Reading(
        component=NODE, name=f"{test}_wrong_count", value=measured.wrong, limit=0, limit_source="every element is known"
    )
    yield Reading(component=NODE, name=f"{test}_size_bytes", value=measured.size_bytes)
    if measured.busbw_gb_s is not None:
        yield Reading(
            component=NODE,
            name=f"{test}_busbw_gb_s",
            value=measured.busbw_gb_s,
            limit=asked.least_gb_s,
            limit_source=asked.source,
        )


def _own(asked: Demand, measured: AllReduce) -> Iterator[Reading]:
    """The readings from which the node's own best is learned: good runs only, each size and each tool by itself."""
    if asked.least_gb_s is None and measured.busbw_gb_s is not None:
        epoch = f"{measured.gpus} GPUs, {measured.size_bytes} bytes, {measured.way}"
        name = f"nccl_{asked.test}_own_busbw_gb_s"
        yield Reading(component=NODE, name=name, value=measured.busbw_gb_s, epoch=epoch)


def _limit(cells: Mapping[str, str]) -> NcclLimit:
    test = {"nvlink": "nvlink", "loopback": "loopback"}[cells["test"]]
    row = as_row(cells, NcclLimit, test=test, date=date.fromisoformat(cells["date"]))
    if not 0 < row.min_busbw_gb_s < row.measured_gb_s:
        raise ValueError(f"a limit of {row.min_busbw_gb_s} is not below the measured {row.measured_gb_s}")
    return row
