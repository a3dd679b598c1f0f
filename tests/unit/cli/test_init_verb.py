"""`healthd init` in a folder that other users may write, such as /tmp."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from healthd.cli.init import _write
from healthd.core.errors import HealthdError


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
