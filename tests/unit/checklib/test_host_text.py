"""What hosts print: every form is read, and nothing else passes for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.checklib import host_text
from healthd.core.errors import SourceUnreadable

PSI = "some avg10=0.00 avg60=1.50 avg300=12.25 total=746182\nfull avg10=0.00 avg60=0.00 avg300=4.00 total=739613"
# chronyc -c tracking, in the form of chronyc(1); constructed.
CHRONY = (
    "A9FEA97B,169.254.169.123,4,1764000000.123456789,-0.000012345,0.000001234,0.000004321,"
    "-12.345,0.001,0.020,0.000300000,0.000200000,16.2,Normal"
)
UNITS = """Id=slurmd.service
LoadState=loaded
ActiveState=active
Result=a=b

Id=x.service
LoadState=not-found
ActiveState=inactive
"""


@given(st.frozensets(st.integers(0, 4095)))
def test_a_cpu_list_comes_back(cpus: frozenset[int]) -> None:
    """Any set of CPUs written as single numbers is read as that set."""
    assert host_text.cpu_list(",".join(map(str, sorted(cpus)))) == cpus


def test_ranges_of_cpus() -> None:
    """Ranges are inclusive, and the empty list is no CPU."""
    assert host_text.cpu_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert host_text.cpu_list("\n") == frozenset()


@given(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=15))
def test_a_process_may_have_any_name(name: str) -> None:
    """Brackets and spaces in a name do not move the state."""
    found = host_text.process(f"17 ({name}) D 2 0 0")
    assert (found.pid, found.name, found.state) == (17, name, "D")


def test_pressure_is_a_share() -> None:
    """The average over 300 s, as a share of 1."""
    assert host_text.pressure(PSI) == {"some": 0.1225, "full": 0.04}


def test_numbers_by_name() -> None:
    """The three forms of name and number; headings and fractions are left out."""
    text = "NIC statistics:\n     tx_timeout: 7\noom_kill 3\nHardwareCorrupted:     4 kB\nratio: 0.5\nqueue_0_x: -1\n"
    assert host_text.key_numbers(text) == {"tx_timeout": 7, "oom_kill": 3, "HardwareCorrupted": 4}


def test_units_of_systemd() -> None:
    """One block per unit; a value may hold an equals sign."""
    slurmd, other = host_text.units(UNITS)
    assert (slurmd["ActiveState"], slurmd["Result"], other["LoadState"]) == ("active", "a=b", "not-found")
    assert host_text.units("") == ()


def test_chrony() -> None:
    """Source, offset and leap status."""
    found = host_text.tracking(CHRONY)
    assert (found.source, found.synchronised, found.offset_s) == ("169.254.169.123", True, -0.000012345)
    assert not host_text.tracking(CHRONY.replace("Normal", "Not synchronised")).synchronised


def test_json() -> None:
    """One object, or a list of objects."""
    assert host_text.json_object('{"a": 1}', "x") == {"a": 1}
    assert host_text.json_objects('[{"a": 1}]', "x") == ({"a": 1},)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (host_text.cpu_list, "0-x"),
        (host_text.process, "17 bash S"),
        (host_text.process, ""),
        (host_text.process, "x (a) S 1"),
        (host_text.pressure, "some avg10=x"),
        (host_text.units, "No such unit"),
        (host_text.tracking, "506 Cannot talk to daemon"),
        (host_text.tracking, CHRONY.replace("-0.000012345", "soon")),
        (lambda text: host_text.whole(text, "count"), "-1"),
        (lambda text: host_text.whole(text, "count"), ""),
        (lambda text: host_text.json_object(text, "x"), "[]"),
        (lambda text: host_text.json_object(text, "x"), "{" * 100_000),
        (lambda text: host_text.json_object(text, "x"), "[" * 100_000),
        (lambda text: host_text.json_objects(text, "x"), "{}"),
        (lambda text: host_text.json_objects(text, "x"), "[1]"),
    ],
)
def test_another_form_is_refused(parse: Callable[[str], Any], text: str) -> None:
    """A text that is not of the form is unreadable, and the message quotes no more than its beginning."""
    with pytest.raises(SourceUnreadable, match="expected") as caught:
        parse(text)
    assert len(str(caught.value)) < 300
