"""Builds the site of all pages into build/site, and ends with 1 for anything that mkdocs warns of.

    python docs/site.py            build/site
    python docs/site.py FOLDER     FOLDER

The site has the paths of the repository, so that a link means the same in both: what is built is a copy of the pages
and of each file that one of them leads to; beside them the runbook pages, which docs/runbooks.py makes. What it looks
like, and its table of contents, is in docs/mkdocs.yml. Nothing of it is fetched from elsewhere, neither here nor in a
browser.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs import diagrams  # noqa: E402 - runs from a checkout in which nothing is installed

MOST_WORDS = 2_500
CHANGELOG, STYLE, SCRIPT = Path("CHANGELOG.md"), Path("docs/site.css"), Path("docs/site.js")
_BOOSTED = "---\nsearch:\n  boost: 3\n---\n"  # a code leads to its runbook first
CONFIG = ROOT / "docs/mkdocs.yml"
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_TITLED = re.compile(r"^(```\w+) \S.*$", re.MULTILINE)  # Python-Markdown takes it for no fence
_DRAWN = re.compile(r"^!\[[^\]]*\]\([^)]*pictures/drawn-(\w+)\.svg\)$", re.MULTILINE)
_FLOWCHART = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_BOX = re.compile(r'^ *L\d+\["(.*)"\]$', re.MULTILINE)
FINDINGS = Path("docs/reference/findings.md")
FOLDERS = {
    "Tutorials": "docs/tutorial",
    "How to": "docs/how-to",
    "Reference": "docs/reference",
    "Explanation": "docs/explanation",
    "Decisions": "docs/decisions",
}


def pages() -> list[Path]:
    """Every page, below the root."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "packaging").rglob("*.md")]
    found += (ROOT / "bench").glob("*.md")
    return sorted(path.relative_to(ROOT) for path in found)


def led_to(page: Path) -> set[Path]:
    """The files of the repository, other than pages, that a page leads to."""
    targets = _LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    paths = ((ROOT / page.parent / target).resolve() for target in targets if "://" not in target)
    return {path.relative_to(ROOT) for path in paths if path.is_file() and path.suffix != ".md"}


def github(text: str, separator: str) -> str:
    """The anchor of a heading as GitHub makes it, which is what the links between pages are written for."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def copied(folder: Path) -> None:
    """All that the site is made of, in a folder of its own: mkdocs takes everything that it finds."""
    wanted = {path for page in pages() for path in (page, *led_to(page))}
    for path in wanted:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = (ROOT / path).read_text(encoding="utf-8")
            (folder / path).write_text(drawn(_TITLED.sub(r"\1", text)), encoding="utf-8")
        else:
            shutil.copy2(ROOT / path, folder / path)
    if CHANGELOG in wanted:
        in_parts(folder / CHANGELOG)
    (folder / STYLE).parent.mkdir(parents=True, exist_ok=True)
    (folder / STYLE).write_text(f"{(ROOT / STYLE).read_text(encoding='utf-8')}\n{_colours()}", encoding="utf-8")
    shutil.copy2(ROOT / SCRIPT, folder / SCRIPT)
    if FINDINGS in wanted:
        with_runbooks(folder)


def drawn(text: str) -> str:
    """A page whose pictures of docs/diagrams.py, and whose flowcharts, stand in it as SVG with the site's colours."""
    text = _DRAWN.sub(lambda found: _framed(diagrams.PICTURES[found[1]]()), text)
    return _FLOWCHART.sub(lambda found: _framed(diagrams.layers(_BOX.findall(found[1]))), text)


def _framed(picture: diagrams.Picture) -> str:
    """The picture in an element of its own, which scrolls where the screen is narrower."""
    return f'<div class="drawn-scroll" tabindex="0" role="group" aria-label="Picture">{picture.svg(alone=False)}</div>'


