"""The site of the pages: it builds without a warning, holds every page, fetches nothing from elsewhere, can be read.

Chromium looks at it at the widths of a laptop and of a phone, in light and in dark, with axe-core's rules.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import axe_core_python
import pytest

from tests.support.browser import Browser, missing
from tests.support.limits import limit_s
from tests.support.pages import PAGES, blocks
from tests.support.running import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow]

AXE = Path(axe_core_python.__file__).parent / "axe.min.js"
MAX_WORDS = 3_000
WIDE, NARROW = 1280, 390
LOOKED_AT = (
    "index.html",
    "docs/explanation/architecture.html",
    "docs/reference/findings/xids-1.html",
    "docs/how-to/slurm.html",  # shell, TOML and tables
)
_FETCHED = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["']((?:https?:)?//[^"']+)""")


def build(folder: Path, *, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(root / "docs/site.py"), str(folder)]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60))


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
    shown = Counter(block.page for block in blocks())
    for page in PAGES:
        if page == ROOT / "CHANGELOG.md":  # in parts
            continue
        text = (site / html(page)).read_text(encoding="utf-8")
        assert "```" not in text, page
        assert len(re.findall("<pre[ >]|<svg[^>]* class=.drawn", text)) >= shown[page.relative_to(ROOT).as_posix()], (
            page
        )


def test_no_page_is_longer_than_one_reads(site: Path) -> None:
    """No page of the site has more than 3,000 words, the parts of the changelog among them."""
    found = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    words: dict[str, int] = {}
    for each in found:
        page = each["location"].partition("#")[0]
        words[page] = words.get(page, 0) + len(re.sub(r"<[^>]*>", " ", each["text"]).split())
    assert {page: count for page, count in words.items() if count > MAX_WORDS} == {}
    assert any(page.startswith("CHANGELOG/") for page in words)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    """The address of the built site on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_the_site_can_be_read_in_a_browser(url: str, tmp_path: Path) -> None:
    """At 1280 and 390 pixels, light and dark: nothing scrolls sideways but tables and code, and axe-core finds nothing;
    the search finds an XID by its number, and its runbook comes first.
    """
    browser = Browser(tmp_path)
    try:
        for page in LOOKED_AT:
            for width, dark in ((WIDE, False), (WIDE, True), (NARROW, False), (NARROW, True)):
                tab = browser.open(f"{url}/{page}", width=width, height=844, dark=dark)
                tab.wait("document.readyState == 'complete'")
                tab.wait(f"document.body.dataset.mdColorScheme == '{'slate' if dark else 'default'}'")
                assert tab.evaluate("document.documentElement.scrollWidth") <= width, page
                tab.evaluate(f"{AXE.read_text(encoding='utf-8')}\n0")
                found = tab.evaluate("axe.run().then(all => all.violations.map(each => [each.id, each.nodes[0].html]))")
                assert found == [], (page, width, dark)
                tab.close()
        tab = browser.open(f"{url}/index.html", width=WIDE, height=844)
        tab.wait("document.querySelector('.md-search__input')")
        assert tab.evaluate("document.querySelectorAll('.doors li a').length") == len(("Try it", "Slurm", "EKS"))
        # Until the index is loaded no key is heard.
        tab.wait("document.querySelector('.md-search-result__meta').textContent.trim() == 'Type to start searching'")
        tab.evaluate("document.querySelector('.md-search__input').focus()")
        for key in "79":
            tab.press(key)
        # The first key has results of its own; a link names the term that it was found by.
        tab.wait(
            "document.querySelector('.md-search-result__link')?.getAttribute('href').includes('h=79')", within_s=30.0
        )
        first = tab.evaluate("document.querySelector('.md-search-result__link').getAttribute('href')")
        assert "runbooks/gpu.xid.79.html" in first
    finally:
        browser.close()


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
    for name in ("site.py", "diagrams.py", "site.css", "site.js"):
        (tmp_path / "docs" / name).write_text((ROOT / "docs" / name).read_text(encoding="utf-8"), encoding="utf-8")
    settings = (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8").partition("nav:\n")[0]
    (tmp_path / "docs/mkdocs.yml").write_text(f"{settings}nav:\n  - Start: README.md\n  - Figures: bench/README.md\n")
    (tmp_path / "bench/README.md").write_text("# Figures\n")
    (tmp_path / "README.md").write_text("# Start\n\n[figures](bench/README.md#figures)\n")
    assert build(tmp_path / "build", root=tmp_path).returncode == 0
    for dead in ("bench/GONE.md", "bench/README.md#gone"):
        (tmp_path / "README.md").write_text(f"# Start\n\n[figures]({dead})\n")
        done = build(tmp_path / "build", root=tmp_path)
        assert (done.returncode, "README.md" in done.stderr, dead.rpartition("/")[2] in done.stderr) == (1, True, True)
