"""Policies as they are written: what the shipped ones say, and what is said of a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.checklib.xids import xid_cases, xid_row
from healthd.config.schema.config import PolicySection
from healthd.config.schema.rule import PolicyRule
from healthd.config.values import plain, toml_value
from healthd.core.errors import ConfigError
from healthd.core.model import NODE, Diagnosis, Mode, Remedy, Severity, gpu_component
from healthd.remediation.decide.rules import Policy
from healthd.remediation.policy_files import SHIPPED, code_problems, known_codes, policy_of, rules_in, rules_named
from tests.support.judgement import GPU, START

RESET, REBOOT, REPLACE, HUMAN = Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.REPLACE_NODE, Remedy.ASK_HUMAN
GOOD = '[[rule]]\nname = "ours"\nreason = "we know it"\nsource = "ticket 7"\ncodes = ["gpu.xid.79"]\n'


def xid(number: int, *beside: str, case: str = "") -> Diagnosis:
    """A diagnosis as the check's own table makes it of one XID, with other codes open on the same GPU."""
    row = xid_cases()[number, case] if case else xid_row(number)
    return found(f"gpu.xid.{number}", row.severity, row.remedy, *beside)


def found(code: str, severity: Severity, remedy: Remedy, *beside: str) -> Diagnosis:
    return Diagnosis(
        code=code,
        component=GPU[0],
        severity=severity,
        remedy=remedy,
        reasons=(),
        since=START,
        codes=(code, *beside),
    )


def ladder(policy: Policy, diagnosis: Diagnosis) -> tuple[Remedy, ...]:
    """What a policy tries in turn; empty where the node stays in."""
    answers = policy.answers((diagnosis,))
    return answers[0].ladder if answers else ()


NVIDIA = [
    ("remap pending: reset", found("gpu.remap.pending", Severity.WARNING, RESET), (RESET, REBOOT)),
    ("63, the same before NVML says so", xid(63), (RESET, REBOOT)),
    ("64: reset; the failure flag decides the rest", xid(64), (RESET, REBOOT)),
    ("79: reboot, then replace", xid(79), (REBOOT, REPLACE)),
    ("94: the application restarts", xid(94), ()),
    ("94 with a remap pending: reset after the job", xid(94, "gpu.remap.pending"), (RESET, REBOOT)),
    ("94 with 63, which is that", xid(94, "gpu.xid.63"), (RESET, REBOOT)),
    ("95: reset, then reboot", xid(95), (RESET, REBOOT)),
    ("119: reset, then reboot", xid(119), (RESET, REBOOT)),
    ("120: reset, then reboot", xid(120), (RESET, REBOOT)),
    ("140: reset, then reboot", xid(140), (RESET, REBOOT)),
    ("48 alone: reset", xid(48), (RESET, REBOOT, REPLACE)),
    ("48 with 63: drained and reset, as always", xid(48, "gpu.xid.63"), (RESET, REBOOT, REPLACE)),
    ("48 with 64: drained and reset, as always", xid(48, "gpu.xid.64"), (RESET, REBOOT, REPLACE)),
    ("74, not fatal: watched", xid(74), ()),
    ("74, fatal: reset", xid(74, case="fatal"), (RESET, REBOOT, REPLACE)),
    *((f"{number}, not fatal: watched", xid(number), ()) for number in range(144, 151)),
    *((f"{number}, fatal: reset", xid(number, case="fatal"), (RESET, REBOOT, REPLACE)) for number in range(144, 151)),
    ("154 to none", xid(154, case="to:0"), ()),
    ("154 to a GPU reset", xid(154, case="to:1"), (RESET, REBOOT, REPLACE)),
    ("154 to a reboot", xid(154, case="to:2"), (REBOOT, REPLACE)),
    ("154 to drain peer-to-peer: kept out, nothing is reset", xid(154, case="to:3"), ()),
    ("154 to drain and reset", xid(154, case="to:4"), (RESET, REBOOT, REPLACE)),
    ("154 to recover the IMEX domain: kept out", xid(154, case="to:5"), ()),
    ("154 to a bus reset", xid(154, case="to:6"), (REBOOT, REPLACE)),
    ("154 to a system reboot", xid(154, case="to:7"), (REBOOT, REPLACE)),
    ("remap failure: replace", found("gpu.remap.failure", Severity.CRITICAL, REPLACE), (REPLACE,)),
    ("SRAM threshold: replace", found("gpu.sram.threshold", Severity.CRITICAL, REPLACE), (REPLACE,)),
    ("accelerating: drained after the job", found("gpu.ecc.accelerating", Severity.WARNING, HUMAN), (HUMAN,)),
    *((f"{number}: a job's own", xid(number), ()) for number in (13, 31, 43, 45)),
]
LOST = ("gpu.lost", "gpu.count.off_bus", "gpu.count.driver_lost")
FIRST = [
    *((f"{number}: replaced", xid(number), (REPLACE,)) for number in (63, 64, 79, 94, 95, 48, 171, 172)),
    *((f"{code}: replaced, as 79 is", found(code, Severity.CRITICAL, REBOOT), (REPLACE,)) for code in LOST),
    ("remap failure: replaced", found("gpu.remap.failure", Severity.CRITICAL, REPLACE), (REPLACE,)),
    ("119: by its own remedy", xid(119), (RESET, REBOOT, REPLACE)),
    *((f"{number}: a job's own", xid(number), ()) for number in (13, 31, 43, 45)),
]


