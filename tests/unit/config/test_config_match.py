"""``[[match]]``: one configuration for many kinds of node. Which sections hold, what is refused, who wins."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, field
from msgspec.structs import fields

from healthd.agent.node_facts import ThisNode
from healthd.api.grammar import parse
from healthd.cli import settings
from healthd.cli.config import answer
from healthd.config.load import Loaded, examine, load
from healthd.config.match import holds
from healthd.config.report import documented_fields, shown
from healthd.config.schema.config import Config, MatchSection
from healthd.core.errors import BackendUnknown, ConfigError, SourceUnreadable
from healthd.core.model import Mode
from tests.unit.config.test_config_load import CHECKS, NOWHERE, write


class FakeFacts(Struct, kw_only=True):
    """A node of plain values, or of errors; it counts what it is asked."""

    is_host: str = "p5-7"
    is_label: tuple[str, ...] = ("pool=train", "zone=a")
    is_instance_type: str | Exception = "p5.48xlarge"
    is_partition: tuple[str, ...] | Exception = ("gpu", "all")
    asked: list[str] = field(default_factory=list)

    def host(self) -> Collection[str]:
        return self._told("host", (self.is_host,))

    def label(self) -> Collection[str]:
        return self._told("label", self.is_label)

    def instance_type(self) -> Collection[str]:
        error = self.is_instance_type
        return self._told("instance_type", error if isinstance(error, Exception) else (error,))

    def partition(self) -> Collection[str]:
        return self._told("partition", self.is_partition)

    def _told(self, what: str, value: tuple[str, ...] | Exception) -> tuple[str, ...]:
        self.asked.append(what)
        if isinstance(value, Exception):
            raise value
        return value


def loaded(path: Path, facts: FakeFacts | None = None, **environ: str) -> Loaded:
    return load(path, checks=CHECKS, environ=environ, default_path=NOWHERE, who=lambda _: facts or FakeFacts())


def ecc_limit(path: Path, facts: FakeFacts | None = None, **environ: str) -> int:
    limit = loaded(path, facts, **environ).config.checks["gpu.ecc"].settings.max_correctable
    assert isinstance(limit, int)
    return limit


def matching(condition: str, value: int = 3) -> str:
    return f'[[match]]\n{condition}\n[match.checks."gpu.ecc"]\nmax_correctable = {value}\n'


# ---------------------------------------------------------------------------------------------------------------------
# which hold


@pytest.mark.parametrize(
    ("condition", "pattern", "fitting", "others"),
    [
        ("host", "p5-7", ["p5-7"], ["p5-77", "xp5-7", "P5-7"]),
        ("host", "p5-*", ["p5-7", "p5-"], ["p6-7"]),
        ("host", "p5-[1-32]", ["p5-1", "p5-7", "p5-32"], ["p5-0", "p5-33", "p5-07", "p5-", "p5-x"]),
        ("host", "p5-[1-4,12,40-41]", ["p5-2", "p5-12", "p5-40", "p5-41"], ["p5-5", "p5-1,2"]),
        ("host", "n[001-128]", ["n001", "n099", "n128"], ["n1", "n129", "n0001"]),
        ("host", "r[1-2]n[01-10]", ["r1n01", "r2n10"], ["r3n01", "r1n1", "r1n11"]),
        ("host", "*-st-gpu-[1-2]", ["queue-st-gpu-2"], ["queue-dy-gpu-2", "queue-st-gpu-3"]),
        ("host", "node[abc]", ["nodea", "nodec"], ["noded", "nodeab"]),
        ("host", "node[!a]?", ["nodeb1"], ["nodea1"]),
        ("host", "node[9-1]", [], ["node1", "node5", "node9"]),
        ("host", "node.1", ["node.1"], ["nodex1"]),
        ("instance_type", "p5.*", ["p5.48xlarge", "p5.4xlarge"], ["p5e.48xlarge", "p4d.24xlarge"]),
        ("instance_type", "ml.p5*", ["p5.48xlarge", "p5en.48xlarge"], ["ml.g5.xlarge"]),
        ("label", "pool=train*", ["pool=train", "pool=train-2"], ["pool=serve", "mypool=train"]),
        ("partition", "gpu", ["gpu"], ["gpu2", "GPU"]),
    ],
)
def test_what_fits_a_pattern(condition: str, pattern: str, fitting: list[str], others: list[str]) -> None:
    """Globs, whole and case by case; numbers in brackets are Slurm's hostlists, with their width, for hosts."""
    assert [value for value in [*fitting, *others] if holds(condition, pattern, value)] == fitting


