"""One code on very many parts: 64 faults by name, and one on the node for all others."""

from __future__ import annotations

from msgspec.structs import replace

from healthd.core.model import NODE, Clearance, ClearsBy, Component, Finding, Remedy, Repeats, Severity
from healthd.judge.findings import MOST, without_crowds
from healthd.judge.history import History, observe
from tests.support.judgement import at, finding, fold, looked

WATCHED = {"remedy": Remedy.WATCH, "severity": Severity.WARNING}


def mount(number: int) -> Component:
    return Component(kind="mount", id=f"/m{number}")


def found(*numbers: int, **changes: object) -> list[Finding]:
    return [finding("mount.hung", mount(number), **{**WATCHED, **changes}) for number in numbers]


def places(history: History) -> set[str]:
    return {where for where, _ in history.faults}


def test_as_many_as_hardware_has_keep_their_names() -> None:
    """Up to 64 parts of a code, and as many of another."""
    seen = looked(*found(*range(MOST)), *(replace(each, code="other") for each in found(*range(MOST))))
    assert len(fold(History(), [seen]).faults) == 2 * MOST


def test_all_beyond_that_are_one_finding_on_the_node() -> None:
    """It counts them, names a few, and calls for what the worst of them calls for."""
    worst = finding("mount.hung", mount(70), remedy=Remedy.REBOOT_NODE, severity=Severity.CRITICAL, time=at(7))
    after = fold(History(), [looked(*found(*range(MOST + 20)), worst)])
    assert len(after.faults) == MOST + 1
    crowd = after.faults["node", "mount.hung"]
    assert (crowd.component, crowd.remedy, crowd.severity) == (NODE, Remedy.REBOOT_NODE, Severity.CRITICAL)
    assert crowd.message == "on more than 64 parts, such as mount:/m70: mount.hung on mount:/m70"
    assert crowd.evidence["components"] == [f"mount:/m{number}" for number in range(MOST, MOST + 8)]
    assert (crowd.evidence["parts"], crowd.count) == (20, 21)


def test_what_is_known_by_name_keeps_it() -> None:
    """Whoever comes first in a later look."""
    before = fold(History(), [looked(*found(*range(100, 100 + MOST)))])
    after = fold(before, [looked(*found(*range(100 + MOST)), seconds=5)])
    assert places(after) == places(before) | {"node"}


def test_a_crowd_ends_with_its_parts() -> None:
    """A level is over once no more parts are reported than have names; the log's, by its evidence."""
    many, few = looked(*found(*range(90))), looked(*found(*range(10)), seconds=5)
    assert places(fold(History(), [many, few])) == {f"mount:/m{number}" for number in range(10)}
    logged = fold(History(), [looked(*found(*range(90), clears_by=ClearsBy.REBOOT))])
    after = fold(logged, [looked(clearances=(Clearance(by=ClearsBy.REBOOT),), seconds=5)])
    assert (len(logged.faults), len(after.faults)) == (MOST + 1, 0)


def test_a_storm_of_new_names_stays_one_fault_on_the_node() -> None:
    """Line after line, each with a name of its own: the count grows, the number of faults does not."""
    history = History()
    for number in range(300):
        history, changes = observe(
            history, looked(*found(number, clears_by=ClearsBy.REBOOT), seconds=number), (), at(number)
        )
        assert len(changes) == (number <= MOST)
    assert (len(history.faults), history.faults["node", "mount.hung"].count) == (MOST + 1, 300 - MOST)


def test_what_waits_to_repeat_is_no_more_than_what_is_open() -> None:
    """Sightings are kept by name as well, and stored."""
    rule = Repeats(times=3, window_s=600)
    history = fold(History(), [looked(*found(*range(500), repeats=rule, clears_by=ClearsBy.REBOOT))])
    assert len(history.sightings) <= MOST + 1


def test_what_is_found_on_the_node_itself_is_told_with_its_crowd() -> None:
    """They share a name, so they are one; the worse of the two decides."""
    on_node = finding("mount.hung", NODE, remedy=Remedy.REBOOT_NODE)
    seen = [((str(each.component), each.code), each) for each in [on_node, *found(*range(80))]]
    kept = without_crowds(seen, ())
    (crowd,) = [each for key, each in kept if key == ("node", "mount.hung")]
    assert (crowd.remedy, crowd.evidence["parts"], len(kept)) == (Remedy.REBOOT_NODE, 18, MOST)


def test_a_crowd_keeps_whose_processes_it_was() -> None:
    """A fault of jobs is over when all of their processes are gone."""
    by_pid = [replace(each, evidence={"pid": 1000 + number}) for number, each in enumerate(found(*range(66)))]
    by_list = [replace(each, evidence={"pids": [7, "x"], "count": "many"}) for each in found(66)]
    neither = [replace(each, evidence={"pids": {"a": 1}}) for each in found(67)]
    after = fold(History(), [looked(*by_pid, *by_list, *neither)])
    crowd = after.faults["node", "mount.hung"]
    assert (crowd.evidence["pids"], crowd.count) == ([7, 1064, 1065], 4)
