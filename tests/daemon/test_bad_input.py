"""What a daemon must survive: torn records, garbage, damaged or missing state, a full disk, a taken socket or port.

Each time a clear message, nothing lost, and no drain by mistake.
"""

from __future__ import annotations

import os
import random
import socket
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from healthd.remediation.orchestrators.local import HOLD_FILE
from tests.support.limits import limit_s
from tests.support.running import OFF_THE_BUS, RECOVERED, UNCONTAINED, RunningNode

pytestmark = pytest.mark.process

PCI = "0000:05:00"
QUARANTINE = """
[remediation]
mode = "quarantine"
settle_s = 0.2
opt_out_file = ""
[orchestrator]
kind = "local"
"""
EX_USAGE, EX_SOFTWARE, EX_CONFIG = 64, 70, 78
needs_mount = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node that may be taken out, its daemon not yet started."""
    made = RunningNode(tmp_path / "node", "n1", sections=QUARANTINE)
    yield made
    made.stop()


@pytest.fixture
def small_disk(node: RunningNode) -> Iterator[Path]:
    """A state directory on a file system of its own, with 2 MiB."""
    node.state_dir.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", node.state_dir], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield node.state_dir
    node.stop()
    subprocess.run(["umount", node.state_dir], check=True)


def is_held(node: RunningNode) -> bool:
    """Whether the local orchestrator holds the node out."""
    return (node.state_dir / HOLD_FILE).exists()


def open_codes(node: RunningNode) -> set[str]:
    """The codes of all findings that the kernel log has open."""
    return {finding["code"] for check in node.check("kernel.xid")["checks"] for finding in check["findings"]}


def noise(size: int) -> bytes:
    """Bytes that mean nothing, the same ones in every run."""
    return random.Random(79).randbytes(size)  # noqa: S311 - not for secrets


def run_once(node: RunningNode, **environ: str) -> tuple[int, str]:
    """`healthd run` that is expected to end by itself: (exit code, stderr)."""
    done = node.healthd("run", "--config", str(node.config), timeout_s=limit_s(20), **environ)
    return done.returncode, done.stderr


# ---------------------------------------------------------------------------------------------------------------------
# the kernel log


def test_torn_and_binary_records_hide_nothing(node: RunningNode) -> None:
    """Garbage between the records drains nothing and hides nothing; a record written in two halves is read whole."""
    node.start()
    with node.kmsg.open("ab", buffering=0) as log:
        log.write(bytes(range(256)) * 4 + b"\n")
        log.write(b"4,x,y,-;NVRM: Xid (PCI:0000:05:00): 79, torn head\n")
        log.write(b";;;\n\n4,1\n" + b"\xff\xfe" * 2000 + b"\n")
    time.sleep(0.5)
    assert open_codes(node) == set()
    record = f"4,900,{int(time.monotonic() * 1e6)},-;{UNCONTAINED.format(pci=PCI)}\n".encode()
    with node.kmsg.open("ab", buffering=0) as log:
        log.write(record[:40])
        time.sleep(0.3)
        assert not is_held(node)
        log.write(record[40:])
    node.wait(lambda: is_held(node), 5.0, "the whole record drains")
    assert open_codes(node) == {"gpu.xid.95"}


# ---------------------------------------------------------------------------------------------------------------------
# the configuration and the command line


def cpu_of_children_s() -> float:
    """What the processes that were started here and have ended have computed so far."""
    used = os.times()
    return used.children_user + used.children_system


@pytest.mark.parametrize("kind", ["bytes", "brackets", "keys"])
def test_a_megabyte_of_garbage_is_refused_quickly(node: RunningNode, kind: str) -> None:
    """1 MB of nonsense as the configuration: exit 78 after less than five seconds of computing, a message that names
    the file, no stack trace."""
    megabyte = 1024 * 1024
    garbage = {
        "bytes": noise(megabyte),
        "brackets": b"[" * megabyte,
        "keys": b"".join(b"k%d = [[1, {a = 2}], 'x']\n" % number for number in range(megabyte // 28)),
    }
    node.config.write_bytes(garbage[kind])
    for verb in (("run",), ("check", "--no-daemon"), ("config", "validate")):
        began_s = cpu_of_children_s()
        done = node.healthd(*verb, "--config", str(node.config), timeout_s=limit_s(30))
        assert done.returncode == EX_CONFIG
        assert cpu_of_children_s() - began_s < 5
        assert str(node.config) in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        assert len(done.stderr + done.stdout) < 20_000


def test_a_misspelt_variable_is_refused(node: RunningNode) -> None:
    """A HEALTHD_ variable that sets nothing ends the start with 78, and the right name is suggested."""
    code, message = run_once(node, HEALTHD_REMEDIATION_MOD="repair")
    assert code == EX_CONFIG
    assert "HEALTHD_REMEDIATION_MOD" in message
    assert "did you mean HEALTHD_REMEDIATION_MODE?" in message


def test_wrong_command_lines_are_refused_alike(node: RunningNode) -> None:
    """A check that does not exist and an option that does not exist are 64, with a daemon and without one."""
    node.start()
    for where in (("--socket", str(node.socket)), ("--no-daemon", "--config", str(node.config))):
        unknown = node.healthd("check", "gpu.cont", *where)
        assert (unknown.returncode, unknown.stdout) == (EX_USAGE, "")
        assert "did you mean gpu.count?" in unknown.stderr
        wrong = node.healthd("check", "--jsn", *where)
        assert (wrong.returncode, wrong.stdout) == (EX_USAGE, "")
        assert "--jsn" in wrong.stderr
    assert node.healthd("chekc").returncode == EX_USAGE
    assert node.healthd("hook", "prolgo", "--socket", str(node.socket)).returncode == EX_USAGE


# ---------------------------------------------------------------------------------------------------------------------
# the state


def damage(path: Path, how: str) -> None:
    """Make a database unusable."""
    match how:
        case "future":
            with sqlite3.connect(path) as db:
                db.execute("PRAGMA user_version = 99")
            db.close()
        case "pages":
            content = bytearray(path.read_bytes())
            content[4096:12288] = noise(8192)
            path.write_bytes(content)
        case _:
            path.write_bytes(b"this is no database\n" * 500)


@pytest.mark.parametrize("how", ["future", "pages", "text"])
def test_a_database_that_cannot_be_used_is_set_aside(node: RunningNode, how: str) -> None:
    """A later version's or a damaged database is kept whole beside a fresh one, loudly; the log is judged anew."""
    node.start()
    node.kernel_says(OFF_THE_BUS.format(pci=PCI))
    node.wait(lambda: "out until it is healthy" in node.log_text(), 10.0, "drained")
    hold = (node.state_dir / HOLD_FILE).read_bytes()
    node.stop()
    database = node.state_dir / "healthd.db"
    damage(database, how)
    damaged = database.read_bytes()
    node.start()
    (aside,) = node.state_dir.glob("healthd.db.set-aside-*[0-9]")
    assert aside.read_bytes() == damaged
    for told in (node.log.read_text(), node.log_text(), str(status_of(node)["notices"])):
        assert f"healthd keeps it as {aside} and starts a fresh database" in told
    assert open_codes(node) == {"gpu.xid.79"}
    time.sleep(0.5)
    assert (node.state_dir / HOLD_FILE).read_bytes() == hold, (
        "a drain whose remediation was lost is somebody's: left alone"
    )