@pytest.mark.parametrize(
    ("condition", "limit"),
    [
        ('host = ["p5-[1-32]"]', 3),
        ('host = ["p6-*", "p5-*"]', 3),
        ('host = ["p6-*"]', 10),
        ('instance_type = ["p5.*"]', 3),
        ('instance_type = ["p5.*"]\nhost = ["p6-*"]', 10),
        ('instance_type = ["p5.*"]\nhost = ["p5-*"]\nlabel = ["zone=b", "zone=a"]\npartition = ["gpu"]', 3),
        ('label = ["zone=b"]', 10),
        ('partition = ["cpu"]', 10),
    ],
)
def test_all_conditions_and_any_of_each(tmp_path: Path, condition: str, limit: int) -> None:
    """Every condition of a match must hold; of a condition's list one is enough."""
    assert ecc_limit(write(tmp_path, matching(condition))) == limit


def test_a_later_match_wins_and_the_environment_over_all(tmp_path: Path) -> None:
    """Default, files, matches in their order, environment; key by key, and each value knows where it is from."""
    text = '[remediation]\nmode = "quarantine"\nmax_attempts = 5\n'
    text += (
        matching('host = ["p5-*"]', 3) + '[match.remediation]\nmode = "repair"\n' + matching('label = ["pool=*"]', 4)
    )
    path = write(tmp_path, text)
    known = loaded(path)
    remediation = known.config.remediation
    assert (remediation.mode, remediation.max_attempts, ecc_limit(path)) == (Mode.REPAIR, 5, 4)
    assert known.origin(("remediation", "mode")) == f"{path}:9 (match[0])"
    assert known.origin(("checks", "gpu.ecc", "max_correctable")) == f"{path}:13 (match[1])"
    assert known.origin(("remediation", "max_attempts")) == f"{path}:3"
    assert ecc_limit(path, HEALTHD_CHECKS_GPU_ECC_MAX_CORRECTABLE="9") == 9


def test_a_match_lies_over_every_file(tmp_path: Path) -> None:
    """A later file that holds everywhere does not undo a match of an earlier one; its own match does."""
    default = write(tmp_path, matching('host = ["*"]', 3))
    write(tmp_path, '[checks."gpu.ecc"]\nmax_correctable = 6\n', "conf.d/20.toml")

    def limit() -> int:
        made = load(None, checks=CHECKS, environ={}, default_path=default, who=lambda _: FakeFacts())
        found = made.config.checks["gpu.ecc"].settings.max_correctable
        assert isinstance(found, int)
        return found

    assert limit() == 3
    write(tmp_path, matching('host = ["*"]', 7), "conf.d/30.toml")
    assert limit() == 7


def test_a_fact_is_asked_for_once_and_only_if_needed(tmp_path: Path) -> None:
    """Partitions cost a question to slurmctld: never where no match names them or a cheaper condition has failed."""
    facts = FakeFacts()
    loaded(write(tmp_path, '[remediation]\nmode = "repair"\n'), facts)
    assert facts.asked == []
    loaded(write(tmp_path, matching('host = ["p6"]\npartition = ["gpu"]') + matching('host = ["p5-7"]')), facts)
    assert facts.asked == ["host"]
    failing = FakeFacts(is_partition=BackendUnknown("slurmctld does not answer"))
    loaded(write(tmp_path, 3 * matching('partition = ["gpu"]')), failing)
    assert failing.asked == ["partition"]


@pytest.mark.parametrize(
    ("modes", "mode"),
    [
        (("repair", ("gpu", "observe")), "observe"),
        (("observe", ("gpu", "repair")), "observe"),
        (("repair", ("gpu", "quarantine"), ("gpu", "observe"), ("gpu", "approve")), "observe"),
        (("repair", ("gpu", "observe"), ("", "quarantine")), "quarantine"),
        (("repair", ("", "quarantine"), ("gpu", "observe")), "observe"),
    ],
)
def test_while_a_partition_is_not_known_the_lowest_possible_mode_applies(
    tmp_path: Path, modes: tuple[Any, ...], mode: str
) -> None:
    """A match that protects a partition holds until slurmctld answers, unless a later match overrides it anyway."""
    base, *matches = modes
    text = f'[remediation]\nmode = "{base}"\n'
    for partition, each in matches:
        condition = f'partition = ["{partition}"]' if partition else 'host = ["p5-*"]'
        text += f'[[match]]\n{condition}\n[match.remediation]\nmode = "{each}"\n'
    path = write(tmp_path, text)
    known = loaded(path, FakeFacts(is_partition=BackendUnknown("slurmctld does not answer")))
    config, notices = known.cautious()
    assert config.remediation.mode == mode
    assert "slurmctld does not answer" in notices[0]
    is_lower = known.config.remediation.mode != mode
    assert is_lower is any(f"until that is known the mode is {mode}" in each for each in notices)
    fixed = load(
        path,
        checks=CHECKS,
        environ={"HEALTHD_REMEDIATION_MODE": "repair"},
        who=lambda _: FakeFacts(is_partition=BackendUnknown("slurmctld does not answer")),
    )
    assert fixed.cautious()[0].remediation.mode is Mode.REPAIR
    assert loaded(path).cautious()[1] == ()


