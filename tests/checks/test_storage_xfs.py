"""storage.xfs: pieces of free space that are too small. Outputs are in the form that xfsprogs prints."""

from __future__ import annotations

from typing import Any

import pytest

from healthd.checks.storage_xfs import StorageXfsSettings, storage_xfs
from healthd.core.errors import SourceError, SourceMissing, SourceTimeout
from healthd.core.model import Result, Severity, Status
from healthd.core.node import CommandResult, Mount
from healthd.testing import FakeNode
from tests.support.over_time import open_codes

TABLE = (
    Mount(point="/", fstype="xfs", source="/dev/nvme0n1p1", options=frozenset({"rw"})),
    Mount(point="/boot/efi", fstype="vfat", source="/dev/nvme0n1p128", options=frozenset({"rw"})),
)
TEXT = """   from      to extents  blocks    pct
      1       1       4       4   1.44
    256     511       1     268  96.40
total free extents {extents}
total free blocks 278
average free extent size {average}"""
COMMAND = ("xfs_spaceman", "-c", "freesp -s", "/")


def answered(average: str = "46.3333", *, extents: int = 6, code: int = 0, text: str | None = None) -> CommandResult:
    text = TEXT.format(extents=extents, average=average) if text is None else text
    return CommandResult(argv=COMMAND, code=code, stdout=text, stderr="Permission denied", duration_s=0.01)


def run(answer: CommandResult | SourceError, table: tuple[Mount, ...] = TABLE, **settings: Any) -> Result:
    return storage_xfs(FakeNode(mount_table=table, commands={COMMAND: answer}), StorageXfsSettings(**settings))


@pytest.mark.parametrize(("average", "value"), [("46.3333", 46.3333), ("16", 16.0), ("1.2e+06", 1.2e6)])
def test_large_pieces_are_well(average: str, value: float) -> None:
    """The average is a reading; from sixteen blocks on it is well."""
    result = run(answered(average))
    assert result.status is Status.OK
    assert [(str(each.component), each.value) for each in result.readings] == [("mount:/", value)]


def test_small_pieces_are_a_finding() -> None:
    """Fewer blocks on average than the limit is a warning that names the mount."""
    (finding,) = run(answered("1.14908")).findings
    assert (finding.code, str(finding.component), finding.severity) == (
        "storage.xfs.fragmented",
        "mount:/",
        Severity.WARNING,
    )
    assert run(answered("1.14908"), min_average_blocks=1.0).status is Status.OK


def test_no_free_piece_at_all_is_no_fragmentation() -> None:
    """A full file system has nothing to average: another check says that it is full."""
    result = run(answered("-nan", extents=0))
    assert (result.status, result.readings) == (Status.OK, ())


@pytest.mark.parametrize(
    "answer",
    [answered(code=1), answered(text="usage"), answered("nan", extents=3), SourceTimeout("no end within 15 s")],
)
def test_an_answer_that_is_none_is_unknown(answer: CommandResult | SourceError) -> None:
    """A file system that cannot be asked is not called well."""
    assert run(answer).status is Status.UNKNOWN


def test_where_there_is_nothing_to_ask() -> None:
    """No XFS, or no tool to ask it with: not applicable, with the reason."""
    assert run(answered(), TABLE[1:]).status is Status.NOT_APPLICABLE
    assert "xfs_spaceman" in run(SourceMissing("xfs_spaceman: not found")).reason


def test_a_file_system_that_is_gone_is_over() -> None:
    """The operator made another one in its place. A tool that is missing ends nothing."""
    (sick, gone, toolless) = (run(answered("1.2")), run(answered(), TABLE[1:]), run(SourceMissing("not found")))
    assert open_codes("storage.xfs", [sick, gone])[-1] == set()
    assert open_codes("storage.xfs", [sick, toolless])[-1] == {"storage.xfs.fragmented"}
