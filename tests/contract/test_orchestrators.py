"""The laws that every orchestrator keeps, over the real back ends: Slurm, Kubernetes with a real API server, local."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.core.errors import BackendRefused, BackendUnknown, SlotTaken
from healthd.remediation.orchestrators.kubernetes.orchestrator import KubernetesOrchestrator
from healthd.remediation.orchestrators.local import LocalOrchestrator
from healthd.remediation.orchestrators.slurm.orchestrator import SlurmOrchestrator
from healthd.remediation.ports import NodeRecord, Orchestrator, Slot
from healthd.sim.cluster import FakeOrchestrator
from tests.live.kubernetes.agent_rig import add_leases, administrator, install_resource
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.find_binaries import Unavailable
from tests.live.kubernetes.kubelet_socket import KubeletSocket
from tests.live.slurm.slurm_lab import SlurmLab, skip_reason
from tests.support.troubled_cluster import TroubledCluster

NODE = "n0001"
REASON = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    """A small cluster, started only if a test asks for it."""
    if reason := skip_reason():
        pytest.skip(reason)
    with SlurmLab(nodes=2) as lab:
        yield lab


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane without policies, started only if a test asks for it."""
    try:
        plane = ControlPlane()
    except Unavailable as error:
        pytest.skip(f"no control plane of Kubernetes here: {error}")
    with plane:
        install_resource(plane)
        yield plane


@pytest.fixture
def kubernetes(plane: ControlPlane, tmp_path: Path) -> Iterator[KubernetesOrchestrator]:
    """A node of two, in a scope of its own beside the cluster's, with a kubelet that has no pod."""
    plane.reset()
    plane.add_namespace("healthd")
    plane.add_node(NODE, labels={"pool": "gpu-a"})
    plane.add_node("n0002")
    add_leases(plane, limit=2, total=2, gpu_a=1)
    with KubeletSocket(tmp_path / "kubelet.sock") as kubelet:
        orchestrator = administrator(
            plane, NODE, scopes=["gpu-a"], scope_label="pool", pod_resources=str(kubelet.path), timeout_s=1.0
        )
        yield orchestrator
        orchestrator.close()


KINDS = [
    "local",
    "fake",
    pytest.param("slurm", marks=pytest.mark.slurm),
    pytest.param("kubernetes", marks=pytest.mark.kubernetes),
]


@pytest.fixture(params=KINDS)
def orchestrator(request: pytest.FixtureRequest, tmp_path: Path) -> Orchestrator:
    """Each orchestrator for a node that is in service and has nothing to do."""
    if request.param == "fake":
        return FakeOrchestrator(TroubledCluster(NODE, "n0002", clock=time.time), NODE)
    if request.param == "local":
        return LocalOrchestrator(state_dir=tmp_path / "state", node=NODE, dev_root=tmp_path)
    if request.param == "kubernetes":
        of_node: KubernetesOrchestrator = request.getfixturevalue("kubernetes")
        return of_node
    lab: SlurmLab = request.getfixturevalue("lab")
    lab.reset()
    return SlurmOrchestrator(node=NODE, conf=str(lab.conf))


@pytest.fixture(params=KINDS)
def deaf_orchestrator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Orchestrator]:
    """Each orchestrator with a back end that cannot be read."""
    if request.param == "fake":
        cluster = TroubledCluster(NODE, clock=time.time)
        cluster.hung = True
        yield FakeOrchestrator(cluster, NODE)
        return
    if request.param == "local":
        (tmp_path / "hold.json").mkdir()
        (tmp_path / "slots").write_text("no folder")
        yield LocalOrchestrator(state_dir=tmp_path, node=NODE)
        return
    if request.param == "kubernetes":
        of_node: KubernetesOrchestrator = request.getfixturevalue("kubernetes")
        plane: ControlPlane = request.getfixturevalue("plane")
        plane.hang_api_server()
        try:
            yield of_node
        finally:
            plane.resume_api_server()
        return
    lab: SlurmLab = request.getfixturevalue("lab")
    lab.reset()
    lab.ctld_pause()
    try:
        yield SlurmOrchestrator(node=NODE, conf=str(lab.conf), timeout_s=0.3)
    finally:
        lab.ctld_resume()


