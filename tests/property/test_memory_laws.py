"""Laws of what a node's name remembers: a disk that is lost, or another machine, makes nobody innocent."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from healthd.core.model import REPAIRS, Action, Component, Mode, Remedy
from healthd.remediation.decide.adoption import repair_record
from healthd.remediation.decide.ledger import Bounds, on_record, repairs_of
from healthd.remediation.decide.policy import Rules, Situation, question
from healthd.remediation.decide.remediation import End, Remediation, after
from healthd.remediation.ports import FleetSnapshot, NodeView
from healthd.remediation.records.handoff import HandoffRecord, PastAct, parse
from tests.support.judgement import START, a_remediation, all_read, decided_by, diagnosis
from tests.support.sampling import examples

LAW = settings(max_examples=examples(200), deadline=None)
RULES = Rules(mode=Mode.REPAIR)
HERE = Situation(
    view=NodeView(name="n1", in_service=True, flags=frozenset(), hold=None),
    snapshot=FleetSnapshot(out=frozenset(), total=100),
)
REMEDIES = (Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE)


class Episode(Struct, frozen=True, kw_only=True):
    """A fault that comes back after a while, whose remediation begins so many acts; then the disk is lost or not."""

    hours: int
    code: str
    remedy: Remedy
    acts: int
    loses_disk: bool


episodes = st.lists(
    st.builds(
        Episode,
        hours=st.integers(1, 60),
        code=st.sampled_from(["gpu.xid.95", "gpu.xid.79"]),
        remedy=st.sampled_from(REMEDIES),
        acts=st.integers(1, 2),
        loses_disk=st.booleans(),
    ),
    max_size=30,
)


def acted(remediation: Remediation, text: str, times: int, now: datetime) -> tuple[Remediation, str]:
    """The remediation after it began this many acts, and the record of it."""
    for attempt in range(1, times + 1):
        step = next(step for step in remediation.steps if step in REPAIRS)
        remediation = replace(
            remediation,
            index=remediation.steps.index(step),
            attempts=attempt,
            acts=(*remediation.acts, remediation.ladder[0]),
        )
        text = repair_record(remediation, now + timedelta(seconds=attempt), before=text)
    remediation = replace(remediation, end=End.RELEASED, since=now + timedelta(minutes=10))
    return remediation, after(text, remediation)


@LAW
@given(episodes)
def test_no_loss_of_a_disk_gives_a_name_more_repairs(story: list[Episode]) -> None:
    """Repairs of a week, for any fault, stay within the bound of a lemon, and those of one code within its own, however
    often the store is lost, and whichever GPUs the machines have. A replacement loses the disk each time."""
    bounds, text, now = Bounds(), "", START
    store: list[Remediation] = []
    made: list[tuple[datetime, str]] = []
    for number, episode in enumerate(story):
        now += timedelta(hours=episode.hours)
        sick = diagnosis(episode.remedy, Component(kind="gpu", id=f"GPU-{len(made)}"), code=episode.code, since=now)
        known = on_record(repairs_of(store), None, parse(text) or HandoffRecord())
        decision, _ = decided_by(question([sick], (), RULES, now), all_read(HERE, known))
        if decision.action is not Action.REPAIR:
            continue
        remediation = a_remediation(
            id=f"c{number}",
            opened=now,
            code=episode.code,
            component=str(sick.component),
            steps=decision.steps,
            ladder=decision.ladder,
        )
        remediation, text = acted(remediation, text, episode.acts, now)
        made.append((now, episode.code))
        store = [] if episode.loses_disk or Remedy.REPLACE_NODE in remediation.acts else [*store, remediation]
    week = timedelta(days=7)
    for begun, code in made:
        inside = [each for at, each in made if begun <= at < begun + week - timedelta(hours=1)]
        assert len(inside) <= bounds.lemon_repairs
        assert inside.count(code) <= bounds.repairs_per_fault


@LAW
@given(episodes)
def test_what_store_and_record_both_know_is_one_repair(story: list[Episode]) -> None:
    """As long as no disk is lost the record adds nothing to what the store knows."""
    text, now = "", START
    store: list[Remediation] = []
    for number, episode in enumerate(story):
        now += timedelta(hours=episode.hours)
        remediation = a_remediation(id=f"c{number}", opened=now, code=episode.code, ladder=(Remedy.REBOOT_NODE,))
        remediation, text = acted(remediation, text, episode.acts, now)
        store.append(remediation)
        known = repairs_of(store)
        assert on_record(known, None, parse(text) or HandoffRecord()) == known


@LAW
@given(episodes)
def test_each_act_that_was_begun_is_one_entry(story: list[Episode]) -> None:
    """And of the last eight none is missing."""
    text, now, begun = "", START, 0
    for number, episode in enumerate(story):
        now += timedelta(hours=episode.hours)
        remediation = a_remediation(id=f"c{number}", opened=now, code=episode.code, ladder=(Remedy.REBOOT_NODE,))
        remediation, text = acted(remediation, text, episode.acts, now)
        begun += episode.acts
        record = parse(text)
        assert record is not None
        assert [each.act for each in record.history] == [PastAct.REBOOT] * min(begun, 8)