def status_of(node: RunningNode) -> dict[str, object]:
    """What status says; the daemon must answer."""
    status = node.status()
    assert status is not None
    return status


@needs_mount
def test_a_full_disk_costs_no_finding_and_drains_nothing(node: RunningNode, small_disk: Path) -> None:
    """No room for the intent: nothing is drained, everything is answered; once there is room, all of it happens."""
    node.start()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError:
                break
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: open_codes(node) == {"gpu.xid.95"}, 5.0, "the finding is told")
    node.wait(lambda: status_of(node)["store_problem"], 5.0, "the full disk is told")
    assert "full" in str(status_of(node)["store_problem"])
    assert node.check()["verdict"] == "critical"
    time.sleep(1.0)
    assert not is_held(node)
    filler.unlink()
    node.wait(lambda: is_held(node), 20.0, "drained once the intent can be written")
    node.wait(lambda: status_of(node)["store_problem"] == "", 20.0, "and the trouble is over")
    assert f"gpu.xid.95 on gpu:{PCI} opened" in node.log_text()
    node.kernel_says(RECOVERED.format(pci=PCI))
    node.wait(lambda: not is_held(node), 10.0, "and released")


@needs_mount
def test_a_read_only_state_dir_is_said_at_once(node: RunningNode, small_disk: Path) -> None:
    """Nothing can be written down, so nothing may be done: the daemon only looks, finds what there is, and names the
    folder."""
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    node.start()
    node.kernel_says(UNCONTAINED.format(pci=PCI))
    node.wait(lambda: open_codes(node) == {"gpu.xid.95"}, 5.0, "the finding is told")
    message = str(status_of(node)["store_problem"])
    assert f"cannot use {small_disk}: Read-only file system; expected a folder that healthd can write" in message
    assert status_of(node)["mode"] == "observe"
    assert not is_held(node)
    for verb in (("quarantine", "--reason", "t"), ("repair", "--step", "reboot", "--reason", "t", "--yes")):
        done = node.healthd(*verb, "--socket", str(node.socket), timeout_s=limit_s(30))
        assert done.returncode == EX_SOFTWARE, "the remediation would be forgotten with the memory that it is in"
        assert "acts on nothing until its state can be kept" in done.stderr
    assert status_of(node)["remediation"] is None


