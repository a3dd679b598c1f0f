"""The runbook pages of the site: one for each code that a check finds, for each alert, and for an operator's commands.

    python docs/runbooks.py FOLDER     write them there, as Markdown

`docs/site.py` puts them below `docs/reference/runbooks`. They are in no commit: the tables, the checks, the policy and
the alerts are, and `healthd explain CODE` prints the same from those.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from healthd.checklib.runbooks import page_of  # noqa: E402 - runs from a checkout in which nothing is installed
from healthd.checklib.xids import xid_table  # noqa: E402
from healthd.cli.codes import form_of, forms_of  # noqa: E402
from healthd.cli.node_texts import NodeText, node_text  # noqa: E402
from healthd.cli.runbook import CodeRunbook, FormRunbook, runbook_of  # noqa: E402
from healthd.config.schema.config import PolicySection  # noqa: E402
from healthd.core.check import discover  # noqa: E402
from healthd.core.model import Mode  # noqa: E402
from healthd.remediation.decide.remediation import ORDERED  # noqa: E402
from healthd.remediation.policy_files import policy_of  # noqa: E402

RULES = ROOT / "packaging/prometheus/rules.yaml"
_CODE_ROW = re.compile(r"^\| `([a-z0-9_.*]+)` \|", re.MULTILINE)
_XID_ROW = re.compile(r"^\| ([0-9]+) \|", re.MULTILINE)
_INDEX_ROW = re.compile(r"^(\| \[[a-z0-9 ]+\]\(findings/(?!sxids)[^)]*\) \|)(.*)$", re.MULTILINE)


def pages() -> Mapping[str, str]:
    """Every page by its name, without a suffix."""
    runbooks = [*_of_codes(), *_of_xids()]
    made = {page_of(each.code): code_page(each) for each in runbooks}
    made["nvswitch.sxid"] += "\nEach number is a row of [findings](../findings.md#sxids).\n"
    made |= {code: text_page(code, row) for code in ORDERED if (row := node_text(code)) is not None}
    return made | {rule["alert"]: alert_page(rule) for rule in alerts()}


def alerts() -> Sequence[Mapping[str, Any]]:
    """The alerting rules of packaging/prometheus/rules.yaml, in their order."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def _of_codes() -> Iterator[CodeRunbook]:
    """The codes that the checks declare; a family is one of them."""
    policy = policy_of(PolicySection(), None)
    for check in discover().values():
        for code in check.codes:
            found = forms_of(code.code) if not code.code.endswith(".*") else None
            yield runbook_of(*(found or (check, (form_of(check, code),))), policy)


def _of_xids() -> Iterator[CodeRunbook]:
    """The XIDs that have a row."""
    policy = policy_of(PolicySection(), None)
    found = (forms_of(f"gpu.xid.{xid}") for xid in xid_table())
    return (runbook_of(*each, policy) for each in found if each is not None)


# ---------------------------------------------------------------------------------------------------------------------
# the pages


def code_page(runbook: CodeRunbook) -> str:
    """The page of a code."""
    plain, *others = runbook.forms
    form = plain.form
    check = f"[{runbook.found_by}](../checks/{runbook.found_by}.md)"
    parts = [
        f"# {runbook.code}",
        prose(f"{form.meaning}."),
        f"Severity {form.severity}, calls for `{form.remedy}`, found by {check}.",
        f"On a node, `healthd explain {runbook.code}` prints the same, by the policy of that node.",
        *map(prose, form.notes),
        "## Can I use the node?",
        prose(plain.usable),
        "## What healthd does",
        modes_table(plain.modes),
        "## What you can do",
        numbered(plain.do),
        "## When it ends",
        prose(plain.ends),
        *(["## Why", prose(form.reason)] if form.reason else []),
        "## Source",
        prose(form.source),
        *(["## Other forms", *other_forms(others, plain)] if others else []),
    ]
    return "\n\n".join(parts) + "\n"


