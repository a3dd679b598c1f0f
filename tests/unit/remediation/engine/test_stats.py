"""How long steps take: each from its begin to its end, the waiting among it, once."""

from __future__ import annotations

from msgspec.structs import replace

from healthd.core.model import Step
from healthd.remediation.decide.remediation import End
from healthd.remediation.engine.step_result import EngineStats
from tests.support.judgement import a_remediation, at

REMEDIATION = a_remediation(steps=(Step.SLOT, Step.DRAIN, Step.VERIFY))


def test_a_step_is_timed_from_its_begin_to_its_end_whatever_it_wrote_meanwhile() -> None:
    """An intent sets ``since`` anew, and is no new step; the last step ends with the remediation, once."""
    stats, slot = EngineStats(), REMEDIATION
    stats.time(slot, slot, at(1))
    drain = replace(slot, index=1, since=at(4))
    stats.time(slot, drain, at(4))
    intended = replace(drain, since=at(9))
    stats.time(drain, intended, at(9))
    verify = replace(intended, index=2, since=at(14))
    stats.time(intended, verify, at(14))
    over = replace(verify, end=End.RELEASED)
    stats.time(verify, over, at(44))
    stats.time(over, over, at(90))
    assert dict(stats.steps) == {Step.SLOT: 1, Step.DRAIN: 1, Step.VERIFY: 1}
    assert {step: stats.steps_s[step] for step in stats.steps} == {Step.SLOT: 4, Step.DRAIN: 10, Step.VERIFY: 30}


def test_a_step_that_an_earlier_daemon_began_counts_from_what_it_wrote() -> None:
    """A reboot ends the daemon that asked for it; its time is known from the disk, and is never negative."""
    stats, verify = EngineStats(), replace(REMEDIATION, index=2, since=at(10))
    stats.time(verify, replace(verify, end=End.RELEASED), at(70))
    assert stats.steps_s[Step.VERIFY] == 60
    stats.time(replace(verify, id="c2"), replace(verify, id="c2", end=End.RELEASED), at(5))
    assert (stats.steps[Step.VERIFY], stats.steps_s[Step.VERIFY]) == (2, 60)
