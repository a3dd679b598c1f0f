"""The vocabulary: names of parts, and the ladders that judgement climbs."""

from __future__ import annotations

from datetime import UTC, datetime
from inspect import Parameter, signature

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from healthd.core import model
from healthd.core.model import (
    NODE,
    REMEDY_RANK,
    SEVERITY_RANK,
    Component,
    Outcome,
    Remedy,
    Result,
    Severity,
    Status,
    gpu_component,
    pci_address,
)


def test_the_most_stable_name_known_is_the_name() -> None:
    """A GPU is named by its UUID, else its PCI address, else its index; the others are aliases, in that order."""
    whole = gpu_component(uuid="GPU-8e2f", pci="0000:53:00", index=3)
    assert whole.all_names() == ("gpu:GPU-8e2f", "gpu:0000:53:00", "gpu:3")
    assert str(gpu_component(pci="0000:53:00", index=3)) == "gpu:0000:53:00"
    assert str(gpu_component(index=0)) == "gpu:0"


def test_a_gpu_without_any_name_is_refused() -> None:
    """There is no GPU component that names no GPU."""
    with pytest.raises(ValueError, match="a UUID, a PCI address or an index"):
        gpu_component()


def test_the_node_itself_has_the_shortest_name() -> None:
    """A component without an id is its kind."""
    assert str(NODE) == "node"
    assert NODE.all_names() == ("node",)


def test_other_names_do_not_make_another_part() -> None:
    """Equality and hash are of the stable name alone, so a part that learned an alias is still the same key."""
    short, known = Component(kind="gpu", id="GPU-1"), Component(kind="gpu", id="GPU-1", aliases=("0000:53:00",))
    assert short == known
    assert len({short, known}) == 1


@pytest.mark.parametrize(
    "text",
    ["0000:10:1c", "00000000:10:1C.0", "0000:10:1c.0", " 0000:10:1C ", "10:1c", "0:10:1c.7"],
)
def test_the_forms_of_one_pci_address_are_one(text: str) -> None:
    """The kernel's, NVML's and sysfs's forms of an address are one and the same."""
    assert pci_address(text) == "0000:10:1c"


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F))
def test_a_pci_address_reads_as_itself(domain: int, bus: int, device: int) -> None:
    """Normalising twice changes nothing, also in the wide domains that virtual machines have."""
    once = pci_address(f"{domain:08X}:{bus:02X}:{device:02X}.0")
    assert pci_address(once) == once
    assert [int(part, 16) for part in once.split(":")] == [domain, bus, device]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "1",
        "0000:10:1c:0",
        "0000:-1:00",
        "0000:0x10:00",
        "0000:1_0:00",
        "0000:10:1c.x",
        "0000:10:",
        "\u0660:10:00",
    ],
)
def test_what_is_no_pci_address_is_refused(text: str) -> None:
    """Signs, prefixes and underscores that Python's int() forgives do not become an address."""
    with pytest.raises(ValueError, match="is not a PCI address; expected one like 0000:10:1c"):
        pci_address(text)


def test_ladders_rank_every_word_once() -> None:
    """Every severity and every remedy has its own rung, and asking a person lies below taking the node out."""
    assert sorted(SEVERITY_RANK.values()) == list(range(len(Severity)))
    assert sorted(REMEDY_RANK.values()) == list(range(len(Remedy)))
    assert REMEDY_RANK[Remedy.RESTART_APP] < REMEDY_RANK[Remedy.ASK_HUMAN] < REMEDY_RANK[Remedy.RESET_GPU]


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("undecided", [(), ("gpu:3: no answer",)])
@pytest.mark.parametrize("status", list(Status))
def test_a_result_is_whole_where_nothing_is_left_untold(
    status: Status, undecided: tuple[str, ...], optional: bool
) -> None:
    """A finding does not make up for a part that gave no answer; what is not there has nothing to tell."""
    result = Result(status=status, undecided=undecided)
    run = Outcome(check="c", result=result, at=datetime(2026, 11, 21, tzinfo=UTC), duration_s=0.1, optional=optional)
    assert result.is_whole == (status is not Status.UNKNOWN and undecided == ())
    assert run.counts_as_unknown == (not result.is_whole and not optional)


MESSAGES = [
    each for each in vars(model).values() if isinstance(each, type) and issubclass(each, Struct) and each is not Struct
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: str(each.__name__))
def test_messages_are_frozen_and_spelt_out(message: type[Struct]) -> None:
    """What goes from stage to stage cannot be changed on the way, takes no field by position, and no unknown one."""
    assert message.__struct_config__.frozen
    assert message.__struct_config__.dict is False
    assert {each.kind for each in signature(message).parameters.values()} <= {Parameter.KEYWORD_ONLY}
