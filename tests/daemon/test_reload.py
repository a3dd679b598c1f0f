"""What a daemon does when only this machine can say that its configuration is wrong: a group, a folder, a platform.

A reload that would end it changes nothing, and a start that fails so is one that systemd tries again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from healthd.api.exit_codes import ExitCode
from tests.support.limits import limit_s
from tests.support.running import NOBODY, ROOT, Running, RunningNode

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts, or asks as another user")

LOCAL = '[orchestrator]\nkind = "local"\n'
NO_GROUP = "daemon.group = gpu-amdins: no such group on this machine, so only root may act"
NO_SLURM = "provisioner.kind = parallelcluster needs Slurm"
CANNOT_START = {
    "platform": ('[orchestrator]\nkind = "auto"\n[provisioner]\nkind = "parallelcluster"\n', NO_SLURM),
    "state": (LOCAL, "daemon.state_dir: "),
    "socket": (LOCAL, "daemon.socket: "),
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    made = RunningNode(tmp_path / "node", "n1", sections=LOCAL)
    yield made
    made.stop()


def with_group(node: RunningNode) -> None:
    node.config.write_text(node.config.read_text().replace("[daemon]", '[daemon]\ngroup = "gpu-amdins"'))


def cannot_start(node: RunningNode, why: str) -> str:
    """Write a configuration that loads and that no daemon could start with here; returns what is to be said of it."""
    sections, words = CANNOT_START[why]
    node.configure(sections)
    text, below = node.config.read_text(), node.folder / "file/below"
    below.parent.touch()
    if why == "state":
        text = text.replace(f'"{node.state_dir}"', f'"{below}"')
    if why == "socket":
        text = text.replace(f'"{node.socket}"', f'"{below}/s"')
    node.config.write_text(text)
    return words


def reload(node: Running) -> None:
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)


@pytest.mark.parametrize("why", CANNOT_START)
def test_a_reload_that_would_end_it_changes_nothing(node: RunningNode, why: str) -> None:
    """The daemon that runs finds out, says why, and goes on as it was; the next good configuration is taken."""
    node.start()
    good = node.config.read_text()
    words = cannot_start(node, why)
    reload(node)
    node.wait(lambda: "the one before stays in force" in node.log.read_text(), 15, "it refuses")
    assert words in node.log.read_text()
    assert node.status() is not None
    assert sum("started" in event.text for event in node.events()) == 1
    node.config.write_text(good.replace("[daemon]", "[daemon]\nworkers = 2"))
    reload(node)
    node.wait(lambda: sum("started" in event.text for event in node.events()) == 2, 20, "it starts again")
    node.wait(lambda: node.status() is not None, 20, "it answers")


def test_a_reload_leaves_no_command_of_a_check_behind(node: RunningNode) -> None:
    """Neither one that runs on without a deadline, nor its entry in the process table once it has ended."""
    slow = 'name = "slow"\ncommand = ["sleep", "45"]\ntimeout_s = 60'
    node.configure(f'{LOCAL}[[checks."plugin.run".plugins]]\n{slow}\n')
    node.start()
    assert node.process is not None
    daemon = psutil.Process(node.process.pid)

    def commands() -> list[psutil.Process]:
        return [each for each in daemon.children() if each.name() == "sleep"]

    node.wait(commands, 20, "the plug-in runs")
    (before,) = commands()
    reload(node)
    node.wait(lambda: sum("started" in event.text for event in node.events()) == 2, 20, "it starts again")
    node.wait(lambda: not before.is_running(), 20, "the plug-in of before is gone")


_STARTS_SLOWLY = """
import pathlib, time
slow = pathlib.Path({!r})
if slow.exists():
    slow.rename(slow.with_name("under way"))
    time.sleep(1.5)