@pytest.mark.parametrize(
    ("diagnosis", "expected"), [row[1:] for row in NVIDIA], ids=[row[0].replace(" ", "-") for row in NVIDIA]
)
def test_nvidia_says(diagnosis: Diagnosis, expected: tuple[Remedy, ...]) -> None:
    """Each row of what the default policy is to say."""
    assert ladder(policy_of(PolicySection(), "p5.48xlarge"), diagnosis) == expected


@pytest.mark.parametrize(
    ("diagnosis", "expected"), [row[1:] for row in FIRST], ids=[row[0].replace(" ", "-") for row in FIRST]
)
def test_replace_first_says(diagnosis: Diagnosis, expected: tuple[Remedy, ...]) -> None:
    """Each row of AWS's guidance for clusters with spare capacity; one line of configuration switches to it."""
    assert ladder(policy_of(PolicySection(use="replace-first"), None), diagnosis) == expected


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_rule_says_why_and_who(name: str) -> None:
    """A reason that is a sentence, a source, and codes that a check can find."""
    for rule in rules_named(name):
        assert len(rule.reason) > 40
        assert len(rule.source) > 20
        assert not rule.site


@pytest.mark.parametrize("name", SHIPPED)
def test_no_shipped_rule_is_needless(name: str) -> None:
    """A rule stands only where the finding's own remedy would come to another ladder, for at least one of its codes."""
    own = Policy()
    policy = policy_of(PolicySection(use="nvidia" if name == "nvidia" else "replace-first"), None)
    rows = NVIDIA if name == "nvidia" else FIRST
    for rule in rules_named(name):
        told = [row[1] for row in rows if policy.rule_for(row[1].code, row[1].component, row[1].codes) == rule]
        assert any(ladder(policy, each) != ladder(own, each) for each in told), rule.name


def test_what_is_critical_and_nobodys_to_repair_keeps_jobs_off() -> None:
    """XID 154 that asks to recover the IMEX domain has no repair of ours, and takes the node out."""
    assert policy_of(PolicySection(), None).calling([xid(154, case="to:5")])


def test_a_sites_rule_comes_first() -> None:
    """A rule of the configuration is tried before the shipped ones, on its instance types."""
    row = PolicyRule(
        name="ours", codes=("gpu.xid.79",), reason="x", source="y", instance_types=("p4d.*",), ladder=("replace_node",)
    )
    section = PolicySection(rule=(row,))
    assert ladder(policy_of(section, "p4d.24xlarge"), xid(79)) == (REPLACE,)
    assert ladder(policy_of(section, "p5.48xlarge"), xid(79)) == (REBOOT, REPLACE)