def test_a_node_in_service_is_not_held(orchestrator: Orchestrator) -> None:
    """Without a hold: in service, idle, and not counted as out of a fleet that has it."""
    view, snapshot = orchestrator.view(jobs=True), orchestrator.snapshot()
    assert (view.name, view.in_service, view.hold, view.jobs, view.idle) == (NODE, True, None, (), True)
    assert snapshot.out == frozenset()
    assert snapshot.total >= 1


def test_quarantine_shows_its_text_and_counts(orchestrator: Orchestrator) -> None:
    """After quarantine: out of service, held by exactly the text, signed and dated now, and one more is out."""
    began = int(time.time())
    orchestrator.quarantine(REASON)
    ended, view = time.time(), orchestrator.view()
    assert view.hold is not None
    assert (view.in_service, view.hold.text) == (False, REASON)
    assert view.hold.user
    assert began <= view.hold.stamp <= ended
    assert orchestrator.snapshot().out == {NODE}


@pytest.mark.parametrize("resume", [False, True])
def test_release_undoes_quarantine(orchestrator: Orchestrator, resume: bool) -> None:
    """After release: in service, no hold, nothing out."""
    orchestrator.quarantine(REASON)
    orchestrator.release(resume=resume)
    view = orchestrator.view()
    assert (view.in_service, view.hold) == (True, None)
    assert orchestrator.snapshot().out == frozenset()


def test_the_same_quarantine_again_keeps_the_stamp(orchestrator: Orchestrator) -> None:
    """A step that is repeated after a crash does not change whose hold it is: text, user and stamp stay."""
    orchestrator.quarantine(REASON)
    first = orchestrator.view().hold
    time.sleep(1.1)
    orchestrator.quarantine(REASON)
    assert orchestrator.view().hold == first


def test_reading_changes_nothing(orchestrator: Orchestrator) -> None:
    """Two readings in a row agree."""
    orchestrator.quarantine(REASON)
    assert orchestrator.view() == orchestrator.view()
    assert orchestrator.snapshot() == orchestrator.snapshot()


@pytest.mark.parametrize("text", ["", "two\nlines", "nul\0"])
def test_a_text_that_is_not_one_line_is_refused_and_nothing_is_applied(orchestrator: Orchestrator, text: str) -> None:
    """A reason is one line of text, whatever the back end would do with another."""
    with pytest.raises(BackendRefused):
        orchestrator.quarantine(text)
    assert orchestrator.view().in_service


def test_what_cannot_be_read_is_unknown_never_healthy(deaf_orchestrator: Orchestrator) -> None:
    """Neither a view nor a level is made up."""
    with pytest.raises(BackendUnknown):
        deaf_orchestrator.view()
    with pytest.raises(BackendUnknown):
        deaf_orchestrator.snapshot()
    with pytest.raises(BackendUnknown):
        deaf_orchestrator.slots()


def test_a_slot_is_taken_once_and_given_back_twice(orchestrator: Orchestrator) -> None:
    """Taken is taken, also by ourselves; what is gone already is given back without a word."""
    slot = Slot(scope="cluster", index=0, node=NODE)
    assert orchestrator.slots() == ()
    orchestrator.claim("cluster", 0)
    orchestrator.claim("gpu-a", 17)
    with pytest.raises(SlotTaken):
        orchestrator.claim("cluster", 0)
    assert orchestrator.slots() == (slot, Slot(scope="gpu-a", index=17, node=NODE))
    assert orchestrator.snapshot().out == frozenset()
    orchestrator.give_back(slot)
    orchestrator.give_back(slot)
    assert orchestrator.slots() == (Slot(scope="gpu-a", index=17, node=NODE),)


def test_a_slot_outlives_drain_and_release(orchestrator: Orchestrator) -> None:
    """Neither touches it: it is given back last."""
    orchestrator.claim("cluster", 0)
    orchestrator.quarantine(REASON)
    orchestrator.release(resume=False)
    assert [slot.node for slot in orchestrator.slots()] == [NODE]


def test_a_record_stays_until_it_is_taken_away(orchestrator: Orchestrator) -> None:
    """It shows in the level, is replaced by the next one, and no release wipes it."""
    orchestrator.write_record("healthd case=1")
    assert orchestrator.read_record() == "healthd case=1"
    orchestrator.write_record("healthd case=2")
    orchestrator.quarantine(REASON)
    orchestrator.release(resume=True)
    assert orchestrator.snapshot().records == (NodeRecord(node=NODE, text="healthd case=2"),)
    orchestrator.write_record("")
    assert orchestrator.snapshot().records == ()
    assert orchestrator.read_record() == ""
