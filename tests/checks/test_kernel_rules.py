"""kernel.rules: what a rule finds, what ends it, and which rules are refused before they can do harm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from healthd.checks.kernel_rules import KernelRulesSettings, SiteRule, kernel_rules
from healthd.config.load import Loaded, load
from healthd.config.report import as_data, shown
from healthd.core.check import discover
from healthd.core.errors import ConfigError
from healthd.core.model import NODE, ClearsBy, Remedy, Repeats, Result, Severity, Status
from healthd.core.node import KernelRecord
from healthd.testing import FakeNode
from tests.support.judgement import START, kernel_says

HANG = SiteRule(
    name="nic_hang", pattern=r"ixgbe (?P<pci>\S+) (?P<nic>\w+): Detected Tx Unit Hang", component="nic:{nic}"
)
LINE = "ixgbe 0000:05:00.0 eth1: Detected Tx Unit Hang"


def judge(*texts: str, rules: tuple[SiteRule, ...] = (HANG,)) -> Result:
    return kernel_rules(FakeNode(kernel_records=kernel_says(*texts)), KernelRulesSettings(rules=rules))


def configured(folder: Path, text: str, **environ: str) -> Loaded:
    path = folder / "config.toml"
    path.write_text(text)
    return load(path, checks={"kernel.rules": KernelRulesSettings}, environ=environ)


def refused(folder: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(folder, text, **environ)
    return "\n".join(caught.value.problems)


# ---------------------------------------------------------------------------------------------------------------------
# judging


def test_without_rules_there_is_nothing_to_do() -> None:
    """No rules: not applicable, whatever the log holds; with rules and nothing to see: ok."""
    assert judge(LINE, rules=()).status is Status.NOT_APPLICABLE
    assert judge("something else").status is Status.OK


def test_a_line_that_fits_is_a_finding_of_the_site() -> None:
    """The finding carries the rule's code, severity and remedy, its part, and the groups as evidence."""
    rule = replace(HANG, code="site.nic.hang", severity=Severity.CRITICAL, remedy=Remedy.REBOOT_NODE)
    (finding,) = judge(f"[ 12.5] {LINE}", rules=(rule,)).findings
    assert (finding.code, finding.severity, finding.remedy) == ("site.nic.hang", "critical", "reboot_node")
    assert str(finding.component) == "nic:eth1"
    assert (finding.evidence["pci"], finding.evidence["rule"], finding.evidence["count"]) == (
        "0000:05:00.0",
        "nic_hang",
        1,
    )
    assert finding.clears_by is ClearsBy.REBOOT
    assert finding.repeats is None
    assert finding.time == START


def test_a_rule_without_a_code_is_named_after_itself() -> None:
    """Its code is site.<name>; a warning without a clearing pattern is news."""
    (finding,) = judge(LINE).findings
    assert (finding.code, finding.clears_by) == ("site.nic_hang", ClearsBy.NOTHING)


def test_lines_are_folded_by_part() -> None:
    """Many lines of one part are one finding with a count; another part is another."""
    first, second = judge(LINE, LINE, LINE.replace("eth1", "eth2")).findings
    assert (first.evidence["count"], str(second.component)) == (2, "nic:eth2")


def test_a_count_is_judged_in_its_window() -> None:
    """A rule with a count hands history the number and the window; what it counts are the lines."""
    (finding,) = judge(LINE, LINE, rules=(replace(HANG, count=5, window_s=60.0),)).findings
    assert finding.repeats == Repeats(times=5, window_s=60.0)
    assert finding.evidence["count"] == 2


def test_a_clearing_line_ends_the_finding_of_its_part() -> None:
    """It is evidence for this code on this part; the next line after it is a new fault."""
    rule = replace(HANG, clears=r"ixgbe \S+ (?P<nic>\w+): NIC Link is Up")
    result = judge(LINE, "ixgbe 0000:05:00.0 eth1: NIC Link is Up 10 Gbps", LINE, rules=(rule,))
    (over,) = result.clearances
    assert (over.by, str(over.component), over.code) == (ClearsBy.LOG_LINE, "nic:eth1", "site.nic_hang")
    assert [finding.evidence["count"] for finding in result.findings] == [1, 1]
    assert result.findings[0].clears_by is ClearsBy.LOG_LINE


def test_a_group_that_took_no_part_leaves_the_node() -> None:
    """Where the line does not name its part, the node is what is known."""
    rule = SiteRule(name="x", pattern=r"link down(?: on (?P<nic>\w+))?", component="nic:{nic}")
    assert judge("link down", rules=(rule,)).findings[0].component == NODE


def test_words_of_a_user_that_the_kernel_echoes_fit_no_rule() -> None:
    """A pattern is compared from the start of the record; a site that wants another place says .* itself."""
    echoed = f"tmpfs: Unknown parameter '{LINE}'"
    assert judge(echoed).findings == ()
    anywhere = replace(HANG, pattern=rf".*{HANG.pattern}")
    assert len(judge(echoed, rules=(anywhere,)).findings) == 1


