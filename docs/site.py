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
CONFIG = ROOT / "docs/mkdocs.yml"
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_TITLED = re.compile(r"^(```\w+) \S.*$", re.MULTILINE)  # Python-Markdown takes it for no fence
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
    return sorted(path.relative_to(ROOT) for path in [*found, ROOT / "bench/README.md"])


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
            (folder / path).write_text(_TITLED.sub(r"\1", text), encoding="utf-8")
        else:
            shutil.copy2(ROOT / path, folder / path)
    if FINDINGS in wanted:
        with_runbooks(folder)


def with_runbooks(folder: Path) -> None:
    """The page of each code and alert, and the links to them on the page of all findings."""
    sys.path.insert(0, str(ROOT))
    from docs import runbooks

    runbooks.written(folder / FINDINGS.parent / "runbooks")
    findings = folder / FINDINGS
    findings.write_text(runbooks.linked(findings.read_text(encoding="utf-8")), encoding="utf-8")


def contents() -> list[Any]:
    """The table of contents of docs/mkdocs.yml; behind each section, what else is in its folder, by title."""
    nav: list[Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]
    named = set(_files(nav))
    for section in nav:
        for name, entries in section.items():
            if name in FOLDERS and isinstance(entries, list):
                more = sorted((ROOT / FOLDERS[name]).glob("*.md"), key=lambda path: (path.stem != "README", path.stem))
                paths = [path.relative_to(ROOT).as_posix() for path in more]
                entries += [path for path in paths if path not in named]
    return nav


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
    sys.stdout.write(f"{site}/index.html\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
