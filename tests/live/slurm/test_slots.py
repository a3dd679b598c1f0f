"""Slots as reservations of a real slurmctld: claimed, refused twice, given back, adopted, outliving what they must."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.decide.fleet import HoldsSlots, Settle, WaitForSlot
from healthd.remediation.engine.slots import SlotKeeper
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import NodeRecord, ScopeSnapshot, Slot
from tests.live.slurm.slurm_lab import SlurmLab
from tests.support.limits import limit_s

pytestmark = pytest.mark.slurm

NODE, OTHER = "n0001", "n0002"
TEXT = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"
FLAGS = "flags=MAINT,IGNORE_JOBS,STATIC_ALLOC"


def _of(lab: SlurmLab, node: str = NODE, *, timeout_s: float = 5.0) -> SlurmOrchestrator:
    return SlurmOrchestrator(node=node, conf=str(lab.conf), timeout_s=timeout_s)


def _keeper(lab: SlurmLab, node: str = NODE, *, settle_s: float = 0.5, **quotas: str | int) -> SlotKeeper:
    return SlotKeeper(
        orchestrator=_of(lab, node),
        node=node,
        quotas=lambda: quotas or {"cluster": 2},
        monotonic_s=time.monotonic,
        random=lambda: 0.0,
        settle_s=settle_s,
    )


def _settled(keeper: SlotKeeper, *, within_s: float = 5.0) -> HoldsSlots:
    """Take turns until it goes."""
    end_s = time.monotonic() + limit_s(within_s)
    while not isinstance(answer := keeper.take(), HoldsSlots):
        assert time.monotonic() < end_s, answer
        time.sleep(0.05)
    return answer


def _reserve(lab: SlurmLab, name: str, *words: str) -> None:
    words = words if any(word.startswith("users=") for word in words) else ("users=root", *words)
    done = lab.scontrol("create", "reservation", f"reservationname={name}", "starttime=now", "duration=60", *words)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# the port


def test_a_slot_is_claimed_once_and_given_back(slurm: SlurmLab) -> None:
    """The second claim is told that it is taken, whoever makes it; after the return the next one has it."""
    mine, others = _of(slurm), _of(slurm, OTHER)
    assert mine.slots() == ()
    mine.claim("cluster", 3)
    for one in (mine, others):
        with pytest.raises(SlotTaken, match="healthd-cluster-3"):
            one.claim("cluster", 3)
    slot = Slot(scope="cluster", index=3, node=NODE)
    assert mine.slots() == others.slots() == (slot,)
    mine.give_back(slot)
    mine.give_back(slot)
    others.claim("cluster", 3)
    assert mine.slots() == (Slot(scope="cluster", index=3, node=OTHER),)


def test_a_slot_of_another_node_is_not_deleted(slurm: SlurmLab) -> None:
    """Not even with the right name: it is read again before it is deleted."""
    _of(slurm, OTHER).claim("cluster", 0)
    with pytest.raises(BackendRefused, match="n0002 holds it, not n0001"):
        _of(slurm).give_back(Slot(scope="cluster", index=0, node=NODE))
    assert _of(slurm).slots() == (Slot(scope="cluster", index=0, node=OTHER),)


@pytest.mark.parametrize("words", [("flags=MAINT",), ("nodes=n0001,n0002", FLAGS), ("users=daemon", FLAGS)])
def test_what_somebody_made_by_hand_is_taken_and_nobodys(slurm: SlurmLab, words: tuple[str, ...]) -> None:
    """A reservation of a slot's name that healthd would not have made so: a taken slot that is never deleted."""
    words = words if "nodes=" in words[0] else (f"nodes={NODE}", *words)
    _reserve(slurm, "healthd-cluster-0", *words)
    orchestrator = _of(slurm)
    (slot,) = orchestrator.slots()
    assert (slot.scope, slot.index) == ("cluster", 0)
    assert "not made by healthd" in slot.node
    with pytest.raises(SlotTaken):
        orchestrator.claim("cluster", 0)
    with pytest.raises(BackendRefused):
        orchestrator.give_back(Slot(scope="cluster", index=0, node=NODE))
    assert orchestrator.slots() == (slot,)


def test_other_reservations_are_no_slots(slurm: SlurmLab) -> None:
    """Names that are not a slot's, near ones included, are not listed."""
    for name in ("maintenance", "healthd-cluster-01", "healthd-cluster-x", "healthd-3"):
        _reserve(slurm, name, f"nodes={OTHER}", FLAGS)
    _of(slurm).claim("gpu-a.b", 12)
    assert _of(slurm).slots() == (Slot(scope="gpu-a.b", index=12, node=NODE),)