def test_what_cannot_be_told_is_no_match_and_is_said(tmp_path: Path) -> None:
    """It is in every report; a condition that fails for certain needs no notice."""
    facts = FakeFacts(is_instance_type=SourceUnreadable("DMI is hidden"))
    path = write(tmp_path, matching('instance_type = ["p5.*"]') + matching('instance_type = ["p5.*"]\nhost = ["x"]'))
    known = loaded(path, facts)
    assert ecc_limit(path, facts) == 10
    why = "instance_type is not known: DMI is hidden"
    assert known.notices == (f"configuration: {path}:1 (match[0]) does not hold here: {why}",)
    assert known.rulings[1] == f'{path}:5 (match[1]) does not hold here: host is ["p5-7"]'


def test_nobody_to_ask_applies_none_and_says_so(tmp_path: Path) -> None:
    """Whoever reads a configuration without a node gets what holds everywhere."""
    known = load(write(tmp_path, matching('host = ["*"]')), checks=CHECKS, environ={}, default_path=NOWHERE)
    assert known.config.checks["gpu.ecc"].settings.max_correctable == 10
    assert known.notices == ("configuration: no match section is applied: the node is not known here",)


# ---------------------------------------------------------------------------------------------------------------------
# what is refused


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[match]\nhost = ["a"]\n',
            "1: match: expected a list of tables; write [[match]], and [match.SECTION] below it",
        ),
        ("match = 3\n", "1: match: expected a list of tables"),
        (
            '\n[[match]]\n[match.remediation]\nmode = "repair"\n',
            "2: match[0]: no condition, so it would hold everywhere",
        ),
        ("[[match]]\nhost = []\n", "2: match[0].host = []: expected a list of names or globs such as p5.*"),
        ('[[match]]\nhost = "p5"\n', '2: match[0].host = "p5": expected a list of names'),
        ('[[match]]\nhost = ["p5-[1-4],p5-9"]\n', '2: match[0].host = ["p5-[1-4],p5-9"]: expected a list of names'),
        ('[[match]]\njob_qos = ["high,low"]\n', '2: match[0].job_qos = ["high,low"]: expected a list of names'),
        ('[[match]]\nhots = ["p5"]\n', "2: match[0].hots: no such key; did you mean match[0].host?"),
        ('[[match]]\nlabel = ["train"]\n', '2: match[0].label = ["train"]: expected a list of labels'),
        (
            '[[match]]\nhost = ["a"]\n\n[[match]]\nhost = ["b"]\n[match.remediation]\nmode = "reapir"\n',
            '7: match[1].remediation.mode = "reapir": expected one of "observe", "quarantine", "approve", "repair"; ',
        ),
        (
            '[[match]]\nhost = ["a"]\n[match.checks."gpu.ecc"]\nmax_corectable = 3\n',
            '4: match[0].checks."gpu.ecc".max_corectable: no such key; did you mean match[0].checks."gpu.ecc".max_corr',
        ),
        (
            '[[match]]\nhost = ["a"]\nremediation = 3\n',
            "expected a section, not a value; write [match.remediation] and",
        ),
        (
            '[[match]]\nhost = ["a"]\n[match.checks.gpu.ecc]\n',
            'the name of a check is quoted: write [match.checks."gpu.ecc"]',
        ),
        ('[[match]]\nhost = ["a"]\n[match.checks.gpu]\necc = 1\n', "3: match[0].checks.gpu: no such check"),
        (
            '[[match]]\nhost = ["nobody"]\n[match.checks."gpu.ecc"]\nmax_correctable = -1\n',
            '4 (match[0]): checks."gpu.ecc": max_correctable is -1, expected at least 0',
        ),
    ],
)
def test_every_match_is_checked_also_where_it_does_not_hold(tmp_path: Path, text: str, problem: str) -> None:
    """Each mistake has its line and its match; one node's section cannot be broken without all knowing."""
    with pytest.raises(ConfigError) as caught:
        loaded(write(tmp_path, text))
    (message,) = caught.value.problems
    assert problem in message


