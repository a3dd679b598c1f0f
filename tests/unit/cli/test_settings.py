"""The configuration of a command that needs few checks: the same mistakes are found as with all."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from healthd.api.grammar import parse
from healthd.cli.settings import loaded
from healthd.config.load import Loaded
from healthd.core.check import discover
from healthd.core.errors import ConfigError


def read(tmp_path: Path, text: str, names: Collection[str] | None = ("host.cpu",)) -> Loaded:
    """The configuration for `healthd check host.cpu`, or with these names."""
    (tmp_path / "config.toml").write_text(text)
    return loaded(parse(["check", "host.cpu", "--config", str(tmp_path / "config.toml")]), names=names)


def test_the_settings_of_the_named_checks_are_enough(tmp_path: Path) -> None:
    """A file that sets no other check is read with the settings of these alone."""
    assert list(read(tmp_path, '[checks."host.cpu"]\nenabled = false\n').config.checks) == ["host.cpu"]


def test_a_file_may_set_other_checks(tmp_path: Path) -> None:
    """Itself or in a match: it is read with the settings of these too, and of no others."""
    match = '[[match]]\nlabel = ["a=b"]\n[match.checks."gpu.count"]\nenabled = false\n'
    config = read(tmp_path, f'[checks."gpu.ecc"]\nenabled = false\n{match}').config
    assert set(config.checks) == {"host.cpu", "gpu.ecc", "gpu.count"}
    assert not config.checks["gpu.ecc"].enabled


@pytest.mark.parametrize(
    ("text", "names"), [("", set()), ('[checks."gpu.ecc"]\nenabled = false\n', {"gpu.ecc"})], ids=["none", "one"]
)
def test_a_verb_that_runs_no_check_reads_the_checks_that_are_set(tmp_path: Path, text: str, names: set[str]) -> None:
    """Such as `healthd fleet`."""
    assert set(read(tmp_path, text, names=()).config.checks) == names


def test_without_names_all_checks_are_read(tmp_path: Path) -> None:
    """As a daemon needs them."""
    assert set(read(tmp_path, "", names=None).config.checks) == set(discover())


def test_a_variable_may_set_another_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of all tell which one it is."""
    monkeypatch.setenv("HEALTHD_CHECKS_GPU_ECC_ENABLED", "false")
    assert not read(tmp_path, "", names=()).config.checks["gpu.ecc"].enabled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[checks."gpu.eec"]\nenabled = false\n', 'did you mean checks."gpu.ecc"?'),
        ('[checks."gpu.ecc"]\nenabled = 3\n', "expected true or false"),
        ("[budgte]\n", "no such key; did you mean budget?"),
        ('[checks."lustre.mount"]\nmounts = ["fsx"]\n', "expected a list, each element the path of a mount"),
        ('[checks."lustre.mount"]\nread_only = ["/fsx/"]\n', "without a / at its end"),
        ('[checks."lustre.io"]\nignore = ["/fsx/"]\n', "without a / at its end"),
        ('[checks."lustre.io".folders]\n"/home/" = "/home/healthd"\n', "without a / at its end"),
        ('[checks."host.filesystems"]\nwritable = ["/", "/scratch/"]\n', "without a / at its end"),
        ('[checks."host.expect"]\nmounts = ["/home/ nfs4"]\n', "without a / at its end"),
        ('[checks."host.expect"]\nmounts = [" "]\n', "expected 'POINT', 'POINT TYPE' or 'POINT TYPE SOURCE'"),
        ('[checks."gpu.count"]\nexpected = -1\n', "expected a whole number of at least 0"),
    ],
)
def test_a_mistake_about_another_check_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Whichever checks are named."""
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        read(tmp_path, text)