@pytest.mark.parametrize(("scope", "index"), [("", 0), ("a b", 0), ("a,b", 0), ("cluster", -1), ("cluster", 10**6)])
def test_a_name_that_would_not_read_back_is_refused_before_asking(slurm: SlurmLab, scope: str, index: int) -> None:
    """Scopes and indexes are checked; nothing reaches slurmctld."""
    with pytest.raises(BackendRefused, match="not requested"):
        _of(slurm).claim(scope, index)
    assert "No reservations" in slurm.scontrol("show", "reservation").stdout


def test_of_many_that_claim_at_once_each_slot_has_one_winner(slurm: SlurmLab) -> None:
    """Eight nodes at three slots, all at once: three winners, and everybody else is told."""

    def claim(number: int) -> str:
        node = slurm.nodes[number % 8]
        try:
            _of(slurm, node).claim("cluster", number % 3)
        except SlotTaken:
            return ""
        return node

    with ThreadPoolExecutor(max_workers=12) as pool:
        winners = sorted(filter(None, pool.map(claim, range(48))))
    assert sorted(slot.node for slot in _of(slurm).slots()) == winners
    assert len(winners) == 3


def test_running_jobs_go_on_and_new_ones_are_kept_off(slurm: SlurmLab) -> None:
    """A slot fences: the job that runs there lives, one that asks for the node waits, and starts when it is back."""
    job = slurm.run_job(NODE)
    orchestrator = _of(slurm)
    orchestrator.claim("cluster", 0)
    waiting = slurm.submit(NODE, "true")
    slurm.wait(lambda: "reserved" in slurm.job(waiting).get("Reason", "").lower(), 15, "the job waits for the node")
    assert slurm.job(job)["JobState"] == "RUNNING"
    view = orchestrator.view()
    assert view.hold is None
    assert orchestrator.snapshot().out == frozenset()
    orchestrator.give_back(orchestrator.slots()[0])
    slurm.wait_job(waiting, "RUNNING", "COMPLETED")
    assert slurm.job(job)["JobState"] == "RUNNING"


def test_a_slot_outlives_slurmctld(slurm: SlurmLab) -> None:
    """A restart, and a kill -9 once the state is saved, keep the slot and who holds it."""
    _of(slurm).claim("cluster", 1)
    slurm.ctld_stop()
    slurm.ctld_start()
    assert _of(slurm).slots() == (Slot(scope="cluster", index=1, node=NODE),)
    _of(slurm).claim("cluster", 2)
    saved = slurm.root / "state/resv_state"
    slurm.wait(lambda: b"healthd-cluster-2" in saved.read_bytes(), 20, "slurmctld to save the slot")
    slurm.ctld_stop(kill=True)
    slurm.ctld_start()
    assert _of(slurm).slots() == tuple(Slot(scope="cluster", index=index, node=NODE) for index in (1, 2))


def test_slots_that_cannot_be_read_are_unknown(slurm: SlurmLab) -> None:
    """Neither "none is taken" nor "ours": no answer. A claim without an answer is applied when slurmctld wakes up."""
    orchestrator = _of(slurm, timeout_s=0.5)
    slurm.ctld_pause()
    try:
        with pytest.raises(BackendUnknown):
            orchestrator.slots()
        with pytest.raises(BackendUnknown):
            orchestrator.claim("cluster", 0)
    finally:
        slurm.ctld_resume()
    slurm.wait(lambda: bool(_of(slurm).slots()), 10, "the claim is applied late")
    assert _keeper(slurm).held() == (Slot(scope="cluster", index=0, node=NODE),)


def test_the_snapshot_shows_partitions_and_records(slurm: SlurmLab) -> None:
    """Per partition of this node: who is out, of how many. A record survives drain and undrain."""
    orchestrator = _of(slurm)
    orchestrator.write_record("healthd replaced=1795226977 id=k3")
    slurm.update(OTHER, "state=drain", "reason=x Comment=healthd forged")
    orchestrator.quarantine(TEXT)
    snapshot = orchestrator.snapshot()
    assert snapshot.scopes == (ScopeSnapshot(scope="main", out=frozenset({NODE, OTHER}), total=8),)
    assert NodeRecord(node=NODE, text="healthd replaced=1795226977 id=k3") in snapshot.records
    orchestrator.release(resume=False)
    assert NodeRecord(node=NODE, text="healthd replaced=1795226977 id=k3") in orchestrator.snapshot().records
    orchestrator.write_record("")
    assert NODE not in {record.node for record in orchestrator.snapshot().records}


