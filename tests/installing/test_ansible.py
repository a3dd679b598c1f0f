"""The Ansible role on a booted, clean Debian: linted, tried in check mode, run twice, and with what is wrong."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from healthd.config.environment import service_variables
from tests.installing.machine import Machine, booted, clean_root
from tests.support.debian_root import CACHE
from tests.support.limits import limit_s
from tests.support.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.process]

ANSIBLE = ROOT / "packaging/ansible"
LOCKED = ROOT / "requirements/ansible.txt"
CONFIG, ENVIRONMENT = "/etc/healthd/config.toml", "/etc/healthd/environment"
RECAP = re.compile(r"^node +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=(\d+)", re.MULTILINE)
# `ssh` for Ansible, as a user without rights: its last argument is what the machine's shell runs.
ENTER = '#!/bin/sh\nfor last; do :; done\nexec {} sh -c "$last"\n'
LOGIN = ("setpriv", "--reuid=login", "--regid=login", "--clear-groups", "env", "HOME=/home/login")
CONFIGURED = {
    "remediation": {"mode": "observe"},
    "orchestrator": {"kind": "slurm"},
    "checks": {"lustre.mount": {"mounts": ["/fsx", '/a "b"'], "optional": True}, "efa.devices": {"expected": 32}},
    "match": [{"partition": ["canary"], "remediation": {"mode": "quarantine"}}],
}


@pytest.fixture(scope="module")
def tools() -> Path:
    """The commands of ansible-core and ansible-lint, installed once for this lock, in a venv of their own."""
    venv = CACHE / f"ansible-{hashlib.sha256(LOCKED.read_bytes()).hexdigest()[:12]}-{sys.version_info[1]}"
    whole = venv / "whole"
    if not whole.exists():  # in its place from the start: the commands of a venv name its folder
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True, timeout=limit_s(120))
        pip: list[str | Path] = [venv / "bin/python", "-m", "pip", "install", "-q", "--require-hashes", "-r", LOCKED]
        done = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=limit_s(600))
        if done.returncode != 0:
            pytest.skip(f"ansible-core and ansible-lint could not be installed: {done.stderr[-500:]}")
        whole.touch()
    return venv


def ansible(tools: Path, program: str, *words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run one of them in the folder of the role."""
    path = f"{tools / 'bin'}:{os.environ['PATH']}"
    quiet = {"ANSIBLE_NOCOLOR": "1", "NO_COLOR": "1", "PATH": path, "LC_ALL": "C.UTF-8", **environ}
    return subprocess.run(
        [tools / "bin" / program, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=limit_s(300),
        cwd=ANSIBLE,
        env={**os.environ, **quiet},
    )


def test_ansible_lint_finds_nothing(tools: Path) -> None:
    """The role and the example pass its strictest profile."""
    done = ansible(tools, "ansible-lint", "--offline", "--profile", "production", "-q")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_environment_is_read_back_as_it_was_given(tools: Path, tmp_path: Path) -> None:
    """systemd takes backslashes and outer quotes of a bare value away: another value than the role has validated."""
    given = {
        "HEALTHD_A": '["/fsx", "/a b"]',
        "HEALTHD_B": r"\d+ \"x\" $HOME `id`",
        "HEALTHD_C": "'quoted'",
        "HEALTHD_D": "observe",
    }
    tasks = yaml.safe_load((ANSIBLE / "roles/healthd/tasks/configure.yml").read_text())
    (task,) = (each for each in tasks if each["name"] == "Write the environment")
    copy = {"content": task["ansible.builtin.copy"]["content"], "dest": str(tmp_path / "environment")}
    variables = json.dumps({"healthd_environment": given})
    words = ("localhost", "-c", "local", "-m", "ansible.builtin.copy", "-a", json.dumps(copy), "-e", variables)
    done = ansible(tools, "ansible", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert service_variables((tmp_path / "environment").read_text()) == given


class Play:
    """The role on the machine, by a play of its own."""

    def __init__(self, tools: Path, folder: Path, machine: Machine) -> None:
        self._tools, self.folder = tools, folder
        enter = folder / "enter"
        enter.write_text(ENTER.format(shlex.join([*machine.login(), *LOGIN])))
        enter.chmod(0o755)
        connection = f"ansible_ssh_executable={enter} ansible_ssh_transfer_method=piped ansible_ssh_args=''"
        connection += " ansible_become=true ansible_become_method=su"
        (folder / "inventory").write_text(f"node ansible_host=node {connection}\n")
        (folder / "play.yml").write_text(json.dumps([{"hosts": "node", "gather_facts": False, "roles": ["healthd"]}]))

    def run(self, variables: Mapping[str, Any], *words: str) -> tuple[int, str]:
        """How many tasks changed the machine, and what was printed; -1 where the play failed."""
        (values := self.folder / "variables.json").write_text(json.dumps(variables))
        where: list[str | Path] = ["-i", self.folder / "inventory", "-e", f"@{values}", *words]
        own = {"ANSIBLE_ROLES_PATH": str(ANSIBLE / "roles"), "ANSIBLE_LOCAL_TEMP": str(self.folder / "local")}
        done = ansible(self._tools, "ansible-playbook", *where, self.folder / "play.yml", **own)
        printed = done.stdout + done.stderr
        recap = RECAP.search(printed)
        assert recap is not None, printed
        return (int(recap[1]) if done.returncode == 0 and recap[2] == "0" else -1), printed


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A booted Debian with Slurm and the Python that Ansible needs; healthd is not installed."""
    with booted(clean_root(), tmp_path_factory.mktemp("machine")) as made:
        made.must("apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-apt")
        made.must("useradd", "--create-home", "login")
        made.write("/etc/pam.d/su", "auth sufficient pam_permit.so\naccount required pam_permit.so\n")
        yield made


@pytest.fixture(scope="module")
def play(tools: Path, machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play(tools, tmp_path_factory.mktemp("play"), machine)


@pytest.mark.root
def test_a_node_by_the_role(play: Play, machine: Machine, debs: tuple[Path, Path]) -> None:
    """In check mode nothing changes; then it is installed. What is wrong changes nothing; a new configuration reaches
    the same process; a new package is an upgrade; the hooks go into slurm.conf; and a second run changes nothing."""
    given = {"healthd_config": CONFIGURED, "healthd_package": str(debs[0]), "healthd_package_sha256": sha256(debs[0])}
    tried_in_check_mode(play, machine, given)
    installed(play, machine, given)
    refused(play, machine, given)
    reconfigured(play, machine, given)
    upgraded(play, machine, {**given, "healthd_package_sha256": sha256(debs[1])}, debs[1])


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main_pid(machine: Machine) -> str:
    return machine.out("systemctl", "show", "--value", "--property=MainPID", "healthd")


def serves(machine: Machine) -> None:
    """The daemon runs, and no reload of the play's is under way any more."""
    machine.wait(lambda: machine.out("systemctl", "is-active", "healthd") == "active", limit_s(10), "healthd is active")


def tried_in_check_mode(play: Play, machine: Machine, given: Mapping[str, Any]) -> None:
    changed, printed = play.run(given, "--check")
    assert changed > 0, printed
    assert machine.run("test", "-e", "/usr/bin/healthd").returncode != 0
    assert machine.run("test", "-e", "/var/cache/healthd-package").returncode != 0


def installed(play: Play, machine: Machine, given: Mapping[str, Any]) -> None:
    changed, printed = play.run(given)
    assert changed > 0, printed
    serves(machine)
    assert machine.out("systemctl", "is-enabled", "healthd") == "enabled"
    shown = json.loads(machine.must("healthd", "config", "show", "--json"))
    assert '/a "b"' in json.dumps(shown, ensure_ascii=False).replace('\\"', '"')


def refused(play: Play, machine: Machine, given: Mapping[str, Any]) -> None:
    """Another package, a configuration or an environment that healthd refuses: each fails the play and is not there
    afterwards, and the daemon runs on."""
    pid, config = main_pid(machine), machine.out("cat", CONFIG)
    wrong_mode = {"healthd_config": {**CONFIGURED, "remediation": {"mode": "repare"}}}
    wrong: tuple[tuple[dict[str, Any], str, tuple[str, ...]], ...] = (
        ({"healthd_package_sha256": "0" * 64}, "has the SHA-256", ()),
        ({"healthd_package_sha256": ""}, "healthd_package needs healthd_package_sha256", ()),
        ({"healthd_config_file": "/nowhere.toml"}, "exclude each other", ()),
        (wrong_mode, "line 5: remediation.mode: expected one of", ()),
        (wrong_mode, "line 5: remediation.mode: expected one of", ("--check",)),
        (
            {"healthd_environment": {"HEALTHD_REMEDIATION_MODE": "repare"}},
            "environment HEALTHD_REMEDIATION_MODE: 1",
            (),
        ),
    )
    for variables, words, options in wrong:
        changed, printed = play.run({**given, **variables}, *options)
        assert changed == -1, printed
        assert words in printed
    assert machine.out("cat", CONFIG) == config
    assert machine.run("test", "-e", ENVIRONMENT).returncode != 0
    serves(machine)
    assert main_pid(machine) == pid
    assert machine.out("sh", "-c", "ls -d /tmp/tmp.* 2>/dev/null") == ""


OWN = '[remediation]\nmode = "quarantine"\n# {{ none of Ansible\'s }}\n'


def reconfigured(play: Play, machine: Machine, given: Mapping[str, Any]) -> None:
    """The daemon reloads for a new configuration, and restarts for a new environment."""
    pid = main_pid(machine)
    own = play.folder / "own.toml"
    own.write_text(OWN)
    new = {**given, "healthd_config": {}, "healthd_config_file": str(own)}
    changed, printed = play.run(new)
    assert changed == 2, printed  # the file, and the reload
    assert machine.must("cat", CONFIG) == own.read_text()
    machine.wait(lambda: " · quarantine · " in machine.out("healthd", "status"), 30, "the new mode")
    assert main_pid(machine) == pid
    changed, printed = play.run({**new, "healthd_environment": {"HEALTHD_REMEDIATION_MODE": "observe"}})
    assert changed == 2, printed
    machine.wait(lambda: " · observe · " in machine.out("healthd", "status"), 30, "the mode of the environment")
    assert main_pid(machine) != pid


def upgraded(play: Play, machine: Machine, given: Mapping[str, Any], package: Path) -> None:
    """The second package, by its URL, and the hooks: once, and Slurm is told once. A site's own hook is not doubled."""
    conf, url = "/root/slurm.conf", f"http://127.0.0.1:8099/{package.name}"
    hooks = {"healthd_slurm_conf": conf, "healthd_slurm_reconfigure": "touch /root/reconfigured"}
    new = {**given, **hooks, "healthd_package": url}
    machine.write(conf, "ClusterName=c\n#Prolog=/old\n")
    before = machine.out("dpkg-query", "-W", "healthd")
    with served(machine, package):
        machine.wait(lambda: machine.run("python3", "-c", REACH, url).returncode == 0, 30, "the file server")
        changed, printed = play.run(new)
        assert changed > 0, printed
        assert machine.out("dpkg-query", "-W", "healthd") != before
        serves(machine)
        assert "Prolog=/usr/lib/healthd/slurm/prolog.sh" in machine.out("cat", conf).splitlines()
        machine.must("rm", "/root/reconfigured")
        changed, printed = play.run(new)
        assert changed == 0, printed
        assert machine.run("test", "-e", "/root/reconfigured").returncode != 0
    machine.write(conf, "ClusterName=c\nprolog = /site/prolog.sh\n")
    changed, printed = play.run(hooks)
    assert changed == -1, printed
    assert "has prolog already" in printed
    assert machine.out("cat", conf) == "ClusterName=c\nprolog = /site/prolog.sh"


REACH = "import sys, urllib.request as r; r.urlopen(sys.argv[1])"


@contextlib.contextmanager
def served(machine: Machine, package: Path) -> Iterator[None]:
    """The package by HTTP on the machine itself, whose network is its own."""
    machine.must("mkdir", "-p", "/root/served")
    machine.copy(package, f"/root/served/{package.name}")
    argv = [*machine.login(), "python3", "-m", "http.server", "-d", "/root/served", "-b", "127.0.0.1", "8099"]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.kill()
        server.wait(timeout=limit_s(30))
