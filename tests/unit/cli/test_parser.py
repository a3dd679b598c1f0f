"""The grammar of the command line."""

from __future__ import annotations

import argparse
import re
import shlex
from datetime import timedelta

import pytest

from healthd import __version__
from healthd.__main__ import _LOCAL_ONLY
from healthd.api.grammar import _GROUPS, TextRequested, _grammar, parse
from healthd.api.overview import SECTIONS
from healthd.cli.daemon_verbs import INSTEAD, QUESTIONS
from healthd.core.errors import UsageError
from tests.support.pages import ROOT

VERBS = (
    "check",
    "run",
    "status",
    "plan",
    "history",
    "relearn",
    "ack",
    "explain",
    "checks",
    "config",
    "hook",
    "demo",
    "init",
    "doctor",
    "uninstall",
)
REASONED = ("relearn", "ack gpu.ecc --for 7d", "quarantine", "release", "repair", "approve c1", "undo c1")


def test_each_verb_is_in_one_group_of_the_grammar() -> None:
    """Its group alone parses it: a verb that no group names is parsed by all of them, which takes longer."""

    def verbs_of(grammar: argparse.ArgumentParser) -> list[str]:
        return [verb for each in grammar._actions if each.dest == "verb" for verb in each.choices or ()]

    known = [verb for verbs in _GROUPS.values() for verb in verbs]
    assert verbs_of(_grammar()) == known
    assert all(verbs_of(_grammar(verb)) == list(verbs) for verbs in _GROUPS.values() for verb in verbs)


@pytest.mark.parametrize("line", REASONED)
def test_a_reason_is_one_line(line: str) -> None:
    """Whichever verb asks for it: the trail has a line for each event."""
    assert parse([*line.split(), "--reason", "new\nboard\x1b[2J"]).reason == "new board [2J"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "check",
            {"verb": "check", "names": [], "context": "manual", "json": False, "no_daemon": False, "config": None},
        ),
        (
            "check gpu.ecc efa.devices --context prolog --json --no-daemon --config /c --socket /s",
            {
                "names": ["gpu.ecc", "efa.devices"],
                "context": "prolog",
                "json": True,
                "no_daemon": True,
                "config": "/c",
                "socket": "/s",
            },
        ),
        ("check --json gpu.ecc", {"names": ["gpu.ecc"], "json": True}),
        ("check --socket=/s", {"socket": "/s"}),
        ("run --config /c", {"verb": "run", "config": "/c"}),
        ("status --json", {"verb": "status", "json": True, "socket": None}),
        (
            "relearn gpu.count --reason swapped --yes --socket /s",
            {"names": ["gpu.count"], "reason": "swapped", "yes": True, "dry_run": False, "socket": "/s"},
        ),
        ("plan --json --socket /s", {"verb": "plan", "json": True, "socket": "/s"}),
        ("history", {"verb": "history", "last": 100, "json": False, "config": None}),
        ("history --last 5", {"last": 5}),
        (
            "ack gpu.xid.79@gpu:0000:05:00 --for 7d --reason known --dry-run",
            {"fault": "gpu.xid.79@gpu:0000:05:00", "length": timedelta(days=7), "reason": "known", "dry_run": True},
        ),
        ("ack gpu.ecc --for 30m --reason x", {"length": timedelta(minutes=30), "dry_run": False}),
        ("ack gpu.ecc --for 12h --reason x", {"length": timedelta(hours=12)}),
        ("ack gpu.ecc --for 2w --reason x", {"length": timedelta(weeks=2)}),
        ("explain 79", {"verb": "explain", "code": "79", "json": False}),
        ("checks --json", {"verb": "checks", "json": True}),
        ("config show", {"verb": "config", "what": "show"}),
        ("config validate --config /c", {"what": "validate", "config": "/c", "here": False}),
        ("config validate --here", {"what": "validate", "here": True}),
        ("config schema", {"verb": "config", "what": "schema"}),
        ("init --print", {"verb": "init", "print": True, "output": None}),
        ("init --output /c", {"print": False, "output": "/c"}),
        ("doctor --json --socket /s", {"verb": "doctor", "json": True, "socket": "/s", "config": None}),
        ("hook health-check-program", {"verb": "hook", "kind": "health-check-program"}),
        ("demo --fail-provisioner --keep", {"verb": "demo", "fail_provisioner": True, "keep": True}),
    ],
)
def test_the_forms_of_the_issue_are_understood(line: str, expected: dict[str, object]) -> None:
    """Verbs, names and options come out as their values."""
    options = vars(parse(line.split()))
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("chekc", "unknown verb 'chekc'; did you mean check"),
        ("zzz", "unknown verb 'zzz'"),
        ("drain", "unknown verb 'drain'; did you mean quarantine?"),
        ("incidents", "unknown verb 'incidents'; did you mean fleet?"),
        ("reboot", "unknown verb 'reboot'; did you mean repair --step reboot?"),
        ("runbook", "unknown verb 'runbook'; did you mean explain?"),
        ("ack gpu.ecc --for 7d --end --reason x", "not allowed with argument"),
        ("repair --step restart", "\\(choose from reset, reboot, replace\\)"),
        ("help chekc", "did you mean check?"),
        ("status --jsn", "unrecognized arguments: --jsn; did you mean --json?"),
        ("check --contxt=prolog", "did you mean --context?"),
        ("fleet --state repairng", "did you mean repairing?"),
        ("ack gpu.ecc --for 7days --reason x", "did you mean 7d?"),
        ("ack gpu.ecc --for 90min --reason x", "did you mean 90m?"),
        ("check --context lunch", "invalid choice: 'lunch'"),
        ("status -w", "unrecognized arguments: -w; did you mean --watch?"),
        ("status --watch --every 5s", "did you mean 5?"),
        ("config validate my.toml", "did you mean --config my.toml?"),
        ("drill xid seventynine", "'seventynine' is not the number of an XID or SXid; expected one such as 79"),
        ("--verison", "'--verison' is no option before the verb; did you mean --version?"),
        ("--json check", "'--json' is no option before the verb; write `healthd VERB OPTIONS`"),
        ("check --config", "expected one argument"),
        ("check --bogus", "unrecognized arguments: --bogus"),
        ("config", r"required: show\|validate\|schema"),
        ("hook", r"required: prolog\|epilog\|health-check-program"),
        ("policy", r"required: show\|test"),
        ("drill", "required: KIND"),
        ("relearn", "required: --reason"),
        ("relearn --reason x --yes --dry-run", "not allowed with"),
        *((f"{verb} --reason \x1b", "is empty; expected the reason") for verb in REASONED),
        ("history --last 0", "argument --last: '0' is not a number of lines; expected 1 to 100000"),
        ("history --last many", "'many' is not a number of lines"),
        ("history --last 9999999999", "'9999999999' is not a number of lines"),
        ("history --last 00000000199999999999999999999", "is not a number of lines"),
        ("history --after 99999999999999999999", "'99999999999999999999' is not the number of an event"),
        ("ack", "required: FAULT, --reason"),
        ("ack gpu.ecc --for 7 --reason x", "'7' is not a valid length of time; expected a number and m, h, d or w"),
        ("ack gpu.ecc --for 0d --reason x", "'0d' is not a valid length of time"),
        ("ack gpu.ecc --for 366d --reason x", "up to 365d"),
        ("hook start", "invalid choice: 'start'"),
        ("explain", "required: CODE"),
        ("run now", "unrecognized arguments: now"),
    ],
)
def test_a_mistake_is_a_usage_error_with_the_next_step(line: str, words: str) -> None:
    """The message says what is wrong and where help is; the process is not ended here."""
    with pytest.raises(UsageError, match=rf"{words}.*(; see|\? See) healthd.* --help"):
        parse(line.split())