"""


def test_a_reload_during_a_reload_is_no_lost_one(tmp_path: Path) -> None:
    """The configuration was written again while the daemon started with the one before: it starts once more."""
    modules, slow = tmp_path / "modules", tmp_path / "slow"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(_STARTS_SLOWLY.format(str(slow)))
    node = RunningNode(tmp_path / "node", "n1", sections=LOCAL, environ={"PYTHONPATH": str(modules)})
    node.as_program = True
    try:
        node.start()
        slow.touch()
        reload(node)
        node.wait(slow.with_name("under way").exists, 20, "it starts again")
        reload(node)
        node.wait(lambda: sum("started" in event.text for event in node.events()) == 3, 20, "it starts once more")
    finally:
        node.stop()


@pytest.mark.parametrize("why", [each for each in CANNOT_START if each != "state"])
def test_such_a_start_is_one_to_try_again(node: RunningNode, why: str) -> None:
    """Exit 70: by 78 systemd would leave the node without a daemon, for a folder that is mounted a second later.
    Without its state directory the daemon starts, and looks (test_state_disk)."""
    cannot_start(node, why)
    done = node.healthd("run", "--config", str(node.config))
    assert done.returncode == ExitCode.FAILED, done.stderr
    assert "\nhealthd: " in f"\n{done.stderr}"


@needs_root
@pytest.mark.parametrize("options", ["ro", "size=4k,nr_inodes=1"])
def test_a_run_that_takes_no_socket_is_one_to_try_again(node: RunningNode, options: str) -> None:
    """/run read only, or full."""
    node.folder.joinpath("run").mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(node.folder / "run")]
    if (mounted := subprocess.run(argv, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        text = node.config.read_text()
        node.config.write_text(text.replace(f'"{node.socket}"', f'"{node.folder}/run/s"'))
        done = node.healthd("run", "--config", str(node.config))
    finally:
        subprocess.run(["umount", str(node.folder / "run")], check=True)
    assert (done.returncode, "daemon.socket = " in done.stderr) == (ExitCode.FAILED, True), done.stderr


@needs_root
def test_a_group_that_is_not_there_keeps_nobody_from_starting(node: RunningNode) -> None:
    """Reloaded or started with it: only root may act, and status, log and whoever is refused are told why."""
    node.start()
    with_group(node)
    reload(node)
    node.wait(lambda: NO_GROUP in "".join((node.status() or {}).get("notices", ())), 20, "status says so")
    order = ("release",)
    refused = node.as_nobody(*order)
    assert (refused.returncode, NO_GROUP in refused.stderr) == (77, True), refused.stderr
    assert f"uid {NOBODY} may not act here" in refused.stderr
    assert node.as_nobody("check").returncode in (0, 1, 2)
    node.stop()
    node.log.write_text("")
    node.start()
    node.wait(lambda: NO_GROUP in node.log.read_text(), 10, "the log says so")
    assert node.log.read_text().count(NO_GROUP) == 1


_ASKS_TWICE = """
import sys
from healthd.api.group import SocketGroup
said = []
group = SocketGroup("group", "gpu-admins", said.append)
first = group.number(), bool(group.problem())
open("/etc/group", "a").write("gpu-admins:x:4711:\\n")
print(first, group.number(), bool(group.problem()), said[-1])
"""


@needs_root
def test_a_group_that_comes_later_counts_from_then_on(tmp_path: Path) -> None:
    """As from a directory that answers only after the boot. /etc/group is the test's own, in a mount namespace."""
    groups = tmp_path / "group"
    groups.write_text("root:x:0:\n")
    script = 'mount --bind "$1" /etc/group && exec "$2" -c "$3"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(groups), sys.executable, _ASKS_TWICE]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=limit_s(30), check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespace can be made here: {done.stderr.strip()}")
    words = "daemon.group = gpu-admins: the group exists now"
    assert done.stdout == f"(None, True) 4711 False {words}\n", done.stderr


@pytest.mark.parametrize("why", CANNOT_START)
def test_validate_here_finds_it_before_a_reload(node: RunningNode, why: str) -> None:
    """As the unit's ExecReload asks. Without --here no machine is looked at: a file may be meant for another one."""
    words = cannot_start(node, why)
    here = node.healthd("config", "validate", "--here", "--config", str(node.config))
    assert (here.returncode, here.stdout, words in here.stderr) == (ExitCode.CONFIG, "", True), here.stderr
    message = node.healthd("config", "validate", "--here", "--json", "--config", str(node.config))
    assert words in json.loads(message.stdout)["problems"][0]
    anywhere = node.healthd("config", "validate", "--config", str(node.config))
    assert (anywhere.returncode, anywhere.stderr) == (0, "")


def test_a_rule_for_no_code_is_wrong_on_any_machine(node: RunningNode) -> None:
    """78 at a start, told without --here, and refused by a reload."""
    node.start()
    node.configure(
        f'{LOCAL}[[policy.rule]]\nname = "x"\ncodes = ["gpu.xidd.79"]\nladder = []\nreason = "y"\nsource = "z"\n'
    )
    reload(node)
    node.wait(lambda: "the one before stays in force" in node.log.read_text(), 15, "it refuses")
    for verb in (("run",), ("config", "validate")):
        done = node.healthd(*verb, "--config", str(node.config))
        assert (done.returncode, "no check has such a code" in done.stderr) == (ExitCode.CONFIG, True), done.stderr


def test_validate_here_warns_of_a_group(node: RunningNode) -> None:
    """It may come later."""
    with_group(node)
    done = node.healthd("config", "validate", "--here", "--config", str(node.config))
    assert (done.returncode, done.stdout) == (0, "the configuration is valid\n")
    assert done.stderr.startswith(f"healthd: warning: {NO_GROUP}")
    shown = node.healthd("config", "show", "--here", "--config", str(node.config))
    assert (shown.returncode, "--here works only with `healthd config validate`" in shown.stderr) == (64, True)


def test_a_controller_goes_on_as_well(tmp_path: Path) -> None:
    """A configuration that it could not lead with is refused by the one that leads."""
    controller, config, log = Running(), tmp_path / "config.toml", tmp_path / "log"
    text = f'[controller]\nstate_dir = "{tmp_path}"\nhttp = ""\n[orchestrator]\nkind = "slurm"\n'
    config.write_text(f'{text}[provisioner]\nkind = "hyperpod"\n')
    log.touch()
    environ = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(ROOT)}
    controller.begin("controller", config, log, environ)

    def says(words: str) -> None:
        end = time.monotonic() + limit_s(20)
        while words not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)

    try:
        says("leads: this controller acts from now on")
        config.write_text(text)
        reload(controller)
        says("the one before stays in force")
        assert "provisioner.kind = none: the controller needs the platform of the nodes" in log.read_text()
    finally:
        assert controller.stop() == 0
