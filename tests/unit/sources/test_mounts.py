"""The mount table, from text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthd.core.errors import SourceUnreadable
from healthd.core.node import Mount
from healthd.sources.mounts import parse_mountinfo

EXAMPLE = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"


def test_the_kernels_own_example() -> None:
    """The line of proc.rst gives point, type, source, device and the options of the mount and of the super block."""
    assert parse_mountinfo(EXAMPLE) == (
        Mount(
            point="/mnt2",
            fstype="ext3",
            source="/dev/root",
            options=frozenset({"rw", "noatime", "errors=continue"}),
            device="98:0",
        ),
    )


@pytest.mark.parametrize("optional", ["", "shared:1 ", "shared:1 master:2 propagate_from:3 "])
def test_any_number_of_optional_fields(optional: str) -> None:
    """None, one or several optional fields stand before the dash."""
    (mount,) = parse_mountinfo(f"36 35 98:0 / /data rw {optional}- xfs /dev/sda1 rw")
    assert (mount.point, mount.fstype) == ("/data", "xfs")


def test_octal_escapes() -> None:
    """Blanks, backslashes and the bytes of a UTF-8 character come back as themselves."""
    (mount,) = parse_mountinfo(r"36 35 98:0 / /a\040b\134c\011d\303\251 rw - nfs server:/x\040y rw")
    assert (mount.point, mount.source) == ("/a b\\c\tdé", "server:/x y")


def test_an_empty_source_and_no_super_options() -> None:
    """A pseudo file system may have an empty source, and old kernels no super options."""
    assert parse_mountinfo("1 1 0:1 / /a rw - tmpfs  rw")[0].source == ""
    assert parse_mountinfo("1 1 0:1 / /a rw - tmpfs none")[0].options == {"rw"}


def test_a_read_only_super_block_under_a_writable_mount_shows() -> None:
    """A file system remounted read-only after an error keeps rw in the mount's own options; the ro is seen as well."""
    (mount,) = parse_mountinfo("26 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 ro,errors=remount-ro")
    assert {"ro", "rw"} <= mount.options


def test_the_order_of_the_table_is_kept() -> None:
    """An automount and what it mounted stay in order, so the later one can be seen to cover the earlier."""
    text = "90 26 0:50 / /fsx rw - autofs systemd-1 rw\n91 90 0:51 / /fsx rw - lustre 10.0.0.1@tcp:/x rw\n"
    assert [mount.fstype for mount in parse_mountinfo(text)] == ["autofs", "lustre"]


@pytest.mark.parametrize(
    "line", ["garbage", "36 35 98:0 /a /b rw master:1", "36 35 - ext4 /dev/sda rw", "1 1 0:1 / /a rw - "]
)
def test_a_malformed_line_is_named(line: str) -> None:
    """A line without the format is unreadable, with its number and its text."""
    with pytest.raises(SourceUnreadable, match=r"mountinfo line 2: "):
        parse_mountinfo(f"{EXAMPLE}{line}\n")


@given(
    st.lists(st.text(st.characters(blacklist_characters="\n\0", blacklist_categories=["Cs"]), min_size=1), max_size=5)
)
def test_any_mount_point_survives(names: list[str]) -> None:
    """Whatever a mount point is called, escaped as the kernel does it, it comes back whole and on its own line."""
    points = [f"/{name}" for name in names]
    escaped = ("".join(f"\\{ord(c):03o}" if c in " \t\n\\" else c for c in point) for point in points)
    text = "".join(f"1 1 0:1 / {point} rw - ext4 /dev/x rw\n" for point in escaped)
    assert [mount.point for mount in parse_mountinfo(text)] == points


def test_this_machines_table() -> None:
    """The real table parses, and the file system it was read from is in it."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    assert "/proc" in {mount.point for mount in parse_mountinfo(text)}
