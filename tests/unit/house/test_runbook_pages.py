"""Every code, every alert and every operator's command has its page, and each alert leads to one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from healthd.checklib.runbooks import page_of
from healthd.checklib.xids import sxid_table, xid_table
from healthd.core.check import discover
from healthd.remediation.decide.remediation import ORDERED
from tests.support.scripts import load_script

ROOT = Path(__file__).parents[3]
BASE = "https://runbooks.example.com"
MOST_WORDS = 1_000
"""Of a page: it is read at night."""


@cache
def pages() -> Mapping[str, str]:
    made: Mapping[str, str] = load_script("docs_runbooks", ROOT / "docs/runbooks.py").pages()
    return made


def alerts() -> list[Mapping[str, Mapping[str, str]]]:
    return list(load_script("docs_runbooks", ROOT / "docs/runbooks.py").alerts())


def test_every_code_has_its_page() -> None:
    """Each declared code, each XID, each SXid by its family, and an operator's commands."""
    codes = [code.code for check in discover().values() for code in check.codes]
    codes += [f"gpu.xid.{xid}" for xid in xid_table()] + [f"nvswitch.sxid.{sxid}" for sxid, _ in sxid_table()]
    codes += [code.replace(".*", ".0") for code in codes if code.endswith(".*")]
    assert {code for code in (*codes, *ORDERED) if page_of(code) not in pages()} == set()


def test_every_alert_has_its_page_and_leads_to_one() -> None:
    """An alert about a code leads to the code's page, by the family where only that has one; another to its own."""
    for rule in alerts():
        name, url = str(rule["alert"]), rule["annotations"]["runbook_url"]
        assert name in pages()
        if "$labels.code" in url:
            pattern, group = re.findall(r'"([^"]*)"', url)
            assert (url.startswith(f"{BASE}/{{{{"), url.endswith("}}.html"), group) == (True, True, "$1")
            shown = re.compile(pattern.replace("\\\\", "\\"))
            codes = ["gpu.xid.79", "efa.missing", "site.disk.slow", "plugin.quota", "nvswitch.sxid.20034"]
            codes += ["gpu.xid.repeated_across_jobs.31"]
            assert [shown.sub(r"\1", code) for code in codes] == [page_of(code) for code in codes]
        else:
            assert url == f"{BASE}/{name}.html"


def test_a_page_answers_and_is_short() -> None:
    """A page of a code has the five answers, no page is long, and no template of Prometheus is left in one."""
    for name, text in pages().items():
        assert text.startswith(f"# {name}"), name
        assert "## What you can do" in text, name
        assert "{{" not in text, name
        assert len(text.split()) <= MOST_WORDS, name
    for head in ("Can I use the node?", "What healthd does", "When it ends", "Source"):
        assert f"## {head}" in pages()["gpu.xid.79"]


def test_the_pages_of_findings_link_each_code() -> None:
    """On the site every code and every XID leads to its runbook: from the index, and from the page that has it."""
    module = load_script("docs_runbooks", ROOT / "docs/runbooks.py")
    reference = ROOT / "docs/reference"
    index = module.linked_index((reference / "findings.md").read_text(encoding="utf-8"))
    below = [module.linked(path.read_text(encoding="utf-8")) for path in (reference / "findings").glob("*.md")]
    for text in (index, "".join(below).replace("](../", "](")):
        targets = set(re.findall(r"\]\(runbooks/([^)]*)\.md\)", text))
        assert targets - set(pages()) == set()
        assert {page_of(code.code) for check in discover().values() for code in check.codes} <= targets
        assert {f"gpu.xid.{xid}" for xid in xid_table()} <= targets
