"""What scontrol's list of nodes and of reservations says to a reader of the fleet: recorded from Slurm 22.05.8."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from healthd.core.errors import BackendRefused
from healthd.core.node import CommandResult
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator, parse_nodes
from healthd.remediation.orchestrators.slurm.slots import slot_times
from healthd.remediation.ports import Hold, ListedNode
from healthd.remediation.records.summary import NodeState, NodeSummary

HEAD = "NodeName={name} CPUTot=4 State={state} ThreadsPerCore=1 MCS_label=N/A Partitions=gpu,main  BootTime=1"
SUMMARY = NodeSummary(state=NodeState.CRITICAL, code="gpu.xid.79", component="GPU 3", note="waits for 8812")


def record(
    name: str = "n1",
    state: str = "IDLE",
    *,
    partitions: str = "gpu,main",
    reason: str = "",
    comment: str = "",
    extra: str = "",
) -> str:
    line = HEAD.format(name=name, state=state, partitions=partitions)
    line += f" Reason={reason} [root@1795226977]" if reason else ""
    line += f" Comment={comment}" if comment else ""
    return line + (f" Extra={extra}" if extra else "") + "\n"


def only(text: str) -> ListedNode:
    (node,) = parse_nodes(text)
    return node


def test_a_record_is_read_whole() -> None:
    """State, hold, partitions, handoff record and summary; a name in no partition has none."""
    text = record(
        state="IDLE+DRAIN",
        reason="healthd: gpu.xid.79 gpu:0 [b7da]",
        comment="healthd case=b7da",
        extra=f'{{"healthd":"{SUMMARY.text}"}}',
    )
    assert only(text) == ListedNode(
        name="n1",
        state="IDLE+DRAIN",
        flags=frozenset({"IDLE", "DRAIN"}),
        out=True,
        hold=Hold(text="healthd: gpu.xid.79 gpu:0 [b7da]", user="root", stamp=1795226977),
        partitions=("gpu", "main"),
        record="healthd case=b7da",
        summary=SUMMARY.text,
    )
    assert only(record().replace(" Partitions=gpu,main ", "")).partitions == ()


@pytest.mark.parametrize(
    ("extra", "summary"),
    [
        ("", ""),
        ("rack 7", ""),
        ('{"zone":"b"}', ""),
        ('{"healthd":"healthd state=ok"}', "healthd state=ok"),
        ('{"healthd":"healthd state=ok","zone":"b"}', ""),
    ],
)
def test_an_extra_of_others_is_no_summary(extra: str, summary: str) -> None:
    """Only healthd's own object, as it writes it."""
    assert only(record(extra=extra)).summary == summary


def test_a_reason_cannot_forge_a_summary() -> None:
    """Text before the last Extra is somebody's sentence."""
    forged = '{"healthd":"healthd state=ok"}'
    text = record(state="IDLE+DRAIN", reason=f"see Extra={forged}", extra="x")
    assert only(text).summary == ""


def test_states_of_the_cluster() -> None:
    """Asleep, dead, down and answering, of the future; a reason on a node in service is an old one; other lines are
    none of a node."""
    asleep = only(record(state="IDLE+CLOUD+POWERED_DOWN"))
    dead = only(record(state="DOWN+NOT_RESPONDING", reason="Not responding"))
    assert (asleep.asleep, asleep.out) == (True, False)
    assert (dead.dead, dead.out, dead.hold is not None and dead.hold.automatic) == (True, True, True)
    assert not only(record(state="DOWN", reason="bad")).dead
    assert only(record(state="IDLE+NOT_RESPONDING")).dead
    unsigned = only(record(state="IDLE+DRAIN").rstrip("\n") + " Reason=fan swap [of slurm.conf\n")
    assert unsigned.hold == Hold(text="fan swap", user="", stamp=0)
    assert only(record(state="IDLE", reason="an old one")).hold is None
    assert list(parse_nodes(record(state="FUTURE") + "No nodes in the system\n\n")) == []


def test_a_slot_tells_since_when_it_is_taken() -> None:
    """Of healthd's own reservations; a time that is not known is left out."""
    line = (
        "ReservationName={} StartTime={} EndTime=9 Duration=365-00:00:00 Nodes=n1 NodeCnt=1 CoreCnt=4 Features=(null) "
    )
    line += "Flags=MAINT,IGNORE_JOBS,SPEC_NODES,STATIC TRES=cpu=4 Users=root Groups=(null) State=ACTIVE Watts=n/a\n"
    answer = line.format("healthd-cluster-3", "1795226977") + line.format("healthd-gpu-0", "2026-11-24T12:00:00")
    answer += line.format("patching", "1795226977")
    assert slot_times(answer) == {("cluster", 3): 1795226977}


class Clients:
    """Slurm's clients, which answer with one Extra and take any update."""

    def __init__(self, extra: str) -> None:
        self.prints, self.calls = f"{extra}|\n", list[list[str]]()

    def __call__(
        self, argv: list[str], *, timeout_s: float, env: Mapping[str, str], limit_bytes: int = 0
    ) -> CommandResult:
        self.calls.append(argv)
        out = self.prints if argv[0] == "sinfo" else ""
        return CommandResult(argv=tuple(argv), code=0, stdout=out, stderr="", duration_s=0.0)


def summarized(extra: str) -> list[str]:
    clients = Clients(extra)
    SlurmOrchestrator(node="n1", run=clients).summarize(SUMMARY)
    return clients.calls[-1]


@pytest.mark.parametrize("extra", ["(null)", "", "N/A", '{"healthd":"healthd state=ok"}'])
def test_an_extra_that_is_free_or_ours_takes_the_summary(extra: str) -> None:
    """At most 200 bytes, and JSON, which slurmctld reads there with extra_constraints."""
    (*command, setting) = summarized(extra)
    assert command == ["scontrol", "update", "nodename=n1"]
    assert setting == f'extra={{"healthd":"{SUMMARY.text}"}}'
    assert len(setting.partition("=")[2]) <= 200


def test_a_node_that_sinfo_does_not_list_is_not_written() -> None:
    """In no partition it prints nothing, which is no free Extra."""
    clients = Clients("")
    clients.prints = ""
    with pytest.raises(BackendRefused, match="in no partition"):
        SlurmOrchestrator(node="n1", run=clients).summarize(SUMMARY)


@pytest.mark.parametrize("extra", ["rack 7", '{"zone":"b"}', '{"healthd":"x","zone":"b"}'])
def test_an_extra_of_another_is_not_overwritten(extra: str) -> None:
    """It is refused, with the text that is there."""
    clients = Clients(extra)
    with pytest.raises(BackendRefused, match="already has one that is not healthd's"):
        SlurmOrchestrator(node="n1", run=clients).summarize(SUMMARY)
    assert [call[0] for call in clients.calls] == ["sinfo"]


def test_a_reason_of_several_lines_hides_nothing() -> None:
    """It is one line for a reader, with its user; the summary behind it counts, and so does the next node."""
    extra = f'{{"healthd":"{SUMMARY.text}"}}'
    first = record(state="IDLE+DRAIN", reason="fan swap\nask alice\n\nticket 7", extra=extra)
    one, two = parse_nodes(first + record(name="n2"))
    assert one.hold == Hold(text="fan swap ask alice  ticket 7", user="root", stamp=1795226977)
    assert (one.summary, two.name) == (SUMMARY.text, "n2")
