"""Who holds a disk's room: counted by the owner of the files, within its time, and never by another file system's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from healthd.probe.fs_holders import holders
from healthd.probe.fs_ops import FsFamily

MINE = os.getuid()


def held(path: Path) -> dict[int, int]:
    return dict(holders(str(path))["bytes_of"])


def test_files_count_for_their_owners(tmp_path: Path) -> None:
    """Each file counts once, whatever its names, and a link counts for itself and not for what it leads to."""
    if MINE != 0:
        pytest.skip("needs root: files of two owners")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "theirs").write_bytes(bytes(1 << 20))
    os.chown(tmp_path / "a" / "theirs", 65534, 65534)
    os.link(tmp_path / "a" / "theirs", tmp_path / "again")
    (tmp_path / "mine").write_bytes(bytes(1 << 16))
    (tmp_path / "link").symlink_to("/")
    found = held(tmp_path)
    assert found[65534] >= 1 << 20 > found[0] >= 1 << 16
    assert found[65534] < 2 << 20
    assert list(found) == [65534, 0]


def test_another_file_system_below_is_not_counted() -> None:
    """/proc and /sys lie below /, and hold nothing of its room."""
    whole = holders("/proc/self", lasts_s=30.0)
    assert whole["files"] > 0
    assert not any(size for _, size in whole["bytes_of"])


def test_the_count_ends_in_time(tmp_path: Path) -> None:
    """A folder with more files than the time allows is counted in part, and the answer says so."""
    for number in range(50):
        (tmp_path / str(number)).touch()
    assert holders(str(tmp_path), lasts_s=0.0) == {"bytes_of": [(MINE, 0)], "files": 1, "whole": False}
    assert holders(str(tmp_path))["whole"]


def test_what_users_may_fill_is_counted_first(tmp_path: Path) -> None:
    """Among folders of root's the one in which everybody may write comes first, however many there are."""
    if MINE != 0:
        pytest.skip("needs root: folders of root's")
    for number in range(30):
        folder = tmp_path / f"{number:02}"
        folder.mkdir()
        (folder / "file").touch()
    (tmp_path / "29").chmod(0o1777)
    (tmp_path / "29" / "file").write_bytes(bytes(1 << 16))
    walk = [found.st_size for found in _first(tmp_path, 31)]
    assert walk[-1] == 1 << 16


def _first(path: Path, count: int) -> list[os.stat_result]:
    from itertools import islice

    from healthd.probe import fs_holders

    return list(islice(fs_holders._files(str(path)), count))


def test_the_worker_answers(tmp_path: Path) -> None:
    """The family of the probe worker has the question; a path that is not there is an error as for any other."""
    assert FsFamily().answer("holders", {"path": str(tmp_path)})["whole"]