# ---------------------------------------------------------------------------------------------------------------------
# mistakes


def test_a_rule_may_name_an_instance_type_as_sagemaker_does() -> None:
    """``ml.p5.48xlarge`` is p5.48xlarge, as in ``[[match]]``: healthd knows a node of HyperPod by the latter."""
    rule = PolicyRule(
        name="ours", codes=("gpu.xid.79",), reason="x", source="y", instance_types=("ml.p5.*",), ladder=()
    )
    section = PolicySection(rule=(rule,))
    for known in ("p5.48xlarge", "ml.p5.48xlarge"):
        assert ladder(policy_of(section, known), xid(79)) == ()
    assert ladder(policy_of(section, "p4d.24xlarge"), xid(79)) == (REBOOT, REPLACE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tilte = 'x'\n" + GOOD, "p.toml:1: tilte: no such key; did you mean title?"),
        ("zzz = 1\n" + GOOD, "p.toml:1: zzz: no such key; expected title and [[rule]]"),
        ("rule = 3\n", "p.toml:1: rule = 3: expected a list of tables; write [[rule]] and its keys below"),
        (
            GOOD + 'lader = ["reset_gpu"]\n',
            'p.toml:6: rule[0].lader = ["reset_gpu"]: no such key; did you mean ladder?',
        ),
        (GOOD + 'ladder = ["reset"]\n', 'each element one of "ask_human", "reset_gpu", "reboot_node", "replace_node"'),
        (GOOD + 'ladder = ["replace_node", "reset_gpu"]\n', "replace_node, reset_gpu goes down; expected each remedy"),
        (GOOD + 'ladder = ["ask_human", "reset_gpu"]\n', "ladder: ask_human must stand alone"),
        (GOOD + 'mode = "observ"\n', 'did you mean "observe"?'),
        (GOOD.replace("ticket 7", " "), "p.toml:4: rule[0].source"),
        (GOOD.replace('source = "ticket 7"\n', ""), "p.toml:1: rule[0].source: missing; add it"),
        (GOOD + GOOD, "p.toml: rule: two rules have the name 'ours'; rename one"),
        (GOOD.replace("xid.79", "remap.pendin"), 'p.toml:5: rule[0].codes = "gpu.remap.pendin": no check has such'),
        (GOOD.replace("gpu.xid.79", "zzz"), "`healthd checks` lists every code"),
        (GOOD + 'together_with = ["gpu.remap.pendin"]\n', "p.toml:6: rule[0].together_with"),
        ("[[rule]\n", "not TOML"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, message: str) -> None:
    """Where, the value, what was expected and the next step."""
    with pytest.raises(ConfigError) as caught:
        rules_in(text, "p.toml")
    assert message in str(caught.value)


def test_all_mistakes_are_told() -> None:
    """One does not hide another, across rules."""
    with pytest.raises(ConfigError) as caught:
        rules_in(GOOD.replace("79", "x", 0) + "lader = []\n" + GOOD + "mod = 1\n", "p.toml")
    assert len(caught.value.problems) == 2
    assert caught.value.problems[1].startswith("p.toml:12: rule[1].mod = 1")


def test_a_misspelt_code_in_the_configuration_is_refused() -> None:
    """A rule that could never match is a mistake, and is told with what was probably meant."""
    section = PolicySection(rule=(PolicyRule(name="ours", codes=("gpu.remap.fail",), reason="x", source="y"),))
    with pytest.raises(ConfigError, match=r"policy.rule\[0\].codes.*did you mean gpu.remap.failure"):
        policy_of(section, None)


def test_a_misspelt_code_is_marked_on_its_line() -> None:
    """``config validate`` shows the line of the rule that could never match."""
    section = PolicySection(rule=(PolicyRule(name="ours", codes=("gpu.remap.fail",), reason="x", source="y"),))
    text = GOOD.replace("[[rule]]", "[[policy.rule]]")
    (problem,) = code_problems(section, "c.toml", text)
    assert str(problem).startswith('c.toml:5: policy.rule[0].codes = "gpu.remap.fail": no check has such a code')


@pytest.mark.parametrize("glob", ["gpu.xid.79", "gpu.xid.14?", "gpu.*", "*", "gpu.xid.*", "site.hung_task"])
def test_members_and_globs_of_families_are_known(glob: str) -> None:
    """A family's members are in no list, and a glob over them is no mistake."""
    assert "gpu.xid.*" in known_codes()
    assert rules_in(GOOD.replace("gpu.xid.79", glob), "p.toml")[0].codes == (glob,)


def test_two_rules_of_one_name_in_the_configuration_are_refused() -> None:
    """A decision names its rule, so a name is given once."""
    row = PolicyRule(name="ours", codes=("*",), reason="x", source="y")
    with pytest.raises(ValueError, match="two have the name 'ours'"):
        PolicySection(rule=(row, row))


def test_a_rule_is_shown_so_that_it_can_be_loaded_again() -> None:
    """``config show`` leaves out what a rule does not say: TOML has no word for nothing."""
    row = PolicyRule(name="ours", codes=("gpu.xid.79",), reason="x", source="y")
    text = f"rule = {toml_value(plain((row,)))}"
    assert rules_in(text, "shown.toml")[0].ladder is None


def test_a_file_is_a_policy_too(tmp_path: Path) -> None:
    """A policy that is being written can be tried by its path; what is no policy says which there are."""
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + 'mode = "quarantine"\n')
    (rule,) = rules_named(str(path))
    assert (rule.name, rule.mode, rule.site) == ("ours", Mode.QUARANTINE, True)
    with pytest.raises(ConfigError, match="no such policy, and no file.*did you mean nvidia"):
        rules_named("nvida")
    with pytest.raises(ConfigError, match="expected nvidia, replace-first, or a file"):
        rules_named(str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="not a regular file"):
        rules_named(str(tmp_path))


