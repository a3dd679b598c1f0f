"""`healthd init` in a folder that other users may write, such as /tmp."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from healthd.cli.init import _next, _required, _write
from healthd.config.load import DEFAULT_PATH
from healthd.core.errors import HealthdError, UsageError


def test_a_planted_link_leads_the_configuration_to_no_other_file(tmp_path: Path) -> None:
    """Beside the file, under the name by which it is written first; the victim stays as it is."""
    victim = tmp_path / "victim"
    victim.write_text("root only\n")
    path = tmp_path / "config.toml"
    (tmp_path / f".config.toml.{os.getpid()}").symlink_to(victim)
    _write(path, "# a configuration\n")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("root only\n", "# a configuration\n", False)
    assert not list(tmp_path.glob(".config.toml.*"))
    with pytest.raises(HealthdError, match="exists and is never overwritten"):
        _write(path, "# another\n")


def test_the_next_steps_name_the_file_that_was_written(tmp_path: Path) -> None:
    """One elsewhere is read by its name alone: without it the next command would validate another file."""
    path = tmp_path / "config.toml"
    for verb in ("config validate", "doctor", "run"):
        assert f"`healthd {verb} --config {path}`" in _next(path)
    assert "`healthd config validate`" in _next(DEFAULT_PATH)
    assert "systemctl start healthd" in _next(DEFAULT_PATH)


def test_a_file_that_cannot_be_is_no_matter_of_rights(tmp_path: Path) -> None:
    """The advice follows the error: root gains nothing by a name that is too long, nor on a full disk."""
    with pytest.raises(HealthdError, match=r"cannot write .*: File name too long; name another file with --output"):
        _write(tmp_path / ("x" * 300), "# a configuration\n")


def test_an_nhc_conf_without_an_end_is_refused(tmp_path: Path) -> None:
    """A device, a FIFO without a writer, a folder, and a file that is far too large: each at once, by its name."""
    fifo, large = tmp_path / "fifo", tmp_path / "large"
    os.mkfifo(fifo)
    with large.open("wb") as file:
        file.truncate(1 << 40)
    for path, why in (
        (Path("/dev/null"), "not a regular file"),
        (fifo, "not a regular file"),
        (tmp_path, "not a regular file"),
        (large, "larger than 8388608 bytes"),
    ):
        with pytest.raises(UsageError, match=f"--from-nhc {path}: {why}; expected an nhc.conf"):
            _required(str(path))
