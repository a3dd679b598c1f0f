"""The GPU reset, with the tools of the machine played by a table of answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from healthd.agent.wiring import owe
from healthd.checks.gpu_recovery import LOST
from healthd.core.check import discover, judged, ok
from healthd.core.errors import BackendBusy, BackendRefused, BackendUnknown, SourceError, SourceMissing, SourceTimeout
from healthd.core.model import Clearance, ClearsBy, Remedy, Severity, gpu_component
from healthd.core.node import CommandResult
from healthd.remediation.engine.gpu_reset import GpuReset
from healthd.state.monitor import Monitor
from tests.support.judgement import answered, at

SERVICES = ("nvidia-persistenced", "nvidia-dcgm")
FABRIC = "nvidia-fabricmanager"
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"


class Tools:
    """Answers commands as given; what was not given succeeds and says nothing. ``ran`` lists them all."""

    def __init__(self, **answers: object) -> None:
        self.answers: dict[str, object] = {name.replace("_", " "): answer for name, answer in answers.items()}
        self.ran: list[str] = []
        self.happens: dict[str, Callable[[], object]] = {}

    def __call__(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        words = " ".join(argv)
        self.ran.append(words)
        self.happens.get(words, lambda: None)()
        answer = self.answers.get(words, "")
        if isinstance(answer, SourceError):
            raise answer
        code, text = answer if isinstance(answer, tuple) else (0, answer)
        return CommandResult(argv=tuple(argv), code=code, stdout=str(text), stderr="", duration_s=0.01)


class Rig:
    def __init__(self, folder: Path, tools: Tools) -> None:
        self.proc, self.dev, self.tools, self.nvml = folder / "proc", folder / "dev", tools, list[str]()
        self.proc.mkdir()
        self.dev.mkdir()
        (self.dev / "nvidia0").touch()
        self.own: list[int] = []
        self.owed: list[str] = []
        self.stopping = tools.happens
        self.reset = GpuReset(
            services=SERVICES,
            run=tools,
            let_go=self._go,
            take_up=self._up,
            after=self._after,
            over=lambda: self.nvml.append("over"),
            owe=self.owed.append,
            own_pids=lambda: self.own,
            proc_root=self.proc,
            dev_root=self.dev,
        )

    def _go(self) -> None:
        self.nvml.append("let go")

    def _after(self) -> None:
        self.nvml.append("told")

    def _up(self) -> None:
        self.nvml.append("taken up")

    def process(self, pid: int, name: str, state: str = "S", *, group: str = "") -> None:
        (self.proc / str(pid) / "fd").mkdir(parents=True)
        (self.proc / str(pid) / "fd" / "3").symlink_to(self.dev / "nvidia0")
        (self.proc / str(pid) / "comm").write_text(name)
        if group:
            (self.proc / str(pid) / "cgroup").write_text(f"{group}\n")
        (self.proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} 1 1")


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
def rig(tmp_path: Path, tools: Tools) -> Rig:
    return Rig(tmp_path, tools)


def test_what_runs_is_what_is_stopped(rig: Rig, tools: Tools) -> None:
    """Only an active service is owed a start afterwards."""
    tools.answers |= {
        "systemctl is-active nvidia-persistenced": "active\n",
        "systemctl is-active nvidia-dcgm": (3, "inactive\n"),
    }
    assert rig.reset.holders() == ("nvidia-persistenced",)


def test_the_order_of_a_reset(rig: Rig, tools: Tools) -> None:
    """Services first, then our own worker, then the reset of all GPUs together."""
    message = rig.reset.reset(("nvidia-persistenced",))
    assert tools.ran == ["systemctl stop nvidia-persistenced", "nvidia-smi --gpu-reset"]
    assert rig.nvml == ["let go", "over", "told", "taken up"]
    assert message == "nvidia-smi --gpu-reset, after stopping nvidia-persistenced"


def test_nothing_is_reset_under_somebody(rig: Rig, tools: Tools) -> None:
    """A holder that is left is named, and the GPUs are not touched."""
    rig.process(4711, "python")
    with pytest.raises(BackendRefused, match="nothing was stopped: the GPUs are held by 4711 python"):
        rig.reset.reset(SERVICES)
    assert (tools.ran, rig.nvml) == ([], [])


def test_a_holder_that_comes_meanwhile_is_found_before_the_fabric_manager_is_stopped(rig: Rig, tools: Tools) -> None:
    """The services are stopped, and somebody opens a GPU: the switches stay as they are, and no reset is owed."""
    rig.stopping["systemctl stop nvidia-dcgm"] = lambda: rig.process(4711, "python")
    tools.answers[f"systemctl is-active {FABRIC}"] = "active\n"
    with pytest.raises(BackendRefused, match="held by 4711 python"):
        rig.reset.reset((FABRIC, "nvidia-dcgm"))
    assert tools.ran == ["systemctl stop nvidia-dcgm", f"systemctl is-active {FABRIC}"]
    assert (rig.nvml, rig.owed) == (["let go", "taken up", "over"], [])


def test_the_fabric_manager_goes_last(rig: Rig, tools: Tools) -> None:
    """Whatever order is configured, and though it holds GPUs itself until it is stopped."""
    rig.process(4712, "nv-fabricmanage", group=f"0::/system.slice/{FABRIC}.service")
    rig.stopping[f"systemctl stop {FABRIC}"] = lambda: shutil.rmtree(rig.proc / "4712")
    rig.reset.reset((FABRIC, *SERVICES))
    assert tools.ran == [*(f"systemctl stop {each}" for each in (*SERVICES, FABRIC)), "nvidia-smi --gpu-reset"]
    assert rig.owed == []


@pytest.mark.parametrize("answer", [(4, "in use"), SourceTimeout("no end within 300 s")])
def test_a_fabric_manager_that_was_stopped_for_nothing_owes_a_reset(rig: Rig, tools: Tools, answer: object) -> None:
    """It is started again over GPUs that were not reset: whatever the reset failed of, that is said."""
    tools.answers["nvidia-smi --gpu-reset"] = answer
    tools.answers[f"systemctl is-active {FABRIC}"] = (3, "inactive\n")
    with pytest.raises((BackendRefused, BackendUnknown)):
        rig.reset.reset((FABRIC,))
    (owed,) = rig.owed
    assert owed.startswith(f"{FABRIC} was stopped for a GPU reset that was not made: ")
    rig.owed.clear()
    tools.answers[f"systemctl is-active {FABRIC}"] = SourceTimeout("no end")
    with pytest.raises((BackendRefused, BackendUnknown)):
        rig.reset.reset((FABRIC,))
    assert len(rig.owed) == 1, "what cannot be told may have been stopped"


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("dcgm-exporter", "0::/system.slice/docker-4f.scope"),
        ("python3", "0::/system.slice/nvidia-dcgm.service/exporter"),
    ],
)
def test_what_a_service_keeps_is_no_other_holder(rig: Rig, tools: Tools, name: str, group: str) -> None:
    """A monitor by its name, or any process of a unit that is stopped, by its control group."""
    rig.process(4711, name, group=group)
    rig.stopping["systemctl stop nvidia-dcgm"] = lambda: shutil.rmtree(rig.proc / "4711")
    rig.reset.reset(("nvidia-dcgm",))
    assert tools.ran[-1] == "nvidia-smi --gpu-reset"


def test_our_own_worker_does_not_hold_us_up(rig: Rig) -> None:
    """It was told to let go."""
    rig.process(7, "healthd")
    rig.own = [7]
    rig.reset.reset(())


def test_a_process_that_cannot_be_ended_makes_a_reset_useless(rig: Rig) -> None:
    """D state: no signal ends it, only a reboot does, so the ladder goes on at once."""
    rig.process(9, "nvidia-smi", "D")
    assert rig.reset.reason_against() == "held by 9 nvidia-smi in uninterruptible sleep: only a reboot ends that"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SourceMissing("nvidia-smi: not found"), "nvidia-smi: not found"),
        (SourceTimeout("no end"), "does not answer: no end"),
    ],
)
def test_without_the_tool_there_is_no_reset(rig: Rig, tools: Tools, error: SourceError, words: str) -> None:
    """A machine without a working nvidia-smi says so before anything is stopped."""
    tools.answers["nvidia-smi --help"] = error
    assert words in rig.reset.reason_against()


def test_a_reset_that_fails_says_what_the_tool_said(rig: Rig, tools: Tools) -> None:
    """An exit status other than 0 is a refusal with its words; no answer is unknown."""
    tools.answers["nvidia-smi --gpu-reset"] = (4, "GPU 0000:53:00.0 is currently in use by another process")
    with pytest.raises(BackendRefused, match="exit status 4: GPU 0000:53:00.0 is currently in use"):
        rig.reset.reset(())
    tools.answers["nvidia-smi --gpu-reset"] = SourceTimeout("no end within 300 s")
    rig.nvml.clear()
    with pytest.raises(BackendUnknown, match="no end within 300 s"):
        rig.reset.reset(())
    assert rig.nvml == ["let go", "over"], "NVML would hang as the reset does"


def test_every_service_is_started_whatever_the_others_do(rig: Rig, tools: Tools) -> None:
    """The failure of one is named and keeps no other from its start."""
    tools.answers["systemctl start nvidia-persistenced"] = (1, "Job failed")
    assert "nvidia-persistenced: exit status 1: Job failed" in rig.reset.start(SERVICES)
    assert tools.ran[-1] == "systemctl start nvidia-dcgm"


def test_without_systemd_nothing_is_stopped(rig: Rig, tools: Tools) -> None:
    """Who still holds a GPU then is found right before the reset."""
    tools.answers |= dict.fromkeys(
        (f"systemctl is-active {name}" for name in SERVICES), SourceMissing("systemctl: not found")
    )
    assert rig.reset.holders() == ()


def test_a_service_manager_that_hangs_is_unknown(rig: Rig, tools: Tools) -> None:
    """A service that may be running must not be forgotten."""
    tools.answers["systemctl is-active nvidia-persistenced"] = SourceTimeout("no end within 60 s")
    with pytest.raises(BackendUnknown, match="whether nvidia-persistenced is active"):
        rig.reset.holders()


class Pods:
    """What a cluster keeps on the node. ``ends``: called when they are asked to end; ``why``: why they cannot start."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.on, self.why = rig, {PLUGIN}, ""
        self.ends: Callable[[], None] = lambda: None

    def running(self) -> tuple[str, ...]:
        return tuple(sorted(self.on))

    def stop(self, clients: Collection[str]) -> None:
        self.on -= set(clients)
        self.ends()

    def start(self, clients: Collection[str]) -> str:
        if not self.why:
            self.on |= set(clients)
        return self.why


