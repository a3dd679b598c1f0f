"""``healthd explain``: a runbook, of which the policy says the part that healthd does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from healthd.api.grammar import parse
from healthd.checklib.runbooks import steps
from healthd.cli import explain
from healthd.cli.runbook import SCHEMA
from healthd.core.check import discover
from healthd.core.errors import ConfigError, UsageError

PAGE = Path(__file__).parents[3] / "docs/reference/explain.md"


@pytest.fixture
def empty(tmp_path: Path) -> str:
    path = tmp_path / "config.toml"
    path.write_text("")
    return str(path)


def said(config: str, *words: str) -> str:
    return explain.answer(parse(["explain", *words, "--config", config])).out


def data(config: str, *words: str) -> Any:
    return json.loads(said(config, *words, "--json"))


def test_a_runbook_answers_five_questions(empty: str) -> None:
    """Can I use the node, what does healthd do, what can I do, when does it end, who says so."""
    out = said(empty, "79")
    assert out.startswith("gpu.xid.79: The GPU does not answer on PCIe")
    heads = re.findall(r"^(\S.*?)(?: \(policy nvidia\))?$", out, re.MULTILINE)[1:]
    assert heads == [
        "Can I use the node?",
        "What healthd does in each mode",
        "What you can do",
        "When it ends",
        "Why",
        "Source",
    ]
    assert "No: `healthd check` exits with 1" in out
    assert "  By evidence, never by age: a reboot or another machine." in out


def test_no_command_is_broken_over_two_lines(empty: str) -> None:
    """A command can be copied from the line where it stands."""
    for code in ("79", "efa.counters.keep_alive", "gpu.xid.154", "lustre.lbug"):
        assert [line for line in said(empty, code).splitlines() if line.count("`") % 2] == []


@pytest.mark.parametrize(
    ("code", "mode", "words"),
    [
        ("gpu.xid.79", "observe", "report it, and take no node out"),
        ("gpu.xid.79", "quarantine", "take the node out of service; once the fault is over, verify"),
        ("gpu.xid.79", "approve", "each act after `healthd approve`"),
        (
            "gpu.xid.79",
            "repair",
            "reboot the node; verify that the node is healthy; put the node back in service. If",
        ),
        ("gpu.xid.46", "repair", "If it comes back: reboot the node, then replace the machine, then page an operator"),
        ("gpu.xid.63", "repair", "If it comes back: reboot the node, then page an operator"),
        ("efa.counters.keep_alive", "repair", "page an operator, and leave the node in service"),
        ("gpu.ecc.accelerating", "repair", "page an operator, because healthd cannot repair it; take a budget slot"),
        ("lustre.missing", "repair", "once the fault is over"),
        ("gpu.xid.13", "repair", "report it; no node is taken out for it"),
        ("host.filesystem.full", "repair", "report it; no node is taken out for it"),
    ],
)
def test_what_healthd_does_is_what_the_policy_decides(empty: str, code: str, mode: str, words: str) -> None:
    """In each mode, by the rules of the shipped policy."""
    assert words in data(empty, code)["forms"][0]["modes"][mode]


def test_the_sites_own_rule_changes_what_healthd_does(tmp_path: Path) -> None:
    """The runbook is that of this node: another rule, another text; and the page is where the site has it."""
    path = tmp_path / "config.toml"
    path.write_text(
        '[notify]\nrunbooks = "https://docs.example.com/runbooks"\n'
        '[[policy.rule]]\nname = "ours"\ncodes = ["gpu.xid.79"]\nladder = ["replace_node"]\nmode = "quarantine"\n'
        'reason = "spares"\nsource = "ticket 7"\n'
    )
    found = data(str(path), "79")
    assert "once the fault is over" in found["forms"][0]["modes"]["repair"]
    assert found["url"] == "https://docs.example.com/runbooks/gpu.xid.79.html"
    assert "Page: https://docs.example.com/runbooks/gpu.xid.79.html" in said(str(path), "79")


def test_each_form_has_its_own_steps(empty: str) -> None:
    """Where the text of the line decides, so does the runbook."""
    plain, no_spare = data(empty, "64")["forms"]
    assert (plain["calls_for"], no_spare["form"], no_spare["calls_for"]) == ("reset_gpu", "no_spare", "replace_node")
    assert "--step replace" in " ".join(no_spare["do"])
    assert "  no_spare: A row or bank of GPU memory has no spare left" in said(empty, "64")


def test_every_code_is_explained_with_its_source(empty: str) -> None:
    """No code lacks a step, an end or the place where its meaning was read."""
    for code in (code.code for check in discover().values() for code in check.codes):
        form = data(empty, code)["forms"][0]
        assert (bool(form["do"]), bool(form["ends"]), bool(form["usable"])) == (True, True, True), code
        assert form["source"] or code.startswith(("gpu.xid", "nvswitch.sxid", "plugin", "site")), code
        assert form["do"] == list(steps(code, None)) or form["do"], code


def test_the_fields_are_those_of_the_page(empty: str) -> None:
    """The page of the JSON names the schema and each field."""
    text = PAGE.read_text(encoding="utf-8")
    runbook, of_text = data(empty, "79"), data(empty, "operator.quarantine")
    assert runbook["schema"] == SCHEMA
    for schema in (runbook["schema"], of_text["schema"]):
        assert f"`{schema}`" in text
    fields = {*runbook, *runbook["forms"][0], *of_text}
    assert {name for name in fields if f"| `{name}` |" not in text} == set()


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        ("efa.misin", "efa.missing"),
        ("gpu.remap.pendign", "gpu.remap.pending"),
        ("gpu.xdi.79", "gpu.xid.79"),
        ("HealthyWithWarning", "HealthyWithWarnings"),
        ("zzz", "checks"),
    ],
)
def test_a_misspelt_code_names_the_nearest(empty: str, wanted: str, nearest: str) -> None:
    """The message has the code that was meant, or where all of them are."""
    with pytest.raises(UsageError, match=nearest):
        said(empty, wanted)


def test_a_broken_configuration_is_named_only_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runbook can be read while the node's configuration is wrong, by the shipped policy, with a notice."""
    monkeypatch.setenv("HEALTHD_REMEDIATION_MODE", "sometimes")
    reply = explain.answer(parse(["explain", "79"]))
    assert reply.out.startswith("gpu.xid.79")
    assert "by the shipped policy, not this node's" in reply.err
    path = tmp_path / "config.toml"
    path.write_text("")
    with pytest.raises(ConfigError):
        said(str(path), "79")