# ---------------------------------------------------------------------------------------------------------------------
# jobs


def test_on_job_of_a_rule_goes_before_that_of_the_policy() -> None:
    """And both are read from the configuration."""
    rule = PolicyRule(name="r", codes=("gpu.xid.79",), reason="r", source="s", on_job="requeue after 5m")
    policy = policy_of(PolicySection(rule=(rule,), on_job="signal:USR1 then requeue after 60s"), None)
    by_code = {code: policy.answers((xid(code),))[0].on_job for code in (79, 95)}
    assert {code: str(each) for code, each in by_code.items()} == {
        79: "requeue after 300s",
        95: "signal:USR1 then requeue after 60s",
    }
    assert str(policy_of(PolicySection(), None).on_job) == "wait"


@pytest.mark.parametrize("text", ["requeue", "signal:USR1", "signal:KILL then requeue after 5s", "requeue after 5", ""])
def test_an_on_job_that_is_none_is_refused(text: str) -> None:
    """A signal that cannot be handled is no checkpoint, and a time has its unit."""
    with pytest.raises(ConfigError, match=r"requeue after 5m"):
        rules_in(f'{GOOD}on_job = "{text}"\n', "site.toml")


def test_whether_the_owner_is_told_is_a_rules_to_say() -> None:
    """Left out, it is as the policy says; a rule of another part says nothing about this one."""
    rule = PolicyRule(name="r", codes=("gpu.xid.79",), reason="r", source="s", notify_owner=False, components=("gpu",))
    policy = policy_of(PolicySection(rule=(rule,)), None)
    gpu = gpu_component(index=3)
    assert [policy.notifies_owner(code, gpu) for code in ("gpu.xid.79", "gpu.xid.95")] == [False, True]
    assert policy.notifies_owner("gpu.xid.79", NODE)
    assert not policy_of(PolicySection(notify_owner=False), None).notifies_owner("gpu.xid.79", gpu)