@pytest.fixture
def pods(rig: Rig) -> Pods:
    pods = Pods(rig)
    rig.reset.clients = pods
    return pods


def test_what_the_cluster_keeps_is_stopped_and_waited_for(rig: Rig, tools: Tools, pods: Pods) -> None:
    """A pod takes its time to end: until nobody holds a GPU any more the reset is busy, and nothing of ours lets go."""
    tools.answers |= {f"systemctl is-active {SERVICES[0]}": "active\n"}
    stop = rig.reset.holders()
    assert stop == (SERVICES[0], PLUGIN)
    rig.process(4711, "nvidia-device-p")
    with pytest.raises(BackendBusy, match=f"{PLUGIN} asked to end; the GPUs are still held by 4711 nvidia-device-p"):
        rig.reset.reset(stop)
    assert (rig.nvml, pods.on) == ([], set())
    shutil.rmtree(rig.proc / "4711")
    assert rig.reset.reset(stop) == f"nvidia-smi --gpu-reset, after stopping {SERVICES[0]}, {PLUGIN}"
    assert rig.reset.start(stop) == ""
    assert pods.on == {PLUGIN}
    assert "nvidia-smi --gpu-reset" in tools.ran
    assert not [words for words in tools.ran if PLUGIN in words], "no unit of systemd has such a name"


