"""Who may write on the way to a file: each folder and each link counts, as the kernel passes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from healthd.core.strict_modes import not_run_by_root, others_may_write

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of this process's, two folders down."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    return folder / "file"


def test_what_is_ours_alone_is_open_to_nobody(mine: Path) -> None:
    """Files and folders of root's and of this process, that only these may write."""
    assert others_may_write(mine) == ""
    assert others_may_write(mine.parent) == ""


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_file_that_others_may_write(mine: Path, mode: int) -> None:
    """By everybody, or by a group that may have members."""
    os.chown(mine, -1, 54321) if IS_ROOT else None
    mine.chmod(mode)
    assert others_may_write(mine).startswith(f"{mine} may be written by ")


@pytest.mark.parametrize("up", [0, 1])
def test_a_folder_on_the_way_that_others_may_write(mine: Path, up: int) -> None:
    """Who may write a folder can put another file, or another folder, in the place of what is there."""
    folder = mine.parents[up]
    folder.chmod(0o777)
    assert others_may_write(mine) == f"{folder} may be written by every user"


def test_a_sticky_folder_on_the_way_keeps_what_is_in_it(mine: Path) -> None:
    """As in /tmp only owners take things away; to write there is another matter."""
    mine.parent.chmod(0o1777)
    assert others_may_write(mine) == ""
    assert others_may_write(mine.parent) == f"{mine.parent} may be written by every user"
    link = mine.parent.parent / "link"
    link.symlink_to(mine.parent)
    assert others_may_write(link) == f"{mine.parent} may be written by every user"


@pytest.mark.skipif(not IS_ROOT, reason="needs root: files of other users")
def test_what_belongs_to_another_user(mine: Path) -> None:
    """An owner may write whatever the mode says, and so may the owner of a folder or a link on the way."""
    link = mine.parent.parent / "link"
    link.symlink_to(mine)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    assert others_may_write(link) == f"{link} belongs to uid 65534"
    os.chown(mine, 65534, 65534)
    mine.chmod(0o400)
    assert others_may_write(mine) == f"{mine} belongs to uid 65534"


def test_links_are_followed_link_by_link(mine: Path, tmp_path: Path) -> None:
    """The folder of a link in the middle counts, and so does what a linked folder leads to."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "second").symlink_to(mine)
    (tmp_path / "first").symlink_to("theirs/second")
    (tmp_path / "folder").symlink_to(mine.parent)
    assert others_may_write(tmp_path / "first") == ""
    theirs.chmod(0o777)
    assert others_may_write(tmp_path / "first") == f"{theirs} may be written by every user"
    mine.chmod(0o666)
    assert others_may_write(tmp_path / "folder" / "file") == f"{mine} may be written by every user"


def test_a_ring_of_links_is_an_error(tmp_path: Path) -> None:
    """It ends, as the kernel's own walk does; so does a way to nothing."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="links on its way"):
        others_may_write(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        others_may_write(tmp_path / "gone")


def test_nobody_writes_to_a_read_only_mount() -> None:
    """A folder of everybody's on a read-only mount, as Kubernetes mounts a ConfigMap, is open to nobody."""
    found = next((each for each in ("/sys", "/proc/sys") if os.statvfs(each).f_flag & os.ST_RDONLY), None)
    if found is None:
        pytest.skip("needs a read-only mount: /sys or /proc/sys")
    assert others_may_write(Path(found)) == ""


needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root: only root is particular about who else may write")
INTERPRETED = (
    ("{}",),
    ("{}", "--strict"),
    ("python3", "{}"),
    ("/usr/bin/env", "python3.11", "-u", "{}", "--all"),
    ("bash", "-e", "{}"),
    ("sh", "-c", "{}"),
    ("timeout", "5", "perl", "{}"),
)
"""Commands that run a file."""


@needs_root
@pytest.mark.parametrize("words", INTERPRETED, ids=" ".join)
@pytest.mark.parametrize("opened", ["file", "folder"])
def test_root_runs_nothing_that_others_may_write(mine: Path, words: tuple[str, ...], opened: str) -> None:
    """Neither a program nor the script of an interpreter, itself or by its folder."""
    argv = [word.format(mine) for word in words]
    assert not_run_by_root(argv) == ""
    at = mine if opened == "file" else mine.parent
    at.chmod(0o777)
    assert not_run_by_root(argv).startswith(f"not run, since {at} may be written by every user: root runs nothing")


@needs_root
def test_the_interpreter_of_a_script_counts(mine: Path) -> None:
    """Whoever may write the Python of a plug-in's own environment is who runs."""
    script = mine.parent / "plugin"
    script.write_text(f"#!{mine} -u\nprint()\n")
    assert not_run_by_root([str(script)]) == ""
    mine.chmod(0o777)
    assert f"{mine} may be written by every user" in not_run_by_root([str(script)])
    assert f"{mine} may be written by every user" in not_run_by_root(["nice", str(script)])


@needs_root
def test_what_is_not_run_may_be_anybodys(mine: Path) -> None:
    """Data that a program is given, what is not there, and a program that is looked for where root's are."""
    mine.chmod(0o777)
    assert not_run_by_root(["/usr/bin/test", "-f", str(mine)]) == ""
    assert not_run_by_root(["nvidia-smi", "-q", "-f", str(mine)]) == ""
    assert not_run_by_root(["sh", "/usr/bin/ldd", str(mine)]) == ""
    assert not_run_by_root([f"{mine}.gone", "bad\0"]) == ""
