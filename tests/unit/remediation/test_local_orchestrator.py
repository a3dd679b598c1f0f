"""The local orchestrator: its file under bad luck, and the processes it takes for jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from healthd.core.errors import BackendRefused, BackendUnknown
from healthd.remediation.orchestrators.local import HOLD_FILE, LocalOrchestrator
from healthd.remediation.ports import Hold
from tests.support.limits import limit_s

REASON = "healthd: gpu.xid.79 gpu:GPU-8e2f [k3v9]"


def _of(folder: Path) -> LocalOrchestrator:
    return LocalOrchestrator(state_dir=folder, node="me", clock=lambda: 1_795_226_977.9)


# ---------------------------------------------------------------------------------------------------------------------
# the hold


def test_the_hold_outlives_the_process_that_wrote_it(tmp_path: Path) -> None:
    """Another instance on the same folder, made when there was no folder yet, reads the same hold."""
    _of(tmp_path / "a" / "b").quarantine(REASON)
    assert _of(tmp_path / "a" / "b").view().hold == Hold(text=REASON, user="healthd", stamp=1_795_226_977)
    assert os.listdir(tmp_path / "a" / "b") == [HOLD_FILE]


def test_another_holds_text_is_never_overwritten(tmp_path: Path) -> None:
    """Over somebody else's hold quarantine is refused, and their text stays."""
    (tmp_path / HOLD_FILE).write_text(json.dumps({"text": "ticket 4711", "user": "admin", "stamp": 5}))
    with pytest.raises(BackendRefused, match="me is already held by admin: ticket 4711"):
        _of(tmp_path).quarantine(REASON)
    assert _of(tmp_path).view().hold == Hold(text="ticket 4711", user="admin", stamp=5)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"text": "x", "user": "y"', b"\x00" * 60, b"[]", b"null", b'{"text": 1, "user": "y", "stamp": 2}',
     b'{"text": "x", "user": "y", "stamp": 1e999}', b"\xff\xfe"],
)  # fmt: skip
def test_a_torn_or_foreign_file_is_unknown_with_its_path(tmp_path: Path, content: bytes) -> None:
    """A file that is no hold is neither a hold nor the absence of one, and nothing is written over it."""
    path = tmp_path / HOLD_FILE
    path.write_bytes(content)
    orchestrator = _of(tmp_path)
    for act in (orchestrator.view, orchestrator.snapshot, lambda: orchestrator.quarantine(REASON)):
        with pytest.raises(BackendUnknown, match=f"{path}: expected a hold as JSON"):
            act()
    assert path.read_bytes() == content


def test_a_hold_that_cannot_be_written_is_unknown_and_leaves_nothing(tmp_path: Path) -> None:
    """Where state_dir is a file, the message has the path and the next step."""
    (tmp_path / "state").write_text("")
    with pytest.raises(BackendUnknown, match=r"state/hold\.json: the hold could not be"):
        _of(tmp_path / "state").quarantine(REASON)
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.process
def test_a_write_that_fails_half_way_keeps_the_old_state(tmp_path: Path) -> None:
    """With no room for a byte (RLIMIT_FSIZE 0) the hold is not written, said so, and the folder is as before."""
    script = f"""
import resource, signal
from healthd.core.errors import BackendUnknown
from healthd.remediation.orchestrators.local import LocalOrchestrator
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    LocalOrchestrator(state_dir={str(tmp_path)!r}, node="me").quarantine("x")
except BackendUnknown as error:
    print(error)
"""
    root = Path(__file__).parents[3]
    environment = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=limit_s(20), check=True, env=environment
    )
    assert "the hold could not be written" in done.stdout
    assert os.listdir(tmp_path) == []
    assert _of(tmp_path).view().in_service


def test_release_without_a_hold_is_safe(tmp_path: Path) -> None:
    """Releasing what is not held, even where the folder was never made, does nothing."""
    _of(tmp_path).release(resume=True)
    _of(tmp_path / "absent").release(resume=False)
    assert _of(tmp_path).view().in_service


# ---------------------------------------------------------------------------------------------------------------------
# the jobs


def test_our_own_probe_workers_are_not_jobs(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """The ignored processes are asked for at each reading, because workers are restarted."""
    workers = [9]
    orchestrator = LocalOrchestrator(
        state_dir=tmp_path, node="me", proc_root=trees[0], dev_root=trees[1], ignore_pids=lambda: workers
    )
    assert orchestrator.view(jobs=True).jobs == ("100 job100",)
    workers.append(100)
    assert orchestrator.view(jobs=True).idle
    assert orchestrator.view().jobs == ()


def test_a_monitor_of_the_gpus_is_not_a_job(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """nvidia-persistenced keeps every GPU open as long as the node is up; waiting for it to end would be for ever."""
    (trees[0] / "9" / "comm").write_text("nvidia-persiste\n")
    orchestrator = LocalOrchestrator(state_dir=tmp_path, node="me", proc_root=trees[0], dev_root=trees[1])
    assert orchestrator.view(jobs=True).jobs == ("100 job100",)
