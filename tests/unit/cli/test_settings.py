"""The configuration of a command that needs few checks: the same mistakes are found as with all."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.api.grammar import parse
from healthd.cli.settings import loaded
from healthd.config.load import Loaded
from healthd.core.check import discover
from healthd.core.errors import ConfigError


def read(tmp_path: Path, text: str) -> Loaded:
    """The configuration for `healthd check host.cpu`."""
    (tmp_path / "config.toml").write_text(text)
    return loaded(parse(["check", "host.cpu", "--config", str(tmp_path / "config.toml")]), names=["host.cpu"])


def test_the_settings_of_the_named_checks_are_enough(tmp_path: Path) -> None:
    """A file that sets no other check is read with the settings of these alone."""
    assert list(read(tmp_path, '[checks."host.cpu"]\nenabled = false\n').config.checks) == ["host.cpu"]


def test_a_file_may_set_other_checks(tmp_path: Path) -> None:
    """It is read with the settings of all."""
    config = read(tmp_path, '[checks."gpu.ecc"]\nenabled = false\n').config
    assert set(config.checks) == set(discover())
    assert not config.checks["gpu.ecc"].enabled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[checks."gpu.eec"]\nenabled = false\n', 'did you mean checks."gpu.ecc"?'),
        ('[checks."gpu.ecc"]\nenabled = 3\n', "expected true or false"),
        ("[budgte]\n", "no such key; did you mean budget?"),
    ],
)
def test_a_mistake_about_another_check_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Whichever checks are named."""
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        read(tmp_path, text)
