"""Rules: which of them matches, and what it then says."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.core.model import NODE, Component, Mode, Remedy, Severity
from healthd.judge.diagnose import roots_of
from healthd.remediation.decide.rules import BY_REMEDY, OWN_REMEDY, OpenCodes, Policy, Rule, layered
from tests.support.judgement import DRIVER, GPU, diagnosis

RESET, REBOOT, REPLACE = Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE


def rule(*codes: str, **changes: Any) -> Rule:
    words: dict[str, Any] = {"name": "ours", "reason": "we know it", "source": "ticket 7", **changes}
    return Rule(codes=codes, **words)


@pytest.mark.parametrize(
    ("globs", "code", "fits"),
    [
        (("gpu.xid.79",), "gpu.xid.79", True),
        (("gpu.xid.7",), "gpu.xid.79", False),
        (("gpu.remap.*",), "gpu.remap.pending", True),
        (("gpu.xid.14[4-9]", "gpu.xid.150"), "gpu.xid.146", True),
        (("GPU.*",), "gpu.xid.79", False),
    ],
)
def test_codes_are_globs(globs: tuple[str, ...], code: str, fits: bool) -> None:
    """A code matches whole, by a glob, and with its case."""
    assert rule(*globs).matches(code, "gpu", ()) is fits


def test_a_rule_can_be_for_one_kind_of_part() -> None:
    """A rule for GPUs says nothing of the driver."""
    assert rule("*", components=("gpu", "nvlink")).matches("a", "gpu", ())
    assert not rule("*", components=("gpu",)).matches("a", "driver", ())


def test_a_rule_can_need_another_fault_beside_it() -> None:
    """Another code, not the fault itself, must be open there."""
    only_with = rule("gpu.xid.94", together_with=("gpu.remap.*", "gpu.xid.*"))
    assert only_with.matches("gpu.xid.94", "gpu", ("gpu.xid.94", "gpu.remap.pending"))
    assert not only_with.matches("gpu.xid.94", "gpu", ("gpu.xid.94",))


def test_beside_means_the_same_part_or_the_node() -> None:
    """What is open on another GPU does not count."""
    found = [(GPU[0], ("a", "b")), (GPU[1], ("c",)), (NODE, ("d",))]
    assert OpenCodes(found).beside(GPU[0]) == {"a", "b", "d"}
    assert OpenCodes(found).beside(DRIVER) == {"d"}


def test_the_same_fault_on_many_parts_meets_the_same_rule() -> None:
    """Each part has its answer."""
    many = [diagnosis(component=each) for each in (*GPU, DRIVER)]
    policy = Policy(rules=(rule("gpu.*", components=("gpu",)), OWN_REMEDY))
    assert [each.rule.name for each in policy.answers(many)] == [policy.rules[0].name] * len(GPU) + [""]


@pytest.mark.parametrize(
    ("remedy", "ladder"),
    [
        (RESET, (RESET, REBOOT, REPLACE)),
        (REBOOT, (REBOOT, REPLACE)),
        (REPLACE, (REPLACE,)),
        (Remedy.RESTART_APP, ()),
        (Remedy.ASK_HUMAN, ()),
        (Remedy.WATCH, ()),
        (Remedy.NONE, ()),
    ],
)
def test_a_finding_has_its_own_ladder(remedy: Remedy, ladder: tuple[Remedy, ...]) -> None:
    """Without a rule, what the finding calls for is tried, then what is larger. Nothing is tried for a job's noise."""
    assert OWN_REMEDY.ladder_for(diagnosis(remedy)) == ladder


def test_the_first_rule_that_matches_decides() -> None:
    """A site's rule stands before the shipped one, and behind all stands the finding's own remedy."""
    site, shipped = rule("gpu.xid.79", name="site"), rule("gpu.xid.*", name="shipped")
    policy = layered("nvidia", [site], [shipped], "p5.48xlarge")
    assert [policy.rule_for(code, GPU[0], ()).name for code in ("gpu.xid.79", "gpu.xid.48", "efa.missing")] == [
        "site",
        "shipped",
        "",
    ]
    assert policy.name == "nvidia"


def test_a_rule_can_be_for_one_instance_type() -> None:
    """On other machines, and where the type is not known, it does not hold."""
    p5 = rule("*", instance_types=("p5.*", "p5e*"))
    for instance_type, holds in (
        ("p5.48xlarge", True),
        ("p5en.48xlarge", True),
        ("p4d.24xlarge", False),
        (None, False),
    ):
        assert (p5 in layered("", [p5], (), instance_type).rules) is holds


def test_a_policy_without_rules_still_answers() -> None:
    """Even an empty list of rules leaves each fault its own remedy."""
    assert Policy(rules=()).rule_for("a", NODE, ()) == OWN_REMEDY
    assert BY_REMEDY.calling([diagnosis()]) == (diagnosis(),)


def test_a_diagnosis_without_roots_is_its_own() -> None:
    """One that was built by hand is judged by the code that it is called by."""
    (own,) = roots_of(diagnosis(code="gpu.xid.79", remedy=REBOOT))
    assert (own.code, own.remedy, own.severity) == ("gpu.xid.79", REBOOT, Severity.CRITICAL)


def test_a_shadow_calls_for_nothing() -> None:
    """A rule in observe mode neither takes the node out nor keeps it from being let in again."""
    policy = Policy(rules=(rule("gpu.*", mode=Mode.OBSERVE), OWN_REMEDY))
    assert policy.calling([diagnosis()]) == ()
    assert not policy.matters(diagnosis(), GPU[0], ())
    assert policy.matters(diagnosis(code="efa.missing"), Component(kind="efa", id="rdmap0s6"), ())