def test_a_comment_of_somebody_else_is_left_alone(slurm: SlurmLab) -> None:
    """No record is written over it, nor is it taken away."""
    slurm.update(NODE, "comment=rack 7")
    for text in ("healthd x", ""):
        with pytest.raises(BackendRefused, match="rack 7"):
            _of(slurm).write_record(text)
    assert slurm.shows(NODE, "Comment") == "rack 7"
    with pytest.raises(BackendRefused, match="begins with"):
        _of(slurm).write_record("not ours")


# ---------------------------------------------------------------------------------------------------------------------
# the keeper


def test_claim_settle_go_and_back(slurm: SlurmLab) -> None:
    """The whole way of one node; afterwards nothing of ours is left."""
    keeper = _keeper(slurm, cluster=2, main="50%")
    assert isinstance(keeper.take(), Settle)
    assert [(slot.scope, slot.node) for slot in _settled(keeper).slots] == [("cluster", NODE), ("main", NODE)]
    assert [slot.scope for slot in keeper.give_back()] == ["main", "cluster"]
    assert _of(slurm).slots() == ()


def test_a_full_fleet_holds_without_a_claim(slurm: SlurmLab) -> None:
    """An admin's drain and a slot fill a limit of two; a third node holds until one of them is back."""
    slurm.update("n0008", "state=drain", "reason=admin: psu")
    _settled(_keeper(slurm, OTHER))
    assert _keeper(slurm).take() == WaitForSlot(reason="at the fleet limit: 2 of 8 nodes are out, 2 may be")
    assert [slot.node for slot in _of(slurm).slots()] == [OTHER]
    slurm.update("n0008", "state=resume")
    _settled(_keeper(slurm))


def test_a_drain_during_the_settle_time_takes_the_slot_back(slurm: SlurmLab) -> None:
    """An admin who takes a node out meanwhile was first as far as anybody can tell: ours goes back."""
    keeper = _keeper(slurm, cluster=1)
    assert isinstance(keeper.take(), Settle)
    slurm.update("n0008", "state=drain", "reason=admin: psu")
    time.sleep(0.6)
    answer = keeper.take()
    assert isinstance(answer, WaitForSlot)
    assert "2 of 8 nodes are out, 1 may be; gave back cluster-0" in answer.reason
    assert _of(slurm).slots() == ()
    assert slurm.shows("n0008", "Reason").startswith("admin: psu")


def test_a_new_daemon_of_the_same_name_adopts_the_slot(slurm: SlurmLab) -> None:
    """It remembers nothing, finds its slot and settles; one whose node is drained by us goes on at once."""
    first = _settled(_keeper(slurm)).slots
    second = _keeper(slurm)
    assert isinstance(second.take(), Settle)
    assert _settled(second).slots == first
    _of(slurm).quarantine(TEXT)
    assert _keeper(slurm).take(committed=True) == HoldsSlots(slots=first)
    assert len(_of(slurm).slots()) == 1


def test_a_settled_slot_that_is_gone_is_noticed(slurm: SlurmLab) -> None:
    """Before each step the slots are asked for again: one that an admin deleted has to be earned anew."""
    keeper = _keeper(slurm)
    slot = _settled(keeper).slots[0]
    assert isinstance(keeper.take(), HoldsSlots)
    assert slurm.scontrol("delete", "reservation", f"healthd-cluster-{slot.index}").returncode == 0
    assert isinstance(keeper.take(), Settle)


def test_what_an_admin_did_stays_as_it_is(slurm: SlurmLab) -> None:
    """A drain and a reservation of an admin's, on our node and on others, outlive a slot that comes and goes."""
    slurm.update(OTHER, "state=drain", "reason=admin: psu")
    _reserve(slurm, "workshop", f"nodes={NODE},n0003", "flags=MAINT,IGNORE_JOBS")
    before, drained = slurm.scontrol("-o", "show", "reservation", "workshop").stdout, slurm.shows(OTHER, "Reason")
    keeper, others = _keeper(slurm, cluster=3), _keeper(slurm, OTHER, cluster=3)
    _settled(keeper)
    _settled(others)
    keeper.give_back()
    others.give_back()
    assert slurm.scontrol("-o", "show", "reservation", "workshop").stdout == before
    assert slurm.shows(OTHER, "Reason") == drained
    assert "DRAIN" in slurm.state(OTHER)


def test_a_reservation_that_shares_nothing_is_no_obstacle(slurm: SlurmLab) -> None:
    """A node that is reserved for users can be taken out: our reservation is a maintenance, which may overlap."""
    _reserve(slurm, "course", f"nodes={NODE}")
    _of(slurm).claim("cluster", 0)
    assert _keeper(slurm).held() == (Slot(scope="cluster", index=0, node=NODE),)
