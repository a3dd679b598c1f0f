"""The fact tables: every row is typed, sourced, and within the rules that keep a cluster alive."""

from __future__ import annotations

import re

import pytest

from healthd.checklib import tables
from healthd.checklib.tables import instance_profile, instance_types
from healthd.checklib.versions import Minimum
from healthd.checklib.xids import UNKNOWN_XID, XidCase, XidRow, xid_cases, xid_number, xid_row, xid_table
from healthd.core.model import REMEDY_RANK, ClearsBy, Remedy, Severity

JOB_LEVEL = (8, 11, 13, 25, 31, 32, 43, 45, 60, 68, 69, 94)


def judged(xid: int) -> tuple[str, str, str]:
    row = xid_table()[xid]
    return (row.severity.value, row.remedy.value, row.clears_by.value)


def test_every_published_code_has_a_row() -> None:
    """The table holds the codes of the catalog and the driver source, the newest included."""
    assert len(xid_table()) == 147
    assert {8, 79, 143, 154, 172, 176, 177, 178, 179} <= set(xid_table())


@pytest.mark.parametrize("row", list(xid_table().values()), ids=lambda row: str(row.xid))
def test_every_row_can_be_read_by_a_person(row: XidRow) -> None:
    """A row says what the code means, why this remedy, and where that was read."""
    assert len(row.meaning) > 5
    assert row.reason.endswith(".")
    assert re.search(r"NVIDIA|open-gpu-kernel-modules", row.source)


@pytest.mark.parametrize(
    ("xid", "expected"),
    [
        (45, ("info", "none", "nothing")),
        (48, ("critical", "reset_gpu", "gpu_reset")),
        (63, ("warning", "reset_gpu", "gpu_reset")),
        (64, ("critical", "reset_gpu", "gpu_reset")),
        (79, ("critical", "reboot_node", "reboot")),
        (92, ("warning", "watch", "nothing")),
        (94, ("warning", "restart_app", "gpu_reset")),
        (95, ("critical", "reset_gpu", "gpu_reset")),
        (119, ("critical", "reset_gpu", "gpu_reset")),
        (120, ("critical", "reset_gpu", "gpu_reset")),
        (140, ("critical", "reset_gpu", "gpu_reset")),
    ],
)
def test_codes_that_are_often_published_wrongly(xid: int, expected: tuple[str, str, str]) -> None:
    """63 is the record that succeeded, 64 the one that failed, 79 the bus drop, 94 contained, 95 not."""
    assert judged(xid) == expected


@pytest.mark.parametrize("xid", JOB_LEVEL)
def test_job_level_codes_never_take_a_node_out(xid: int) -> None:
    """A code that is evidence about a job calls for at most a restart of that job."""
    row = xid_table()[xid]
    assert row.severity is not Severity.CRITICAL
    assert REMEDY_RANK[row.remedy] <= REMEDY_RANK[Remedy.RESTART_APP]


def test_whatever_nvidia_answers_with_a_restart_of_the_application_ends_with_the_job() -> None:
    """NVIDIA's RESTART_APP bucket is warning, restart_app and job_end, row by row; 94 also left a count to reset."""
    rows = [row for xid, row in xid_table().items() if "): RESTART_APP" in row.source and xid != 94]
    assert len(rows) > 40
    assert {(row.severity, row.remedy, row.clears_by) for row in rows} == {
        (Severity.WARNING, Remedy.RESTART_APP, ClearsBy.JOB_END)
    }


def test_unused_codes_are_watched_at_most() -> None:
    """A code that the catalog calls unused is never acted on."""
    rows = [row for row in xid_table().values() if "): Unused" in row.source]
    assert len(rows) > 20
    assert all(row.remedy is Remedy.WATCH and row.severity is not Severity.CRITICAL for row in rows)


def test_what_nvidia_answers_with_a_reset_is_a_reset() -> None:
    """NVIDIA's RESET_GPU bucket calls for a reset here too; only a recorded retirement is not critical."""
    rows = [row for row in xid_table().values() if "): RESET_GPU" in row.source]
    assert {row.remedy for row in rows} == {Remedy.RESET_GPU}
    assert [row.xid for row in rows if row.severity is not Severity.CRITICAL] == [156]


def test_critical_rows_stay_open_until_evidence() -> None:
    """What takes a node out is never mere news."""
    rows: list[XidRow | XidCase] = [*xid_table().values(), *xid_cases().values()]
    assert all(row.clears_by is not ClearsBy.NOTHING for row in rows if row.severity is Severity.CRITICAL)


