"""What tests of the pages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, missing


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all pages of a module."""
    if why := missing():
        pytest.skip(why)
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()
