"""The site of the pages: it builds without a warning, holds every page, and fetches nothing from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import PAGES, blocks
from tests.support.running import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow]

_FETCHED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["']((?:https?:)?//[^"']+)""")


def build(folder: Path, *, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(root / "docs/site.py"), str(folder)]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; docs/site.py ends with 1 for any warning: a dead link, a dead anchor, a page left out."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def html(page: Path) -> str:
    path = page.relative_to(ROOT)
    name = "index.html" if path.stem == "README" else f"{path.stem}.html"
    return (path.parent / name).as_posix()


def test_every_page_is_in_the_site(site: Path) -> None:
    """Each page of the repository is a page of the site, and the search knows them."""
    assert [name for name in map(html, PAGES) if not (site / name).is_file()] == []
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found = {each["location"].partition("#")[0] or "index.html" for each in index["docs"]}
    assert {html(page) for page in PAGES} <= found


def test_every_block_is_one(site: Path) -> None:
    """Each fence of a page is a block of its site's page: none is open, and none was taken for text."""
    for page in PAGES:
        text = (site / html(page)).read_text(encoding="utf-8")
        assert "```" not in text, page
        shown = [block for block in blocks() if block.page == page.relative_to(ROOT).as_posix()]
        assert text.count("<pre>") >= len(shown), page


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No script, style, picture or font comes from another host: the site can be read where there is no internet."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    fetched = {f"{page.name}: {url}" for page in pages for url in _FETCHED.findall(page.read_text(encoding="utf-8"))}
    assert fetched == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", styles) == []


def test_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    """A link to a page or a heading that is not there is told, with the page, and no site is built."""
    for name in ("docs", "packaging", "bench"):
        (tmp_path / name).mkdir()
    (tmp_path / "docs/site.py").write_text((ROOT / "docs/site.py").read_text(encoding="utf-8"), encoding="utf-8")
    settings = (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8").partition("nav:\n")[0]
    (tmp_path / "docs/mkdocs.yml").write_text(f"{settings}nav:\n  - Start: README.md\n  - Figures: bench/README.md\n")
    (tmp_path / "bench/README.md").write_text("# Figures\n")
    (tmp_path / "README.md").write_text("# Start\n\n[figures](bench/README.md#figures)\n")
    assert build(tmp_path / "build", root=tmp_path).returncode == 0
    for dead in ("bench/GONE.md", "bench/README.md#gone"):
        (tmp_path / "README.md").write_text(f"# Start\n\n[figures]({dead})\n")
        done = build(tmp_path / "build", root=tmp_path)
        assert (done.returncode, "README.md" in done.stderr, dead.rpartition("/")[2] in done.stderr) == (1, True, True)
