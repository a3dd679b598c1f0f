"""``[daemon] readers``: who may ask a real daemon, as the kernel lets them open its socket."""

from __future__ import annotations

import contextlib
import grp
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.limits import limit_s
from tests.support.ports import free_ports
from tests.support.running import NOBODY, ROOT, RunningNode

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask as another user"),
]


@pytest.fixture
def node_for(tmp_path: Path) -> Iterator[Callable[[str], RunningNode]]:
    """A node whose daemon answers this group of readers alone."""
    made: list[RunningNode] = []
    (port,) = free_ports(1)

    def make(readers: str) -> RunningNode:
        http = f"127.0.0.1:{port}"
        node = RunningNode(tmp_path / "node", "n1", sections='[orchestrator]\nkind = "local"\n', http=http)
        node.open_to_all()
        node.config.write_text(node.config.read_text().replace("[daemon]", f'[daemon]\nreaders = "{readers}"'))
        made.append(node)
        node.start()
        return node

    yield make
    for node in made:
        node.stop()


def test_a_user_who_is_no_reader_cannot_ask(node_for: Callable[[str], RunningNode]) -> None:
    """Told why, and root is answered as ever."""
    node = node_for("root")
    refused = node.as_nobody("status")
    assert refused.returncode != 0
    assert f"uid {NOBODY} may not ask the daemon at s; be root, or in [daemon] readers or group" in refused.stderr
    assert node.status() is not None


@pytest.mark.parametrize("verb", ["status", "check"])
def test_a_user_who_is_no_reader_is_refused_on_the_hot_path(node_for: Callable[[str], RunningNode], verb: str) -> None:
    """By the command itself, with the code of a user who may not: the daemon is no silent one."""
    node = node_for("root")
    node.folder.chmod(node.folder.stat().st_mode | 0o011)
    as_nobody = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    script = f"import os, sys, healthd.__main__, healthd.core.reach; {as_nobody}; sys.exit(healthd.__main__.main())"
    argv, environ = [sys.executable, "-c", script, verb, "--socket", node.socket.name], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        argv, env=environ, cwd=node.folder, capture_output=True, text=True, timeout=limit_s(30), check=False
    )
    message = f"healthd: uid {NOBODY} may not ask the daemon at s; be root, or in [daemon] readers or group\n"
    assert (done.returncode, done.stderr) == (77, message)


def test_http_tells_no_more_than_another_machine_is_told(node_for: Callable[[str], RunningNode]) -> None:
    """Who asks over HTTP, nobody knows: a user who is no reader comes to no evidence by that way either."""
    node = node_for("root")
    where = next(line for line in node.config.read_text().splitlines() if line.startswith("http ="))

    def get(path: str) -> tuple[int, str]:
        asked = http.client.HTTPConnection(where.split('"')[1], timeout=limit_s(20))
        asked.request("GET", path)
        answer = asked.getresponse()
        with contextlib.closing(asked):
            return answer.status, answer.read().decode()

    for path in ("/", "/status"):
        code, message = get(path)
        assert (code, "[daemon] readers is set" in message) == (403, True)
    assert get("/healthz")[0] == get("/metrics")[0] == 200
    node.kernel_says("NVRM: Xid (PCI:0000:53:00): 31, pid=4711, name=secretjob, MMU Fault")
    node.wait(lambda: "secretjob" in json.dumps(node.check()), 20, "it is found")
    code, message = get("/verdict")
    assert code == 200
    assert "gpu.xid.31" in message
    assert "secretjob" not in message


def test_a_reader_asks_and_may_not_act(node_for: Callable[[str], RunningNode]) -> None:
    """The group of the process that asks is one that may read, and no more."""
    node = node_for(grp.getgrgid(NOBODY).gr_name)
    node.wait(lambda: node.socket.stat().st_gid == NOBODY, 20, "the socket is the group's")
    assert node.as_nobody("status").returncode == 0
    refused = node.as_nobody("release")
    assert (refused.returncode, f"uid {NOBODY} may not act here" in refused.stderr) == (77, True)


def test_a_group_that_is_not_there_lets_only_root_ask(node_for: Callable[[str], RunningNode]) -> None:
    """The daemon starts all the same, and says so in its status."""
    node = node_for("gpu-readers")
    words = "daemon.readers = gpu-readers: no such group on this machine, so only root and [daemon] group may ask"
    node.wait(lambda: words in "".join((node.status() or {}).get("notices", ())), 20, "status says so")
    assert node.as_nobody("status").returncode != 0
