"""File trees: bounded, confined to their root, and honest about what could not be read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.core.errors import SourceMissing, SourceUnreadable
from healthd.sources.trees import MAX_BYTES, FileTree


@pytest.fixture
def tree(tmp_path: Path) -> FileTree:
    (tmp_path / "class/net").mkdir(parents=True)
    (tmp_path / "class/net/eth0").symlink_to("../../devices/eth0")
    (tmp_path / "vendor").write_bytes(b"0x10de\n")
    return FileTree(tmp_path)


def test_text_is_stripped(tree: FileTree) -> None:
    """A kernel attribute comes without its newline."""
    assert tree.read("vendor") == "0x10de"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 10_000])
def test_an_attribute_of_sysfs_is_read_whole(tmp_path: Path, size: int) -> None:
    """However long it is, and though a page is smaller on another machine."""
    (tmp_path / "uevent").write_text("x" * size)
    assert FileTree(tmp_path, is_sysfs=True).read("uevent") == "x" * size


def test_a_short_attribute_of_sysfs_takes_one_read(tmp_path: Path) -> None:
    """A node has six hundred counters: what one read gives has its end. A second one would wait for this pipe."""
    os.mkfifo(tmp_path / "counter")
    writer = os.open(tmp_path / "counter", os.O_RDWR)
    try:
        os.write(writer, b"17\n")
        assert FileTree(tmp_path, is_sysfs=True).read("counter") == "17"
    finally:
        os.close(writer)


def test_bytes_that_are_no_text_are_replaced(tree: FileTree, tmp_path: Path) -> None:
    """Binary noise in a file is replaced, not raised as a decoding error."""
    (tmp_path / "noise").write_bytes(b"ok \xff\xfe")
    assert tree.read("noise") == "ok ��"


def test_names_are_sorted_and_the_root_has_a_name(tree: FileTree) -> None:
    """A folder is listed in order, and "" is the root."""
    assert tree.names("") == ("class", "vendor")


@pytest.mark.parametrize("path", ["absent", "class/absent/deeper", "vendor/below"])
def test_what_is_not_there_is_missing(tree: FileTree, path: str) -> None:
    """A path that does not exist is missing to every question, and exists says no."""
    for question in (tree.read, tree.names, tree.target):
        with pytest.raises(SourceMissing, match=r"ENOENT|ENOTDIR"):
            question(path)
    assert not tree.exists(path)


def test_what_may_be_opened_is_told_without_opening_it(tree: FileTree, tmp_path: Path) -> None:
    """A file that is there may be, one that is not may not; a pipe nobody writes to would hang whoever opens it."""
    os.mkfifo(tmp_path / "pipe")
    assert (tree.may_open("vendor"), tree.may_open("pipe"), tree.may_open("absent")) == (True, True, False)


def test_the_target_of_a_link_is_its_last_part(tree: FileTree) -> None:
    """A driver link names the driver, and a link that leads nowhere does not exist."""
    assert tree.target("class/net/eth0") == "eth0"
    assert not tree.exists("class/net/eth0")


def test_what_is_no_link_has_no_target(tree: FileTree) -> None:
    """Asking a plain file where it leads is an unreadable answer."""
    with pytest.raises(SourceUnreadable, match="EINVAL"):
        tree.target("vendor")


@pytest.mark.process
def test_a_process_that_has_ended_is_missing() -> None:
    """Between the open of a file in /proc and its read, too, which the kernel then answers with ESRCH."""
    ended = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(SourceMissing, match=r"auxv.*\(ESRCH\)"):
            FileTree("/proc").read(f"{ended.pid}/auxv")
    finally:
        ended.wait()


def test_an_error_names_path_and_errno(tree: FileTree, tmp_path: Path) -> None:
    """Reading a folder as a file says which path and which error."""
    with pytest.raises(SourceUnreadable, match=rf"{tmp_path}/class: Is a directory \(EISDIR\)"):
        tree.read("class")


def test_a_loop_of_links_cannot_be_told(tree: FileTree, tmp_path: Path) -> None:
    """Where existence cannot be told, exists raises instead of saying no."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SourceUnreadable, match="ELOOP"):
        tree.exists("loop")


def test_half_a_file_is_no_answer(tree: FileTree, tmp_path: Path) -> None:
    """A file at the bound is read whole; one byte more is refused."""
    (tmp_path / "big").write_bytes(b"x" * MAX_BYTES)
    assert len(tree.read("big")) == MAX_BYTES
    (tmp_path / "big").write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(SourceUnreadable, match="longer than"):
        tree.read("big")


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "class/../../secret", "a\0b"])
def test_a_path_out_of_the_root_is_refused(tree: FileTree, path: str) -> None:
    """Absolute paths, parent folders and NUL are refused by every question."""
    for question in (tree.read, tree.names, tree.exists, tree.target):
        with pytest.raises(SourceUnreadable, match="expected a relative path"):
            question(path)


@given(st.text(max_size=40))
def test_no_path_reads_outside(path: str) -> None:
    """Whatever the path, a tree raises a SourceError or answers from below its root, which here is empty."""
    tree = FileTree("/proc/self/fdinfo/absent")
    with pytest.raises((SourceMissing, SourceUnreadable)):
        tree.read(path)


@pytest.mark.skipif(not os.path.exists("/proc/self/mountinfo"), reason="needs Linux's /proc")
def test_a_kernel_file_without_a_size_is_read_to_its_end() -> None:
    """Files of /proc report size 0 and are read all the same."""
    assert " / " in FileTree("/proc").read("self/mountinfo")
