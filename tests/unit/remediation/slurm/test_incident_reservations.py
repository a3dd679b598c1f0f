"""Notices of incidents as reservations: what is written is read back, and only what differs is sent to slurmctld."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from healthd.remediation.orchestrators.slurm.incident_reservations import (
    MOST_HOSTS,
    WATCH,
    fence_creation,
    fence_name,
    notice_name,
    parse_fences,
    parse_notices,
    updates,
)
from healthd.remediation.orchestrators.slurm.slots import parse_freezes, parse_maintenance, parse_slots
from healthd.remediation.records.domain_fence import DomainFence
from healthd.remediation.records.incident_notices import LASTS, IncidentNotice, of_root, root_of

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
NODES = frozenset({"gpu-001", "gpu-002", "gpu-007", "login1"})
NOTICE = IncidentNotice(id="1124-3f2a9c", root="lustre mount:/fsx data", began=NOW, nodes=NODES, critical=True)
NAME = "healthd-incident:1124-3f2a9c:critical:1795521600:gpu-[001-002+007]+login1:lustre%20mount:/fsx%20data"


def listed(*names: str, left: timedelta = LASTS, state: str = "ACTIVE") -> str:
    """The records as slurmctld 22.05 prints them."""
    start, end = int(NOW.timestamp()), int((NOW + left).timestamp())
    return "\n".join(
        f"ReservationName={name} StartTime={start} EndTime={end} Duration=00:10:00 Nodes=(null) NodeCnt=0 CoreCnt=0 "
        "Features=(null) PartitionName=(null) Flags=ANY_NODES TRES=(null) Users=root Groups=(null) Accounts=(null) "
        f"Licenses=(null) State={state} BurstBuffer=1 Watts=n/a MaxStartDelay=(null)"
        for name in names
    )


def test_a_notice_is_read_back_as_it_was_written() -> None:
    """With its end; it is no slot, no freeze and no maintenance."""
    assert notice_name(NOTICE) == NAME
    answer = listed(WATCH, NAME)
    notices = parse_notices(answer)
    assert notices.watched_until == NOW + LASTS
    assert notices.open == (replace(NOTICE, until=NOW + LASTS),)
    assert notices.is_watched(NOW)
    assert not notices.is_watched(NOW + LASTS)
    assert (parse_slots(answer), parse_freezes(answer), parse_maintenance(answer, "gpu-001")) == ((), {}, "")


def test_what_is_no_notice_is_none() -> None:
    """A reservation of another, one of another form, and one that has ended."""
    others = ("mine", "healthd-incident:x", NAME.replace("critical", "odd"), NAME.replace("1795521600", "soon"))
    assert parse_notices(listed(*others)).open == ()
    assert parse_notices(listed(NAME, state="INACTIVE")).open == ()
    assert parse_notices("No reservations in the system\n").watched_until is None


def test_a_long_list_holds_as_many_nodes_as_fit() -> None:
    """The others send their own messages."""
    nodes = frozenset(f"gpu-{number:05}" for number in range(0, 20_000, 2))
    (read,) = parse_notices(listed(notice_name(replace(NOTICE, nodes=nodes)))).open
    assert 1_000 < len(read.nodes) < len(nodes)
    assert read.nodes < nodes
    assert len(notice_name(replace(NOTICE, nodes=nodes))) < MOST_HOSTS + 200


def test_only_what_differs_is_sent_and_the_new_comes_before_the_old_goes() -> None:
    """A notice with more nodes is another name; one that is fresh is left alone, an old one is renewed."""
    assert [each[:3] for each in updates("", [NOTICE], NOW)] == [
        ("create", "reservation", f"reservationname={WATCH}"),
        ("create", "reservation", f"reservationname={NAME}"),
    ]
    assert updates(listed(WATCH, NAME), [NOTICE], NOW) == ()
    renewed = updates(listed(WATCH, NAME, left=LASTS / 2), [NOTICE], NOW)
    assert renewed == tuple(("update", f"reservationname={name}", "endtime=now+10minutes") for name in (WATCH, NAME))
    more = replace(NOTICE, nodes=NODES | {"gpu-003"})
    assert [each[0] for each in updates(listed(WATCH, NAME, "mine"), [more], NOW)] == ["create", "delete"]
    assert updates(listed(WATCH, NAME), [], NOW) == (("delete", f"reservationname={NAME}"),)


def test_a_fence_is_one_reservation_of_all_nodes_with_the_flags_of_a_slot() -> None:
    """It is no slot; for each of its nodes it is a maintenance window that names the incident, and for no other."""
    fence = DomainFence(domain="rack-7/9f86d081", incident="1124-3f2a9c", nodes=frozenset({"n1", "n2", "n3"}))
    assert fence_name(fence) == "healthd-fence:1124-3f2a9c:rack-7/9f86d081"
    created = fence_creation(fence)
    assert created[2:4] == (f"reservationname={fence_name(fence)}", "nodes=n[1-3]")
    assert "flags=MAINT,IGNORE_JOBS,STATIC_ALLOC" in created
    record = (
        f"ReservationName={fence_name(fence)} StartTime=1795521600 EndTime=1827057600 Duration=365-00:00:00 "
        "Nodes=n[1-3] NodeCnt=3 CoreCnt=12 Features=(null) PartitionName=(null) "
        "Flags=MAINT,IGNORE_JOBS,SPEC_NODES,STATIC TRES=cpu=12 Users=root Groups=(null) Accounts=(null) "
        "Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)"
    )
    answer = f"{record}\n{listed(WATCH, 'healthd-fence:odd')}"
    assert parse_fences(answer) == (fence,)
    assert parse_slots(answer) == ()
    assert parse_maintenance(answer, "n2") == fence_name(fence)
    assert parse_maintenance(answer, "n4") == ""


def test_the_root_of_a_fault_is_the_same_for_the_node_and_for_the_reader_of_its_summary() -> None:
    """A summary has an underscore for a blank, and cuts a long path; a fault of the fabric is in its domain."""
    assert of_root(root_of("lustre.hung", "mount:/fsx data", ""), "lustre.missing", "mount:/fsx_data")
    assert of_root(root_of("lustre.hung", f"mount:/{'x' * 41}", ""), "lustre.hung", f"mount:/{'x' * 90}")
    assert not of_root("lustre mount:/fsx", "lustre.missing", "mount:/home")
    assert not of_root("lustre mount:/fsx", "efs.missing", "mount:/fsx")
    assert root_of("gpu.imex.not_up", "node", "rack-7") == "NVLink domain rack-7"
    assert of_root("NVLink domain rack-7", "gpu.nvlink.dead", "nvlink:1")
    assert not of_root("NVLink domain rack-7", "gpu.xid.79", "gpu:3")
    assert of_root("gpu.xid.79", "gpu.xid.79", "gpu:3")
