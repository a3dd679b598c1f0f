"""The ballast of a state directory: whole, or made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.state.ballast import _BYTES, BALLAST, Ballast


@pytest.mark.parametrize("left", [b"", b"part"])
def test_a_ballast_without_its_space_is_laid_again(tmp_path: Path, left: bytes) -> None:
    """A power cut right after its creation leaves an empty file, which reserves nothing on a full disk."""
    (tmp_path / BALLAST).write_bytes(left)
    assert Ballast(tmp_path).lay()
    found = (tmp_path / BALLAST).stat()
    assert (found.st_size, found.st_mode & 0o777) == (_BYTES, 0o600)
    assert found.st_blocks * 512 >= _BYTES
    assert Ballast(tmp_path).lay()
    assert (tmp_path / BALLAST).stat().st_ino == found.st_ino