def test_a_state_dir_belongs_to_one_daemon(node: RunningNode) -> None:
    """A second daemon on the same state ends with 70; the first one does not notice."""
    node.start()
    code, message = run_once(node, HEALTHD_DAEMON_SOCKET=str(node.folder / "other"))
    assert code == EX_SOFTWARE
    assert f"{node.state_dir}: another healthd uses it" in message
    assert node.status() is not None


# ---------------------------------------------------------------------------------------------------------------------
# the doors


def test_a_socket_path_that_is_too_long_is_refused(node: RunningNode) -> None:
    """A unix socket's path has 107 bytes, three of them ours: 78, with the limit, and no daemon out of reach."""
    code, message = run_once(node, HEALTHD_DAEMON_SOCKET=str(node.folder / ("s" * 108)))
    assert code == EX_CONFIG
    assert "104 bytes at most" in message


def test_a_living_socket_is_left_to_its_daemon(node: RunningNode) -> None:
    """Where a daemon answers, a second one is refused, to be tried again, and the first one goes on answering."""
    node.start()
    code, message = run_once(node, HEALTHD_DAEMON_STATE_DIR=str(node.folder / "other"))
    assert code == EX_SOFTWARE
    assert "another daemon answers there" in message
    assert node.status() is not None


def test_a_stale_socket_is_replaced(node: RunningNode) -> None:
    """What a killed daemon left behind is no obstacle."""
    node.start()
    node.kill()
    assert node.socket.exists()
    node.start()
    assert node.status() is not None


def test_a_taken_port_is_said_and_the_node_is_watched_all_the_same(node: RunningNode) -> None:
    """No metrics page is no reason to leave a node unwatched."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        node.config.write_text(node.config.read_text().replace('http = ""', f'http = "{address}"'))
        node.start()
        node.wait(lambda: "no HTTP server" in node.log.read_text(), 5.0, "it is in the log")
        assert address in node.log.read_text()
        node.kernel_says(OFF_THE_BUS.format(pci=PCI))
        node.wait(lambda: is_held(node), 5.0, "drained as ever")
        status = node.healthd("status", "--socket", str(node.socket)).stdout
        assert f"no HTTP server at {address}, [daemon] http: " in status
    node.wait(lambda: answers(address), 15.0, "it listens once the port is free")
    assert "no HTTP server" not in node.healthd("status", "--socket", str(node.socket)).stdout


def answers(address: str) -> bool:
    """Whether the daemon's health page is there."""
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=limit_s(5)) as answer:
            return bool(answer.read() == b"ok\n")
    except OSError:
        return False