def test_endless_parts_are_the_nodes() -> None:
    """A pattern that names a new part in every line fills no memory: beyond 256 the node stands for them."""
    rule = SiteRule(name="x", pattern=r"noise from (?P<what>\S+)", component="what:{what}")
    found = judge(*[f"noise from {n}" for n in range(1000)], rules=(rule,)).findings
    assert len(found) == 257
    assert found[-1].component == NODE
    assert sum(finding.evidence["count"] for finding in found) == 1000


def test_the_reader_is_told_what_to_look_for() -> None:
    """The fixed text of each pattern goes to the reader of the log: no other record costs anything."""
    rules = (HANG, SiteRule(name="x", pattern=r".*rejected (?:by|at) \w+", clears=r"accepted again"))
    assert KernelRulesSettings(rules=rules).needles == ("^accepted again", "^ixgbe ", "rejected ")
    assert discover()["kernel.rules"].needles == ()


def test_a_line_of_a_user_is_labelled() -> None:
    """Admitted for a drill, a line says that it is no word of the kernel, and folds with none."""
    real = KernelRecord(boot_id="b", sequence=0, time=START, text=LINE)
    forged = replace(real, trusted=False, facility=1)
    node = FakeNode(kernel_records=[real, forged])
    first, second = kernel_rules(node, KernelRulesSettings(rules=(HANG,))).findings
    assert "trust_user_kmsg" not in first.message
    assert "trust_user_kmsg" in second.message


# ---------------------------------------------------------------------------------------------------------------------
# configuration

GOOD = """
[[checks."kernel.rules".rules]]
name = "nic_hang"
pattern = 'ixgbe \\S+ (?P<nic>\\w+): Detected Tx Unit Hang'
component = "nic:{nic}"
severity = "critical"
remedy = "reboot_node"
count = 3
window_s = 60

[[checks."kernel.rules".rules]]
name = "table_full"
pattern = "nf_conntrack: table full"
"""


def test_rules_are_read_from_tables(tmp_path: Path) -> None:
    """Each table is a rule; what it leaves out has its default."""
    rules = configured(tmp_path, GOOD).config.checks["kernel.rules"].settings.rules
    assert [rule.name for rule in rules] == ["nic_hang", "table_full"]
    assert (rules[0].severity, rules[0].remedy, rules[0].window_s) == (Severity.CRITICAL, Remedy.REBOOT_NODE, 60.0)
    assert (rules[1].severity, rules[1].count) == (Severity.WARNING, 1)


def test_rules_may_be_inline_or_in_the_environment(tmp_path: Path) -> None:
    """The same list as inline tables, in a file or in a variable."""
    inline = '[{name = "a", pattern = "some words"}]'
    for loaded in (
        configured(tmp_path, f'[checks."kernel.rules"]\nrules = {inline}\n'),
        configured(tmp_path, "", HEALTHD_CHECKS_KERNEL_RULES_RULES=inline),
    ):
        assert loaded.config.checks["kernel.rules"].settings.rules == (SiteRule(name="a", pattern="some words"),)


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    """`config show` writes rules as inline tables that mean the same."""
    loaded = configured(tmp_path, GOOD)
    section = shown(loaded).partition('[checks."kernel.rules"]')[2]
    again = configured(tmp_path, f'[checks."kernel.rules"]{section}')
    assert again.config.checks == loaded.config.checks
    rows: Any = as_data(loaded)['checks."kernel.rules".rules']["value"]
    assert rows[0]["name"] == "nic_hang"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('name = "a"', ["rules[0].pattern", "missing"]),
        ('name = "a"\npattern = "x("', ["rules[0]", "pattern = 'x('", "not a regular expression"]),
        ('name = "a"\npattern = "words"\nclears = "["', ["rules[0]", "clears = '['", "not a regular expression"]),
        ('name = "a"\npattern = "words"\nseverity = "criticl"', ["rules[0].severity", 'did you mean "critical"?']),
        ('name = "a"\npattern = "words"\nremedy = "explode"', ["rules[0].remedy", "expected one of"]),
        (
            'name = "a"\npattern = "words"\nseverety = "info"',
            ["rules[0].severety", "no such key", "did you mean severity?"],
        ),
        ('name = "A b"\npattern = "words"', ["rules[0]", "name = 'A b'"]),
        ('name = "a"\npattern = "words"\ncode = "gpu.xid.79"', ["rules[0]", "code = 'gpu.xid.79'", "site."]),
        ('name = "a"\npattern = "words"\nremedy = "reboot_node"', ["rules[0]", 'needs severity = "critical"']),
        ('name = "a"\npattern = "words"\ncomponent = "disk:{disk}"', ["rules[0]", "(?P<disk>"]),
        ('name = "a"\npattern = "words"\ncomponent = "Disk one"', ["rules[0]", "component = 'Disk one'"]),
        ('name = "a"\npattern = "words"\ncomponent = "disk"', ["rules[0]", "component = 'disk'"]),
        ('name = "a"\npattern = "words"\ncount = 0', ["rules[0]", "count = 0"]),
        ('name = "a"\npattern = "words"\ncount = "3"', ["rules[0].count", "a whole number"]),
        ('name = "a"\npattern = "(a+)+$ and words"', ["rules[0]", "repeats"]),
    ],
)
def test_a_bad_rule_is_refused_with_its_key(row: str, says: list[str], tmp_path: Path) -> None:
    """Configuration with a rule that cannot be judged, or could stall, is refused, and the message leads to the key."""
    problem = refused(tmp_path, f'[[checks."kernel.rules".rules]]\n{row}\n')
    for words in ('checks."kernel.rules".rules[0]', *says, "config.toml:"):
        assert words in problem


