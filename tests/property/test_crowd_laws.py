"""Laws of what very many faults cost, and that what makes them cheap changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from healthd.core.model import NODE, ClearsBy, Component, Outcome
from healthd.judge.diagnose import _causes, diagnose
from healthd.judge.findings import MOST
from healthd.judge.history import Fault, FaultKey, History, observe
from tests.support.judgement import at, fault, faults, finding, fold, history, looked
from tests.support.sampling import examples


def _explains(cause: Fault, symptom: Fault) -> bool:
    if cause.code not in symptom.symptom_of or cause is symptom:
        return False
    if cause.component.kind == symptom.component.kind:
        return cause.component == symptom.component
    of_another_device = symptom.first > cause.first and not symptom.acknowledged
    return not (cause.component == NODE and cause.acknowledged and of_another_device)


def causes_as_said(faults: Sequence[Fault]) -> Mapping[FaultKey, Fault]:
    """What explains what, word for word, by trying all with all."""
    cause = {each.key: each for each in faults if not any(_explains(other, each) for other in faults)}
    frontier = list(cause.values())
    while frontier:
        known = frontier.pop()
        for each in faults:
            if each.key not in cause and _explains(known, each):
                cause[each.key] = cause[known.key]
                frontier.append(each)
    return {each.key: cause.get(each.key, each) for each in faults}


@settings(max_examples=examples(200))
@given(st.lists(faults(), max_size=10))
def test_the_cheap_way_finds_the_same_causes(some: list[Fault]) -> None:
    """For any faults that explain one another in any way, in circles too."""
    distinct = tuple({each.key: each for each in some}.values())
    assert _causes(distinct) == causes_as_said(distinct)


@settings(max_examples=examples(40))
@given(st.lists(st.lists(st.integers(0, 200), max_size=90), max_size=5), st.sampled_from([None, ClearsBy.REBOOT]))
def test_no_code_has_more_faults_than_it_may(looks: list[list[int]], by: ClearsBy | None) -> None:
    """Whatever is reported in whatever order: 64 parts and the node; and what is reported is never nothing."""
    state = History()
    for number, parts in enumerate(looks):
        found = [finding("x", Component(kind="mount", id=str(part)), clears_by=by) for part in parts]
        state = fold(state, [looked(*found, seconds=number)])
        assert max(Counter(code for _, code in state.faults).values(), default=0) <= MOST + 1
        assert bool(state.faults) or not found


def many(count: int) -> tuple[Fault, ...]:
    """Faults of which a part explains others, on parts of two kinds."""
    return tuple(
        fault(
            f"code.{number % 80}",
            Component(kind=("disk", "mount")[number % 2], id=str(number // 80)),
            symptom_of=(f"code.{(number + 7) % 80}",) if number % 3 else (),
            clears_by=ClearsBy.REBOOT,
        )
        for number in range(count)
    )


def cpu_s(count: int) -> float:
    """What it costs to fold one line into so many faults and to diagnose them; the best of some."""
    start, line = history(*many(count)), looked(finding("new", clears_by=ClearsBy.REBOOT))
    return min(_took_s(start, line) for _ in range(5))


def _took_s(start: History, line: Outcome) -> float:
    began = time.process_time()
    after, _ = observe(start, line, (), at(0))
    diagnose(after)
    return time.process_time() - began


def test_the_cost_is_linear_in_the_number_of_faults() -> None:
    """Ten times the faults cost about ten times as much; what grows with the square would cost a hundred times."""
    assert cpu_s(5000) < 40 * cpu_s(500)
