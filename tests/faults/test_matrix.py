"""The fault matrix: every state that a check tells apart, on a whole node, comes to exactly one diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from healthd.checklib.xids import xid_table
from healthd.config.schema.config import Config
from healthd.core.check import discover
from healthd.core.model import Mode, Status
from tests.faults.case import Case, Made, play
from tests.faults.matrix import CASES, NOT_ARRANGED
from tests.faults.proof import CERTAIN, acts, sources, unproven
from tests.faults.rig import CHECKS, Workshop
from tests.support.kernel_objects import NotHere

_OF_THE_KERNEL = frozenset({Made.KMSG, Made.FUSE, Made.EXT4, Made.TMPFS, Made.NAMESPACE})


def kind_of(case: Case) -> str:
    """Of which states each run of `make test` plays at least one: of each check a fault and none, by each means."""
    return f"{case.check}, {case.made}, {bool(case.diagnosis)}"


def marked() -> Iterator[Any]:
    """The cases; those that need this machine's kernel and root say so."""
    for case in CASES:
        marks = [pytest.mark.kernel, pytest.mark.root] if case.made in _OF_THE_KERNEL else []
        yield pytest.param(case, marks=marks, id=case.name)


@pytest.mark.sampled(150, kind=kind_of)
@pytest.mark.parametrize("case", list(marked()))
def test_one_fault_is_one_diagnosis(case: Case, shop: Workshop) -> None:
    """All checks look at the node: what they find is exactly what the case says, folded into its one diagnosis."""
    try:
        seen = play(case, shop)
    except NotHere as missing:
        pytest.skip(str(missing))
    assert seen.faults == case.findings
    assert seen.diagnoses == ((case.diagnosis,) if case.diagnosis else ())
    assert seen.unknown == case.unknown, [seen.reasons[name] for name in seen.unknown ^ case.unknown]
    if not case.findings:
        quiet = {Status.OK, Status.FINDINGS} if case.status is Status.OK else {case.status}
        assert seen.status[case.check] in quiet, seen.reasons[case.check]


@pytest.mark.parametrize("instance_type", sorted({case.instance_type for case in CASES}))
def test_before_the_fault_the_node_is_well(instance_type: str, shop: Workshop) -> None:
    """What a case finds is its own doing: on the node that it begins with, every check is ok or does not apply."""
    seen = shop.node(instance_type).seen()
    assert seen.faults == set()
    assert set(seen.status.values()) <= {Status.OK, Status.NOT_APPLICABLE}


def test_no_state_is_there_twice() -> None:
    """Each case has a name of its own."""
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []


def test_every_check_is_in_the_matrix() -> None:
    """No check is left out."""
    assert {case.check for case in CASES} == set(CHECKS)


def test_every_code_is_in_the_matrix() -> None:
    """Every code that a check declares is expected by some case, or stands in the table of what none can arrange."""
    declared = {code.code for check in discover().values() for code in check.codes}
    expected = {code for case in CASES for code in case.codes}
    families = {code for code in declared if code.endswith(".*")}
    missing = {code for code in declared - families if code not in expected}
    missing |= {family for family in families if not any(code.startswith(family[:-1]) for code in expected)}
    assert missing == set(NOT_ARRANGED)


def test_every_xid_and_an_unknown_one_is_in_the_matrix() -> None:
    """All codes of the table, and one that is not in it."""
    numbers = {int(code.rpartition(".")[2]) for case in CASES for code in case.codes if code.startswith("gpu.xid.")}
    assert len(xid_table()) == 147
    assert numbers >= set(xid_table())
    assert numbers - set(xid_table())


def test_a_case_belongs_to_its_check() -> None:
    """What is found in a case is found by the check that it is about, among others."""
    for case in (case for case in CASES if case.findings):
        declared = [code.code for code in CHECKS[case.check].codes]
        own = [code for code in case.codes if any(_is(code, name) for name in declared)]
        assert own, case.name


def _is(code: str, declared: str) -> bool:
    return code.startswith(declared[:-1]) if declared.endswith(".*") else code == declared


# ---------------------------------------------------------------------------------------------------------------------
# what is unproven on hardware


@pytest.mark.parametrize("case", [case for case in CASES if unproven(case) and acts(case)], ids=lambda case: case.name)
def test_what_is_unproven_warns_or_names_its_source(case: Case) -> None:
    """What only hardware can prove keeps no job off and takes no node out, unless a published source is certain."""
    code = case.diagnosis.partition("@")[0]
    assert list(sources(code)), f"{code} is unproven and acts: name its source in tests/faults/proof.py"


def test_no_source_is_named_for_nothing() -> None:
    """The table of sources holds what the matrix needs, and no more."""
    needed = {case.diagnosis.partition("@")[0] for case in CASES if unproven(case) and acts(case)}
    assert set(CERTAIN) <= needed


def test_healthd_ships_in_observe() -> None:
    """What is installed changes nothing in the cluster until someone says so."""
    assert Config().remediation.mode is Mode.OBSERVE
