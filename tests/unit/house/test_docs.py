"""The pages say what the code says, and lead where they say they lead."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import healthd
from healthd import remediation
from healthd.checklib.xids import sxid_table, xid_table
from healthd.core.check import discover
from healthd.observe.report import EXIT_CODE, SCHEMA
from tests.support.pages import blocks
from tests.support.scripts import load_script

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
REFERENCE = ROOT / "docs/reference"
BY = "<!-- Made by docs/generate.py from"
GENERATED = sorted(
    {
        *(path for path in PAGES if path.read_text(encoding="utf-8").startswith(BY)),
        *(ROOT / "docs/pictures").glob("drawn-*.svg"),
        REFERENCE / "config.schema.json",
        REFERENCE / "notification.schema.json",
        REFERENCE / "policy.schema.json",
        ROOT / "README.md",
        ROOT / "packaging/helm/healthd/values.schema.json",
        ROOT / "packaging/imagebuilder/healthd.yaml",
        ROOT / "packaging/ssm/healthd-install.yaml",
    }
)
FOLDERS = ("bench", "checks", "docs", "healthd", "packaging", "remediation", "tests")
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
MAX_README_LINES = 200
MAX_WORDS = 3_000
IN_PARTS = ROOT / "CHANGELOG.md"  # one file here, and pages of the site


@cache
def generator() -> ModuleType:
    """docs/generate.py, as a module."""
    return load_script("docs_generate", ROOT / "docs/generate.py")


@pytest.fixture(scope="module")
def made() -> Mapping[Path, str]:
    """Every generated page, made anew."""
    pages: Mapping[Path, str] = generator().pages()
    return pages


def prose(path: Path) -> str:
    """A page without what stands in fences or in backquotes."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def links(path: Path) -> Iterator[str]:
    yield from (link for link in LINK.findall(prose(path)) if not link.startswith(("https://", "http://")))


# ---------------------------------------------------------------------------------------------------------------------
# generated pages


@pytest.mark.process
@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_generated_page_is_what_the_code_says(path: Path, made: Mapping[Path, str]) -> None:
    """No reference page can be out of date: it equals what docs/generate.py makes of the code now."""
    assert path.read_text(encoding="utf-8") == made[path], "run: python docs/generate.py"


@pytest.mark.process
def test_every_generated_page_is_compared(made: Mapping[Path, str]) -> None:
    """A page that is added to the generator is compared as well, and one that it no longer makes is gone."""
    assert sorted(made) == sorted(GENERATED)


def test_the_picture_of_the_house_shows_every_package() -> None:
    """Each box of the mermaid blocks names packages that there are, and no package is missing."""
    text = (ROOT / "docs/explanation/the-house.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```mermaid\nflowchart TD\n(.*?)```", text, re.DOTALL)
    drawn = {name for block in blocks for box in re.findall(r'L\d+\["(.*)"\]', block) for name in box.split(" · ")}
    there = {each.name for folder in (healthd, remediation) for each in pkgutil.iter_modules(folder.__path__)}
    assert drawn == there | {"__main__"} - {"__init__"}
    assert all(block.count("-->") == len(re.findall(r"\[", block)) - 1 for block in blocks)


def test_every_code_and_every_xid_is_on_the_page() -> None:
    """Nothing that a check can find is missing from the reference."""
    text = "".join(path.read_text(encoding="utf-8") for path in (REFERENCE / "findings").glob("*.md"))
    codes = {code.code for check in discover().values() for code in check.codes}
    assert {code for code in codes if f"| `{code}` |" not in text} == set()
    assert {xid for xid in xid_table() if f"\n| {xid} |" not in text} == set()


def test_a_missed_aim_is_called_missed() -> None:
    """The table of figures says of each aim whether it was met, and hides none."""
    record = {"benchmark": "b", "p50_ms": 150.0, "p99_ms": 2.0, "aim_p50_ms": 100.0, "aim_p99_ms": 500.0}
    text = generator().figures([{**record, "machine": "m", "python": "3"}])
    assert "| `p50_ms` | 150 | at most 100 | **missed** |" in text
    assert "| `p99_ms` | 2 | at most 500 | met |" in text
    assert "## b\n\nm, Python 3." in text
    record = {"benchmark": "b", "a_second": 240_000, "least_a_second": 250_000, "machine": "m", "python": "3"}
    assert "| `a_second` | 240000 | at least 250000 | **missed** |" in generator().figures([record])


def test_an_aim_without_a_figure_is_refused() -> None:
    """An aim whose figure was renamed does not vanish from the table in silence."""
    record = {"benchmark": "b", "aim_p50_ms": 100.0, "machine": "m", "python": "3"}
    with pytest.raises(ValueError, match="aim_p50_ms belongs to no figure"):
        generator().figures([record])


def test_a_cell_cannot_break_its_table() -> None:
    """A bar or a line break in a docstring does not end a cell, and an angle bracket is no tag outside of code."""
    assert generator().cell("a|b\n<c> ``<d>``") == "a\\|b &lt;c> `<d>`"


