"""`healthd freeze` without a cluster, and its options that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.api.grammar import parse
from healthd.cli.freeze import answer
from healthd.core.errors import UsageError


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--end --for 2h --reason x", "give one of them"),
        ("--for 2h", "add --reason TEXT"),
        ("--reason rollout", "add --for TIME"),
        ("--dry-run", "add --for TIME"),
        ("--end --reason over", "no cluster is found here"),
        ("", "no cluster is found here"),
    ],
)
def test_it_says_what_is_missing(line: str, words: str, tmp_path: Path) -> None:
    """And nothing is asked of any cluster."""
    path = tmp_path / "config.toml"
    path.write_text('[orchestrator]\nkind = "local"\n')
    with pytest.raises(UsageError, match=words):
        answer(parse(["freeze", *line.split(), "--config", str(path)]))