def test_codes_after_which_nvml_hangs() -> None:
    """NVML is paused after 79, 119 and 120, and after nothing else."""
    assert [row.xid for row in xid_table().values() if row.pauses_nvml] == [79, 119, 120]


def test_unknown_code_warns_and_records() -> None:
    """A code of a later driver is a warning that is watched and never held open."""
    assert xid_row(4711) is UNKNOWN_XID
    assert (UNKNOWN_XID.severity, UNKNOWN_XID.remedy) == (Severity.WARNING, Remedy.WATCH)


def test_cases_belong_to_rows_and_cover_the_recovery_actions() -> None:
    """Every case refines a known code; every published recovery action of XID 154 has one."""
    assert {xid for xid, _ in xid_cases()} <= set(xid_table())
    assert {case for xid, case in xid_cases() if xid == 154} == {f"to:{number}" for number in range(8)}


@pytest.mark.parametrize("text", ["gpu.xid.79", "xid.79", "XID 79", "xid79", "79", " 79 "])
def test_spellings_of_a_code(text: str) -> None:
    """A person may write a code in any of the usual ways."""
    assert xid_number(text) == 79


@pytest.mark.parametrize("text", ["", "gpu.xid.", "gpu.ecc.79", "sxid 79", "79x", "-79"])
def test_what_is_no_code(text: str) -> None:
    """Anything else is no XID."""
    assert xid_number(text) is None


def test_p5_profile() -> None:
    """p5.48xlarge has 8 H100 of 80 GiB nominal, up to 32 EFA interfaces and 8 disks; HyperPod's prefix is known."""
    profile = instance_profile("ml.p5.48xlarge")
    assert profile is not None
    assert profile is instance_profile("p5.48xlarge")
    assert (profile.gpus, profile.gpu_model, profile.gpu_memory_mib) == (8, "H100", 81920)
    assert (profile.efa_max, profile.nvme_count, profile.nvlink) == (32, 8, "nvswitch")


def test_unknown_type_has_no_profile() -> None:
    """An unknown or unfound type has no profile: nothing is expected of it."""
    assert instance_profile("p9.48xlarge") is None
    assert instance_profile(None) is None


@pytest.mark.parametrize(
    ("family", "gpus"),
    [
        ("p4d", {8}),
        ("p4de", {8}),
        ("p5", {1, 8}),
        ("p5e", {8}),
        ("p5en", {8}),
        ("p6-b200", {8}),
        ("p6-b300", {8}),
        ("p6e-gb200", {4}),
        ("g5", {1, 4, 8}),
        ("g6", {1, 4, 8}),
        ("g6e", {1, 4, 8}),
        ("g7e", {1, 2, 4, 8}),
    ],
)
def test_recognised_families(family: str, gpus: set[int]) -> None:
    """Every recognised family is there, with plausible profiles."""
    profiles = [profile for profile in instance_types().values() if profile.type.split(".")[0] == family]
    assert {profile.gpus for profile in profiles} == gpus
    for profile in profiles:
        assert profile.source
        assert 0 <= profile.efa_usual <= profile.efa_max <= 32
        assert (profile.nvlink == "none") == (profile.gpus == 1)
        assert min(profile.gpu_memory_mib, profile.nvme_count) > 0


def test_unreadable_row_is_named_with_its_line() -> None:
    """A table with a bad row is refused as a whole, and the message leads to the row."""

    def refuse(cells: object) -> str:
        raise TypeError(cells)

    with pytest.raises(ValueError, match=r"xid\.csv, line 2: cannot read .*TypeError"):
        tables.keyed_rows("xid.csv", refuse, str)
    with pytest.raises(ValueError, match=r"xid\.csv, line 3: same appears twice"):
        tables.keyed_rows("xid.csv", lambda cells: cells, lambda row: "same")


def test_empty_cell_and_unknown_column_are_refused() -> None:
    """A row without a source, and a profile with a column that does not exist, are refused."""
    with pytest.raises(ValueError, match="source is empty"):
        tables.filled({"source": ""}, "source")
    with pytest.raises(ValueError, match="source is empty"):
        tables.as_row({"family": "p5.", "part": "driver", "minimum": "570", "source": ""}, Minimum)
    with pytest.raises(ValueError, match=r"instance_types\.toml, x\.large: .*gpu_count"):
        tables.profile_of("x.large", {"efa_max": 0, "gpu_count": 8})