@pytest.mark.parametrize("name", ["node", "sources", "daemon"])
def test_what_is_read_first_may_not_be_in_a_match(tmp_path: Path, name: str) -> None:
    """Who the node is cannot depend on who the node is."""
    path = write(tmp_path, f'[[match]]\nhost = ["a"]\n[match.{name}]\nname = "x"\n')
    (problem,) = examine(path, checks=CHECKS, environ={}).problems
    assert str(problem) == (
        f"{path}:3: match[0].{name}: not allowed in a match: healthd reads it before it knows which node this is; "
        f"write [{name}] outside of any match"
    )


def test_two_matches_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """Each may be right by itself; what they come to on this node is checked as well."""

    class Pair(Struct, frozen=True, kw_only=True):
        low: int = 0
        high: int = 10

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError(f"low is {self.low}, expected at most high, {self.high}")

    low, high = ('[[match]]\nhost = ["*"]\n[match.checks."a.b"]\nlow = 8\n', "high = 5\n")
    path = write(tmp_path, f'{low}[[match]]\nhost = ["p5*"]\n[match.checks."a.b"]\n{high}')

    def problems(host: str) -> tuple[str, ...]:
        facts = FakeFacts(is_host=host)
        examined = examine(path, checks={"a.b": Pair}, environ={}, who=lambda _: facts)
        return tuple(map(str, examined.problems))

    assert problems("p6-1") == ()
    (problem,) = problems("p5-1")
    assert "low is 8, expected at most high, 5" in problem
    assert f"{path}:4 (match[0]), {path}:8 (match[1])" in problem


# ---------------------------------------------------------------------------------------------------------------------
# shown and documented


def test_show_says_which_matches_hold(tmp_path: Path) -> None:
    """Above the values, as comments: what is shown can be loaded again, and comes to the same."""
    path = write(tmp_path, matching('host = ["p5-*"]'))
    known = loaded(path)
    text = shown(known)
    assert text.startswith(f'# {path}:1 (match[0]) holds here: host is ["p5-7"]\n\n[node]\n')
    assert f"max_correctable = 3                          # {path}:4 (match[0])" in text
    assert loaded(write(tmp_path, text, "again.toml")).config == known.config


def test_every_condition_is_documented() -> None:
    """The reference page is made from these."""
    assert [row.name for row in documented_fields(MatchSection)] == [item.name for item in fields(MatchSection)]


# ---------------------------------------------------------------------------------------------------------------------
# this machine


def this_node(environ: Mapping[str, str], **node: str | tuple[str, ...]) -> ThisNode:
    text = {f"HEALTHD_NODE_{name.upper()}": json.dumps(value) for name, value in node.items()}
    config = load(None, checks={}, environ={**text, **environ}, default_path=NOWHERE).config
    return ThisNode(config, {})


def test_who_this_is_as_configured(tmp_path: Path) -> None:
    """Name, type and labels as set; labels also from the environment, as Kubernetes fills it."""
    node = this_node({}, name="n1", instance_type="ml.p5.48xlarge", labels=("pool=train",))
    assert (node.host(), node.instance_type(), node.label()) == (("n1",), ("p5.48xlarge",), ("pool=train",))
    assert this_node({"HEALTHD_NODE_LABELS": '["a=b", "c=d"]'}).label() == ("a=b", "c=d")


def test_a_type_that_nothing_tells(tmp_path: Path) -> None:
    """Without DMI of EC2 and without configuration it cannot be told, and the advice says what to set."""
    with pytest.raises(SourceUnreadable, match=r"set \[node\] instance_type"):
        this_node({"HEALTHD_SOURCES_SYS_ROOT": str(tmp_path)}).instance_type()


def test_a_node_without_slurm_is_in_no_partition() -> None:
    """That is known, not unknown."""
    assert this_node({"HEALTHD_ORCHESTRATOR_KIND": "local"}).partition() == ()


def test_the_command_line_asks_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """config show, and with it every verb, reads the matches of the node that it runs on."""
    monkeypatch.setenv("HEALTHD_NODE_NAME", "p5-7")
    path = write(tmp_path, '[[match]]\nhost = ["p5-[1-8]"]\n[match.budget]\nmax_out = 3\n')
    options = parse(["config", "show", "--json", "--config", str(path)])
    values = json.loads(answer(options).out)["values"]
    assert values["budget.max_out"] == {"value": 3, "origin": f"{path}:4 (match[0])"}
    config: Config = settings.loaded(options).config
    assert config.budget.max_out == 3
