"""A fresh database that several openers make at the same moment is made once, and none of them moves it aside."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier

import pytest

from healthd.ledger.database import Ledger
from healthd.state.store import Store

NOW = datetime(2026, 11, 26, tzinfo=UTC)
OPENERS, FILES = 4, 10


def store(path: Path) -> str:
    """Opens the state; what it moved aside, in words."""
    opened = Store(path, now=NOW)
    try:
        return opened.set_aside
    finally:
        opened.close()


def ledger(path: Path) -> str:
    """The same of the fleet's ledger."""
    opened = Ledger(path, now=NOW)
    try:
        return opened.set_aside
    finally:
        opened.close()


@pytest.mark.parametrize("opens", [store, ledger])
def test_a_file_that_several_open_at_once_is_made_once(opens: Callable[[Path], str], tmp_path: Path) -> None:
    """A controller's two threads, or a daemon and a command beside it. Each opener finds a database that it can use."""
    together = Barrier(OPENERS)

    def open_it(path: Path) -> str:
        together.wait()
        return opens(path)

    with ThreadPoolExecutor(OPENERS) as pool:
        for number in range(FILES):
            path = tmp_path / f"{number}.db"
            assert list(pool.map(open_it, [path] * OPENERS)) == [""] * OPENERS
    assert [each.name for each in tmp_path.iterdir() if "set-aside" in each.name] == []