def test_a_client_that_cannot_be_started_is_named(rig: Rig, pods: Pods) -> None:
    """And keeps no service from its start."""
    pods.why = "the API server does not answer"
    assert rig.reset.start((SERVICES[0], PLUGIN)) == "the API server does not answer"
    assert rig.tools.ran == [f"systemctl start {SERVICES[0]}"]


def test_whoever_nobody_here_may_stop_is_named_with_what_could(rig: Rig) -> None:
    """At once: a pod that a DaemonSet keeps does not go by itself."""
    rig.reset.help_ = "; see whose pod it is"
    rig.process(4711, "nvidia-device-p")
    with pytest.raises(BackendRefused, match="held by 4711 nvidia-device-p; see whose pod it is") as refused:
        rig.reset.reset(())
    assert not isinstance(refused.value, BackendBusy)
    assert rig.tools.ran == []


def test_where_none_is_allowed_nothing_is_asked(tmp_path: Path) -> None:
    """A container without devices and processes of the host would find no holder, and reset under a job."""
    rig = Rig(tmp_path, Tools())
    rig.reset.allowed = False
    assert "[remediation] gpu_reset is false" in rig.reset.reason_against()
    assert rig.tools.ran == []


def test_a_reset_that_is_owed_is_a_fault_that_only_a_reset_ends() -> None:
    """It is open at once, beside what gpu.recovery has found; a clean look leaves it, and a GPU reset ends it."""
    monitor = Monitor(discover(), None)
    lost = judged([LOST.at(gpu_component(uuid="GPU-1"), "NVML answers GPU_IS_LOST (15)")])
    monitor.absorb(answered(lost, check="gpu.recovery"))
    owe(monitor, "nvidia-fabricmanager was stopped for nothing", at(10))
    assert {fault.code for fault in monitor.history.faults.values()} == {"gpu.lost", "gpu.reset.owed"}
    monitor.absorb(answered(ok(), check="gpu.recovery", seconds=20))
    (diagnosis,) = monitor.diagnoses()
    assert (diagnosis.code, diagnosis.severity, diagnosis.remedy) == (
        "gpu.reset.owed",
        Severity.CRITICAL,
        Remedy.RESET_GPU,
    )
    monitor.clear(Clearance(by=ClearsBy.GPU_RESET, note="reset"), at(30))
    assert monitor.diagnoses() == ()
