"""The prose of the project keeps to the field's words: a list of banned phrases, over pages and shipped texts.

`BANNED` is the list: what to say instead, and regular expressions that hit the private use of a word and not ordinary
English. healthd's own words are in docs/reference/glossary.md. The globs of the three `…_CHECKED` are searched; add a
package to `CODE_CHECKED` once its docstrings and messages are clean.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec import Struct

ROOT = Path(__file__).parents[3]
PAGES_CHECKED: tuple[str, ...] = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/tutorial/*.md",
    "docs/how-to/*.md",
    "docs/explanation/*.md",
    "docs/decisions/*.md",
    "docs/reference/glossary.md",
    "docs/reference/explain.md",
    "docs/reference/status.md",
    "docs/reference/verdict.md",
    "docs/reference/aws-calls.md",
    "docs/reference/peers.md",
    "bench/README.md",
    "packaging/**/*.md",
    "packaging/**/NOTES.txt",
)
"""Globs below the root. The reference pages that are missing here are made from docstrings: see `CODE_CHECKED`."""
SHIPPED_CHECKED: tuple[str, ...] = (
    "packaging/**/*.yaml",
    "packaging/**/*.tpl",
    "packaging/**/*.sh",
    "packaging/**/*.service",
    "packaging/container/Dockerfile",
    "packaging/deb/*",
    "packaging/rpm/*.spec",
)
"""Globs of shipped files. The whole text is searched: comments, messages of policies, texts of alerts."""
CODE_CHECKED: tuple[str, ...] = (
    "checks/*.py",
    "docs/*.py",
    "healthd/**/*.py",
    "packaging/**/*.py",
    "remediation/**/*.py",
)
"""Globs of Python files whose docstrings and string constants are clean, such as ``checks/*.py``."""


# What to say instead, and the banned phrases: regular expressions in which a blank is any white space.
BANNED: Mapping[str, tuple[str, ...]] = {
    "the operator, the user, the administrator, or 'you'": (
        r"\bpersons?\b|\bpeople\b",
        r"\b(?:some|any|every|no)body\b",
        r"\b(?:some|any)one\b|\bwhom?ever\b",
    ),
    "again": (r"\banew\b",),
    "repair, fix": (r"\bmend(?:s|ed|ing)?\b",),
    "release, put back in service": (r"\blet(?:s|ting)? (?:(?:the|a|an|every|each|this|that|it) )?(?:\w+ )?in\b",),
    "command, execute, 'you ran healthd release'": (
        r"\bobey(?:s|ed|ing)?\b|\bobedien(?:t|ce)\b|\berrands?\b",
        r"\b(?:by|your|operator's) orders?\b|\ban order\b|\borders (?:of|from|by)\b",
        r"\b(?:is|are|was|were|be|been|has|have|had|you) ordered\b|\bordered (?:it|by|the)\b",
        r"\b(?:you|operator|administrator|it) orders?\b",
    ),
    "cluster view": (r"\bsurroundings\b",),
    "orphan": (r"\bleftovers?\b",),
    "the replacement, the new machine, adoption": (r"\bsuccessors?\b|\bpredecessors?\b",),
    "timeout": (r"\bpatience\b",),
    "healthy": (
        r"\b(?:is|are|was|were|be|been|stays?|stayed|looks?|once|though) well\b(?! (?:known|[a-z]+ed)\b)",
        r"\bwell (?:again|since)\b|\bthe well\b|\bunwell\b",
    ),
    "check run, the check runs again, poll, re-read, read": (
        r"\blook(?:s|ed|ing)? (?:again|anew)\b|\bonly looks?\b|\blook(?:s|ed|ing) on\b",
        r"\b(?:a|an|the|its|last|next|first|second|each|every|one|whole|cold) looks?\b",
        r"\bglanc(?:e|es|ed|ing)\b",
    ),
    "report, send a message, acknowledge": (
        r"\btold of\b|\b(?:is|are|was|were|be|been) told\b|\btells? (?:people|whom)\b",
    ),
    "not reported": (r"\buntold\b",),
    "undecided": (r"\bunsure\b",),
    "report, name, show": (r"\b(?:is|are|was|were|be) said\b",),
    "slot": (
        r"\bplaces? (?:in|of|on) the budget\b|\bof (?:\w+ )?places\b|\b(?:which|free|no|own) places\b",
        r"\b(?:takes?|took|holds?|held|holding|keeps?|kept|without) (?:an?|the|its|one|no|each|any) place\b(?! of\b)",
        r"\b(?:gives?|given|finds?|wants?|waits? for|frees?|own) (?:back )?(?:an?|the|its|one) place\b(?! of\b)",
    ),
    "node status": (r"\b(?:its|the node's|a node's) standing\b",),
    "compute, count, stats": (r"\breckon(?:s|ed|ing)?\b|\btall(?:y|ies|ied)\b",),
    "remediation": (
        r"\b(?:open|paused|its|their|the node's|every open|no open) cases?\b(?! of\b)",
        r"\bcases? (?:is|are|was|were) (?:open|opened|paused|closed|raised|over)\b",
    ),
    "handoff record": (r"\b(?:its|the|a|node's|old|own|each|every) marks?\b",),
    "reconcile": (r"\b(?:a|one|each|next|every|own) turns?\b(?! out)",),
    "sync": (r"\b(?:a|each|every|the|this|next|second|no|one|whole) rounds?\b", r"\brounds (?:fail|that|do)\b"),
    "run, cycle": (r"\b(?:go|goes|come|comes|came) round\b",),
}
EXPRESSIONS = [
    (re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), say)
    for say, patterns in BANNED.items()
    for pattern in patterns
]
# A sentence that begins with a pronoun and is no question. Headings and table heads end without a full stop.
EXPRESSIONS += [
    (
        re.compile(r"(?:^(?:- )?|(?<=[.!?:*]\s))(?-i:What|Who|Whatever)\s(?:(?!\n\n)[^.!?|])*\.(?!\w)", re.MULTILINE),
        "a noun as the subject: the node, the operator, the fault",
    )
]
RELEASED = re.compile(r"^## (?!Unreleased).*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
NOT_PROSE = re.compile(
    r"^( *)```.*?^\1```$"  # a fenced block
    r"|<!--.*?-->|`[^`]*`|\]\([^)\s]*\)|https?://\S+"  # a comment, code, the target of a link, an address
    r"|^ {4}[^\n]*$",  # an indented block
    re.DOTALL | re.MULTILINE,
)


class Passage(Struct, frozen=True, kw_only=True):
    """Prose, and where it begins. All else in it is blanked, so that its lines keep their numbers."""

    path: str
    line: int
    text: str


def prose_of(path: Path) -> Passage:
    """A page without code, comments, link targets and addresses; of the changelog, what is not released yet."""
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = RELEASED.sub(blanked, text)
    return Passage(path=shown(path), line=1, text=NOT_PROSE.sub(blanked, text))


def blanked(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "\0", found[0])


def text_of(path: Path) -> Passage:
    """A shipped file as it is: its comments and texts are for people, and its code has no banned phrase."""
    return Passage(path=shown(path), line=1, text=path.read_text(encoding="utf-8"))


def strings_of(path: Path) -> Iterator[Passage]:
    """Docstrings, docstrings of fields, messages and help: each string constant of a module that has a blank in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            text = re.sub(r"``?[^`]*``?", blanked, node.value)
            yield Passage(path=shown(path), line=node.lineno, text=text)


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def hits(passage: Passage) -> list[str]:
    """A line for each banned phrase: file, line, the phrase, and what to say instead."""
    found = [(match, say) for pattern, say in EXPRESSIONS for match in pattern.finditer(passage.text)]
    lines = sorted((passage.line + passage.text.count("\n", 0, match.start()), match[0], say) for match, say in found)
    return [f"{passage.path}:{line}: {' '.join(phrase.split())[:60]!r}: say {say}" for line, phrase, say in lines]


def matching(globs: tuple[str, ...]) -> list[Path]:
    return sorted({path for glob in globs for path in ROOT.glob(glob)})


@pytest.mark.parametrize("path", matching(PAGES_CHECKED), ids=shown)
def test_a_page_uses_the_fields_words(path: Path) -> None:
    """No page has a private word for what Slurm, Kubernetes, Prometheus or the glossary has a word for."""
    found = hits(prose_of(path))
    assert not found, "\n".join(["banned words:", *found])


@pytest.mark.parametrize("path", matching(SHIPPED_CHECKED), ids=shown)
def test_a_shipped_file_uses_the_fields_words(path: Path) -> None:
    """No comment, message or alert in packaging/ has a banned phrase."""
    found = hits(text_of(path))
    assert not found, "\n".join(["banned words:", *found])


def test_the_code_uses_the_fields_words() -> None:
    """No docstring, message or help text of the packages in CODE_CHECKED has a banned phrase."""
    found = [line for path in matching(CODE_CHECKED) for passage in strings_of(path) for line in hits(passage)]
    assert not found, "\n".join(["banned words:", *found])


def test_every_glob_finds_a_file() -> None:
    """A folder that is renamed does not drop out of the search."""
    assert [glob for glob in (*PAGES_CHECKED, *SHIPPED_CHECKED, *CODE_CHECKED) if not matching((glob,))] == []


@pytest.mark.parametrize(
    "text",
    [
        "A person\nmust act.",
        "Nobody reads it.",
        "every check looks anew",
        "and how to mend it",
        "it lets the node in again",
        "a place in the budget",
        "it gives the place back",
        "the node is well",
        "well again; settling",
        "an order of yours by scontrol",
        "a node that is out by order",
        "the open case is paused",
        "the mark that the old one left",
        "people are told of faults",
        "What stands stays.",
        "every round that fails",
        "**Decision.** What concerns Slurm is tested.",
    ],
)
def test_a_banned_phrase_is_found(text: str) -> None:
    """Each of these private words is hit, also across a line break."""
    assert hits(Passage(path="page.md", line=1, text=text))


@pytest.mark.parametrize(
    "text",
    [
        "The controller may as well run on the head node.",
        "healthd restarts in place, in order to keep the socket.",
        "In this case the job runs on; in any case it ends.",
        "The step takes place on the node; a copy takes the place of the file.",
        "Slurm lists nodes in the order of their names; an ordered list of rules.",
        "It is well known, and well tested.",
        "What does the operator do next?",
        "## What is kept",
        "A figure is rounded down; the other way round.",
        "It turns out that a question mark is missing.",
    ],
)
def test_ordinary_english_is_not_found(text: str) -> None:
    """The expressions hit the private use of a word, not the word."""
    assert hits(Passage(path="page.md", line=1, text=text)) == []


def test_a_hit_names_file_line_word_and_remedy(tmp_path: Path) -> None:
    """The message is enough to fix the sentence; code, comments and links are not searched."""
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n`anew` [x](anew.md)\n\n```text\nanew\n```\n\nIt begins\nanew.\n", encoding="utf-8")
    assert hits(prose_of(page)) == ["page.md:10: 'anew': say again"]


def test_released_history_is_not_searched(tmp_path: Path) -> None:
    """Of the changelog, the sections that are not released yet count."""
    page = tmp_path / "CHANGELOG.md"
    page.write_text("## Unreleased: b\n\nanew\n\n## 0.1.0\n\nanew\n\n## Unreleased: a\n\nanew\n", encoding="utf-8")
    assert hits(prose_of(page)) == ["CHANGELOG.md:3: 'anew': say again", "CHANGELOG.md:11: 'anew': say again"]


def test_strings_of_code_are_searched(tmp_path: Path) -> None:
    """Docstrings, docstrings of fields and messages are passages with their lines; names and keys are not."""
    module = tmp_path / "module.py"
    module.write_text('"""It begins anew."""\n\nx: int = 1\n"""Mend ``mend`` it."""\ny = "mend"\nz = f"mend {x}"\n')
    found = [line for passage in strings_of(module) for line in hits(passage)]
    assert [line.partition(": say")[0] for line in found] == [
        "module.py:1: 'anew'",
        "module.py:4: 'Mend'",
        "module.py:6: 'mend'",
    ]