def test_every_problem_of_every_rule_is_told(tmp_path: Path) -> None:
    """A wrong value hides no other: both rows are named, also through the environment."""
    text = '[{name = "a"}, {name = "b", pattern = "words", severity = "x", remedy = "y"}, 5]'
    for problems in (
        refused(tmp_path, f'[checks."kernel.rules"]\nrules = {text}\n'),
        refused(tmp_path, "", HEALTHD_CHECKS_KERNEL_RULES_RULES=text),
    ):
        for key in ("rules[0].pattern", "rules[1].severity", "rules[1].remedy", "rules[2]"):
            assert key in problems


@pytest.mark.parametrize("value", ["5", '"x"', "{name = 'a'}", "[[1]]"])
def test_what_is_no_list_of_tables_is_refused(value: str, tmp_path: Path) -> None:
    """Anything else in its place is named, and what was expected."""
    assert "table" in refused(tmp_path, f'[checks."kernel.rules"]\nrules = {value}\n')


@pytest.mark.parametrize("second", ['name = "a"\npattern = "words"', 'name = "b"\ncode = "site.a"\npattern = "words"'])
def test_two_rules_cannot_share_a_name_or_a_code(second: str, tmp_path: Path) -> None:
    """One code has one meaning."""
    rows = ['name = "a"\npattern = "words"', second]
    problem = refused(tmp_path, "".join(f'[[checks."kernel.rules".rules]]\n{row}\n' for row in rows))
    assert "rename one" in problem


def test_too_many_rules_are_refused() -> None:
    """Every rule is tried on every line that holds its text: there is a bound."""
    with pytest.raises(ValueError, match="65 rules"):
        KernelRulesSettings(rules=tuple(SiteRule(name=f"r{n}", pattern=f"words {n}") for n in range(65)))


def test_the_worst_line_takes_no_time() -> None:
    """Rules at the limit of what is allowed, on lines made to hurt them, cost milliseconds."""
    rules = tuple(SiteRule(name=f"r{n}", pattern=rf"aaaa.*a{n}.*b{n}z") for n in range(8))
    started = time.process_time()
    judge(*["aaaa" + "a0a1a2a3a4a5a6a7" * 64] * 100, rules=rules)
    assert time.process_time() - started < 5.0


# ---------------------------------------------------------------------------------------------------------------------
# lines of the journal


AGENT = SiteRule(name="agent", pattern="probe failed on (?P<disk>[^ ]+)", source="journal", unit="probe.service")
ANY = SiteRule(name="any", pattern="probe failed", source="journal")


def journal(text: str, unit: str = "") -> KernelRecord:
    return KernelRecord(boot_id="b", sequence=1, time=START, text=text, facility=-1, source="journal", unit=unit)


def found(*records: KernelRecord, rules: tuple[SiteRule, ...]) -> list[str]:
    return [f.code for f in kernel_rules(FakeNode(kernel_records=records), KernelRulesSettings(rules=rules)).findings]


def test_a_rule_looks_at_its_own_log() -> None:
    """A line of a service is not the kernel's, and the other way round; a unit is that unit only."""
    kernel = replace(ANY, name="kernel", source="kernel")
    rules = (AGENT, ANY, kernel)
    assert found(journal("probe failed on sda", "probe.service"), rules=rules) == ["site.agent", "site.any"]
    assert found(journal("probe failed on sda", "other.service"), rules=rules) == ["site.any"]
    plain = KernelRecord(boot_id="b", sequence=1, time=START, text="probe failed on sda")
    assert found(plain, rules=rules) == ["site.kernel"]


def test_each_reader_gets_its_own_needles() -> None:
    """What nobody wants of a log is not looked for there; without journal rules the journal is not read."""
    settings = KernelRulesSettings(rules=(AGENT, HANG))
    assert settings.journal_needles == ("^probe failed on ",)
    assert settings.journal_units == {"probe.service"}
    assert settings.own_codes == {rule.slug for rule in settings.rules} != set()
    assert settings.needles == KernelRulesSettings(rules=(HANG,)).needles
    assert KernelRulesSettings(rules=(HANG,)).journal_needles == ()


@pytest.mark.parametrize(
    "text",
    ['unit = "probe.service"', 'source = "journal"\nunit = "probe"', 'source = "journal"\nunit = "a b.service"'],
)
def test_a_unit_is_one_of_the_journal(tmp_path: Path, text: str) -> None:
    """The kernel has no units, and a unit has a type."""
    rule = f'[[checks."kernel.rules".rules]]\nname = "a"\npattern = "probe failed"\n{text}\n'
    assert "expected a unit with its type, such as slurmd.service" in refused(tmp_path, rule)
