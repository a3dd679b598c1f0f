"""The worker's file probe, called in process: it writes, compares and removes, and touches nobody else's file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.probe.fs_ops import FsFamily


def probe(path: Path, size_bytes: int = 100_000) -> dict[str, object]:
    answer: dict[str, object] = FsFamily().answer("file", {"path": str(path), "size_bytes": size_bytes})
    return answer


def test_the_file_is_written_read_back_and_gone(tmp_path: Path) -> None:
    """All bytes come back the same, each act has taken time, and nothing stays."""
    answer = probe(tmp_path / "x")
    assert (answer["size_bytes"], answer["same"]) == (100_000, True)
    assert all(isinstance(answer[name], float) for name in ("write_s", "read_s", "unlink_s"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_link_to_anothers_file_is_removed_and_not_followed(tmp_path: Path, link: object) -> None:
    """Whoever may write to the folder cannot have root overwrite a file by putting a link in the probe's place."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    assert callable(link)
    link(victim, tmp_path / "x")
    assert probe(tmp_path / "x")["same"] is True
    assert victim.read_text() == "precious"
    assert os.listdir(tmp_path) == ["victim"]


@pytest.mark.parametrize("full", [False, True])
def test_a_folder_in_the_probes_place_is_nobodys_answer(tmp_path: Path, full: bool) -> None:
    """A user who makes a folder of the probe's name, with or without something in it, neither fails nor stops it."""
    (tmp_path / "x").mkdir()
    if full:
        (tmp_path / "x" / "mine").touch()
    assert probe(tmp_path / "x")["same"] is True
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.process
def test_a_file_that_cannot_be_removed_is_nobodys_answer(tmp_path: Path) -> None:
    """Where the server keeps root from another user's file (root squash, a sticky folder), the probe goes on beside."""
    theirs = tmp_path / "x"
    theirs.touch()
    if subprocess.run(["chattr", "+i", str(theirs)], check=False, capture_output=True).returncode:
        pytest.skip("needs a file system and rights for `chattr +i`")
    try:
        assert probe(theirs)["same"] is True
    finally:
        subprocess.run(["chattr", "-i", str(theirs)], check=True)
    assert os.listdir(tmp_path) == ["x"]


def test_what_an_earlier_probe_left_is_replaced(tmp_path: Path) -> None:
    """A file that a killed worker left behind is no obstacle."""
    (tmp_path / "x").write_bytes(bytes(10**6))
    assert probe(tmp_path / "x")["same"] is True


def test_a_folder_that_is_not_there_is_missing(tmp_path: Path) -> None:
    """ENOENT is SourceMissing, other errors carry their name."""
    with pytest.raises(SourceMissing, match=f"file {tmp_path}/gone/x: no such file or folder"):
        probe(tmp_path / "gone" / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceUnreadable, match=r"\(ENOTDIR\)$"):
        probe(tmp_path / "file" / "x")


def test_a_refusal_is_an_answer() -> None:
    """sysfs lets nobody make a file, root included, and says so at once."""
    answer = probe(Path("/sys/healthd-probe"))
    assert answer["refused"] in ("EACCES", "EPERM", "EROFS")
    assert answer["size_bytes"] == 0


def test_an_unknown_question_is_refused() -> None:
    """A question that the worker does not know is an error that names those it knows."""
    with pytest.raises(SourceUnreadable, match="expected 'statvfs', 'holders' or 'file'"):
        FsFamily().answer("chmod", {})