def other_forms(others: Sequence[FormRunbook], plain: FormRunbook) -> Iterator[str]:
    """The further forms in a table, then the steps of those that have others than the plain one."""
    rows = [
        (each.form.form, each.form.meaning, each.form.severity, f"`{each.form.remedy}`", each.modes[Mode.REPAIR])
        for each in others
    ]
    lines = [f"| {' | '.join(map(prose, row))} |" for row in rows]
    head = ["| form | meaning | severity | calls for | in mode repair |", "| --- | --- | --- | --- | --- |"]
    yield "\n".join([*head, *lines])
    for do in dict.fromkeys(each.do for each in others if each.do != plain.do):
        names = ", ".join(each.form.form for each in others if each.do == do)
        yield f"What you can do about {prose(names)}:"
        yield numbered(do)


def text_page(name: str, row: NodeText) -> str:
    """The page of an operator's command, as it stands where else a code does."""
    parts = [f"# {name}", prose(f"{row.meaning}."), f"It is {row.where}.", "## What you can do", numbered(row.do)]
    return "\n\n".join(parts) + "\n"


def alert_page(rule: Mapping[str, Any]) -> str:
    """The page of an alert: what it says, and what it asks of the operator."""
    says, asks = rule["annotations"]["summary"], rule["annotations"]["description"]
    lasts = f" for {rule['for']}" if "for" in rule else ""
    parts = [
        f"# {rule['alert']}",
        f"Alert of severity {rule['labels']['severity']}: {prose(labels_as_words(says))}.",
        "## What you can do",
        prose(labels_as_words(asks)),
        "## When it fires",
        f"As long as this holds{lasts}:",
        f"```text\n{rule['expr'].strip()}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def labels_as_words(text: str) -> str:
    """A template of Prometheus with the names of its labels in capitals: ``{{ $labels.code }}`` is CODE."""
    named = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: found[1].upper(), text)
    return re.sub(r"\{\{ \$value[^}]*\}\}", "N", named)


def modes_table(modes: Mapping[Mode, str]) -> str:
    """The table of the modes."""
    rows = [f"| `{mode}` | {prose(words)} |" for mode, words in modes.items()]
    return "\n".join(["| mode | what healthd does |", "| --- | --- |", *rows])


def numbered(steps: Sequence[str]) -> str:
    """The steps, as a list."""
    return "\n".join(f"{number}. {prose(step)}" for number, step in enumerate(steps, 1))


def prose(text: str) -> str:
    """A text as Markdown: what would be taken for a tag or for emphasis is escaped, outside of backquotes."""
    parts = text.split("`")
    outside = (re.sub(r"([*_<])", r"\\\1", part) if not at % 2 else part for at, part in enumerate(parts))
    return "`".join(outside)


def linked(findings: str) -> str:
    """A page of findings, with a link from each code and each XID that begins a row to its runbook page."""
    codes = _CODE_ROW.sub(lambda found: f"| [`{found[1]}`](../runbooks/{found[1].removesuffix('.*')}.md) |", findings)
    if "\n# XIDs" not in findings:
        return codes
    return _XID_ROW.sub(lambda found: f"| [{found[1]}](../runbooks/gpu.xid.{found[1]}.md) |", codes)


def linked_index(findings: str) -> str:
    """The index of all findings, with a link from each code and each XID of its tables to its runbook page."""

    def row(found: re.Match[str]) -> str:
        codes = re.sub(r"`([a-z0-9_.]+)(\.\*)?`", r"[\g<0>](runbooks/\1.md)", found[2])
        return found[1] + re.sub(r"(?<![\w.])([0-9]+)(?=[, ])", r"[\1](runbooks/gpu.xid.\1.md)", codes)

    return _INDEX_ROW.sub(row, findings)


def written(folder: Path) -> None:
    """Write every page below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Write them."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python docs/runbooks.py FOLDER\n")
        return 64
    written(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