def _colours() -> str:
    """The colours of the pictures in the two schemes of the theme."""
    light, dark = diagrams.colours(diagrams.LIGHT), diagrams.colours(diagrams.DARK)
    return f'.drawn {{ {light} }}\n[data-md-color-scheme="slate"] .drawn {{ {dark} }}\n{diagrams.SHAPES}'


def in_parts(changelog: Path) -> None:
    """One file in the repository, and here a page for each of its headings, in parts where one is long."""
    head, *sections = re.split(r"^## ", changelog.read_text(encoding="utf-8"), flags=re.MULTILINE)
    folder = changelog.with_suffix("")
    folder.mkdir()
    links = []
    for section in sections:
        title, _, body = section.partition("\n")
        for number, part in enumerate(_portions(body.strip()), 1):
            shown = title if number == 1 else f"{title} ({number})"
            name = f"{github(shown, '-')}.md"
            moved = re.sub(r"\]\((?!https?:|#)", "](../", part)
            (folder / name).write_text(f"# {shown}\n\n{moved}\n", encoding="utf-8")
            links.append(f"- [{shown}]({folder.name}/{name})")
    changelog.write_text("\n".join([head, *links, ""]), encoding="utf-8")


def _portions(body: str) -> Iterator[str]:
    """The paragraphs and points of a text, as many together as fit a page."""
    part = ""
    for point in re.split(r"\n(?=- |\n)", body):
        if part and len(f"{part} {point}".split()) > MOST_WORDS:
            yield part
            part = ""
        part += f"\n{point}"
    yield part


def with_runbooks(folder: Path) -> None:
    """The page of each code and alert, and the links to them on the pages of findings."""
    from docs import runbooks  # with all checks: a tree of a few pages has none

    runbooks.written(folder / FINDINGS.parent / "runbooks")
    for page in (folder / FINDINGS.parent / "runbooks").glob("*.md"):
        page.write_text(_BOOSTED + page.read_text(encoding="utf-8"), encoding="utf-8")
    for page in (folder / FINDINGS, *(folder / FINDINGS.with_suffix("")).glob("*.md")):
        link = runbooks.linked_index if page == folder / FINDINGS else runbooks.linked
        page.write_text(link(page.read_text(encoding="utf-8")), encoding="utf-8")


def accessible(html: str) -> str:
    """What the theme lacks and docs/site.js cannot add in time: the search has a name."""
    return html.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def contents() -> list[Any]:
    """The table of contents of docs/mkdocs.yml; behind each section, what else is in its folder, by
    title, and behind each page the pages below it."""
    nav: list[Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]
    named = set(_files(nav))
    for section in nav:
        for name, entries in section.items():
            if name in FOLDERS and isinstance(entries, list):
                more = sorted((ROOT / FOLDERS[name]).glob("*.md"), key=lambda path: (path.stem != "README", path.stem))
                paths = [path.relative_to(ROOT).as_posix() for path in more]
                entries += [path for path in paths if path not in named]
                section[name] = [_with_below(entry) for entry in entries]
    return nav


def _with_below(entry: Any) -> Any:
    """An entry whose page is an index has the pages of its folder below it."""
    title, page = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
    if not isinstance(page, str):
        return entry
    below = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / page).with_suffix("").glob("*.md"))
    return {title: [page, *below]} if below else entry


def _files(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _files(each)


def main(arguments: Sequence[str]) -> int:
    """Build it."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    site = Path(arguments[0] if arguments else ROOT / "build/site").resolve()
    with tempfile.TemporaryDirectory(prefix="healthd-site-") as folder:
        copied(Path(folder))
        config = load_config(config_file=str(CONFIG), docs_dir=folder, site_dir=str(site), strict=True, nav=contents())
        config.mdx_configs["toc"] = {"slugify": github, "permalink": "#"}
        try:
            build(config)
        except Abort as error:
            sys.stderr.write(f"no site was built: {error}\n")
            return 1
    for page in site.rglob("*.html"):
        page.write_text(accessible(page.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{site}/index.html\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