# ---------------------------------------------------------------------------------------------------------------------
# every page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of this repository, and every anchor a heading in it."""
    for link in links(path):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{path.name}: {link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{path.name}: {link} has no such heading"


def test_no_command_for_root_reads_where_every_user_writes() -> None:
    """A user of the node could lay another package or configuration there, or change the one that was copied. The
    tutorial of a first node is for an operator's own machine."""
    shell = [each for each in blocks() if each.page != "docs/tutorial/first-node.md" and each.language == "sh"]
    assert len(shell) > 50
    assert [str(each) for each in shell if re.search(r"/tmp/|/dev/shm", each.text)] == []


def test_a_command_about_healthds_own_objects_names_their_namespace() -> None:
    """``kubectl`` looks into the namespace of the operator's kubeconfig, where there are none."""
    texts = [
        *PAGES,
        *(ROOT / "packaging").rglob("*.md"),
        *(ROOT / "remediation").rglob("*.*"),
        *ROOT.glob("healthd/**/*.py"),
    ]
    found = [
        (path.name, words)
        for path in texts
        if path.suffix in (".md", ".py", ".csv")
        for words in re.findall(
            r"kubectl [^`\n]*\b(?:exec|scale|rollout|lease|deploy/|job/)[^`\n]*", path.read_text("utf-8")
        )
    ]
    assert len(found) > 20
    assert [each for each in found if not re.search(r" -(n|-namespace|A)\b", each[1])] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    """No page is lost: following links from the README comes by all of them."""
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        waiting += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link.partition("#")[0]]
    assert {page.relative_to(ROOT).as_posix() for page in set(PAGES) - seen} == set()


@pytest.mark.parametrize("path", [path for path in PAGES if path != IN_PARTS], ids=lambda path: path.stem)
def test_a_page_can_be_read(path: Path) -> None:
    """No page has more than 3,000 words: a longer one is an index with pages below it."""
    assert len(path.read_text(encoding="utf-8").replace("|", " ").split()) <= MAX_WORDS


def test_the_readme_can_be_read_in_one_sitting() -> None:
    """The README stays under 200 lines; the rest has pages of its own."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < MAX_README_LINES


def test_the_changelog_has_each_topic_on_one_screen() -> None:
    """An operator reads what changed in 0.2.0 by topic; what to do at the upgrade comes first."""
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    short = [section for section in sections if "in short" in section.partition("\n")[0]]
    assert len(short) >= 10
    assert "at the upgrade" in sections[0].partition("\n")[0]
    assert {section.partition("\n")[0]: section.count("\n") for section in short if section.count("\n") > 45} == {}


def test_the_readme_names_the_exit_codes() -> None:
    """Each verdict's exit code stands in the README's table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for verdict, code in EXIT_CODE.items():
        assert re.search(rf"^\| {code} \| .*{verdict}", text, re.MULTILINE), (verdict, code)


def test_every_field_of_the_verdict_is_described() -> None:
    """The page of the JSON names the schema and each field that healthd/observe/report.py writes."""
    text = (REFERENCE / "verdict.md").read_text(encoding="utf-8")
    source = (ROOT / "healthd/observe/report.py").read_text(encoding="utf-8")
    written = set(re.findall(r'^ {8}"(\w+)": ', source, re.MULTILINE))
    for named in re.findall(r"\bjson_fields\(\w+, (.*)\)", source):
        written |= set(re.findall(r'"(\w+)"', named))
    assert {"schema", "findings", "remedy"} <= written
    assert SCHEMA in text
    assert {name for name in written if f"| `{name}` |" not in text} == set()


@pytest.mark.parametrize("path", sorted((ROOT / "docs/decisions").glob("[!R]*.md")), ids=lambda path: path.stem)
def test_a_decision_is_dated_and_says_its_price(path: Path) -> None:
    """A decision page has its date, what was decided, why, and what it costs."""
    text = path.read_text(encoding="utf-8")
    assert re.search(r"^20\d\d-\d\d-\d\d · ", text, re.MULTILINE)
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Decision", "Why", "Price"]


@pytest.mark.parametrize(
    "path", [path for path in PAGES if path not in GENERATED or path.name == "README.md"], ids=lambda path: path.stem
)
def test_codes_in_the_text_exist(path: Path) -> None:
    """A finding code in backquotes is one that a check declares, or an XID of the table."""
    known = {code.code for check in discover().values() for code in check.codes} | set(discover())
    known |= {f"gpu.xid.{xid}" for xid in xid_table()} | {f"nvswitch.sxid.{sxid}" for sxid, _ in sxid_table()}
    known |= example_names()
    kinds = "|".join(sorted({name.partition(".")[0] for name in known}))
    text = path.read_text(encoding="utf-8")
    spoken = set(re.findall(rf"`((?:{kinds})\.[a-z][a-z0-9_.]*[a-z0-9])`", text))
    assert {name for name in spoken - known if not name.endswith((".py", ".md", ".html"))} == set()


def test_paths_and_classes_in_the_text_exist() -> None:
    """A path in backquotes is of this tree, or of the example check, and the module of a class of it or a library."""
    tree = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    parts = [name.parts for path in tree for name in (path, path.with_suffix(""))]
    known = {"/".join(each[at:]) for each in parts for at in range(len(each))}
    for name in (name.replace(".", "_") for name in example_names()):
        known |= {f"checks/{name}.py", f"tests/checks/test_{name}.py"}
    roots = {path.parts[-2] for path in tree}
    wrong = set()
    for path in set(PAGES) - {IN_PARTS}:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        paths = re.findall(r"`([a-z0-9_.-]+(?:/[a-z0-9_.-]+)+)/?`", text)
        modules = re.findall(r"`([a-z_]+)\.[A-Z]\w+`", text)
        named = {name for name in paths if name.partition("/")[0] in roots}
        named |= {name for name in modules if find_spec(name) is None}
        wrong |= {f"{path.stem}: {name}" for name in named - known}
    assert wrong == set()


def example_names() -> set[str]:
    """The check that docs/how-to/write-a-check.md adds, and its code."""
    text = (ROOT / "docs/how-to/write-a-check.md").read_text(encoding="utf-8")
    return {
        *re.findall(r'^@check\("([^"]+)"', text, re.MULTILINE),
        *re.findall(r'^    code="([^"]+)"', text, re.MULTILINE),
    }