@pytest.mark.parametrize("line", ["check --no-d", "check --conf /c", "check --sock /s", "status --js", "--vers"])
def test_options_are_not_abbreviated(line: str) -> None:
    """The hot path looks for whole words; an abbreviation that only the grammar understood would ask the wrong daemon,
    or ask one where none was wanted."""
    with pytest.raises(UsageError):
        parse(line.split())


def test_the_help_has_every_verb_once_and_an_example_of_each_section() -> None:
    """``healthd``, ``healthd help`` and ``healthd --help`` show it; each example is understood."""
    with pytest.raises(TextRequested) as shown:
        parse([])
    listed = [verb for verbs, _, _ in SECTIONS.values() for verb in verbs]
    assert sorted(listed) == sorted(verb for verbs in _GROUPS.values() for verb in verbs)
    for title, (_, example, _) in SECTIONS.items():
        assert f"\n{title}\n" in str(shown.value)
        assert parse(shlex.split(example)[1:]).verb
    assert all(len(line) <= 90 for line in str(shown.value).splitlines())
    for line in ("help", "--help", "-h"):
        with pytest.raises(TextRequested, match=re.escape(str(shown.value))):
            parse([line])


def test_help_and_version_are_words_too() -> None:
    """As operators type them."""
    for words, other in (("version", "--version"), ("help status", "status --help")):
        texts = []
        for line in (words, other):
            with pytest.raises(TextRequested) as shown:
                parse(line.split())
            texts.append(str(shown.value))
        assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("line", ["--help", "-h", *(f"{verb} --help" for verb in VERBS)])
def test_help_is_a_text(line: str) -> None:
    """Help is shown by whoever prints; parsing never writes or exits."""
    with pytest.raises(TextRequested, match=r"^usage: healthd"):
        parse(line.split())


def test_the_version_is_a_text() -> None:
    """One line with the name and the version."""
    with pytest.raises(TextRequested) as shown:
        parse(["--version"])
    assert str(shown.value) == f"healthd {__version__}\n"


@pytest.mark.parametrize("option", _LOCAL_ONLY)
def test_what_keeps_the_hot_path_at_home_is_in_the_grammar(option: str) -> None:
    """Each word for which the client does not ask the daemon is an option of ``check``, or of the program."""
    arguments = ["check", option, "/c"] if option == "--config" else ["check", option]
    if option == "--version":
        arguments = [option]
    if option in ("--help", "-h", "--version"):
        with pytest.raises(TextRequested):
            parse(arguments)
    else:
        assert parse(arguments).verb == "check"


def test_a_verb_without_a_module_of_its_name_is_answered_by_the_daemon_alone() -> None:
    """And no other is: the module of its own name answers that."""
    rest = {
        "ack": ["x", "--for", "1h", "--reason", "r"],
        "approve": ["c1", "--step", "reset"],
        "drill": ["xid"],
        "relearn": ["--reason", "r"],
        "quarantine": ["--reason", "r"],
        "undo": ["c1", "--reason", "r"],
    }
    modules = {path.stem for path in (ROOT / "healthd" / "cli").glob("*.py")}
    others = {verb for verb in _grammar().verbs() if verb.replace("-", "_") not in modules}
    assert {verb: parse([verb, *rest.get(verb, [])]).module for verb in others} == dict.fromkeys(others, "daemon_verbs")
    assert QUESTIONS.keys() | INSTEAD.keys() <= others
