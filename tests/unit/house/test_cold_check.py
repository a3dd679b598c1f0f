"""The modules that a process loads: they are the time of a check without a daemon, and the memory of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from healthd.probe.child import module_path
from tests.support.limits import limit_s

HOST_CHECKS = ("host.cpu", "host.filesystems", "host.kernel", "host.memory", "host.network", "host.processes")
LIST_MODULES = """
import json, sys
from healthd.__main__ import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""
NOT_LOADED = (
    "healthd.api.client",
    "healthd.api.peer",
    "healthd.controller",
    "healthd.daemon",
    "healthd.drill.drills",
    "healthd.notify",
    "healthd.remediation",
    "healthd.drill.chain",
    "healthd.checks.gpu_ecc",
    "healthd.checks.kernel_xid",
    "healthd.checklib.xids",
    "healthd.core.capabilities",
    "healthd.observe.journal",
    "healthd.sources.active",
    "healthd.sources.kmsg",
    "healthd.state.store",
    "apscheduler",
    "boto3",
    "botocore",
    "ctypes",
    "hashlib",  # loads OpenSSL
    "http.client",
    "httpx2",
    "importlib.resources",
    "importlib.util",
    "lightkube",
    "pkgutil",
    "prometheus_client",
    "psutil",
    "pynvml",
    "socket",
    "sqlite3",
    "ssl",
    "structlog",
)
"""What only a daemon, an act, another check or a request to another machine needs."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The modules of a process after `healthd check --no-daemon` of host checks."""
    folder: Path = tmp_path_factory.mktemp("cold")
    (folder / "config.toml").write_text(f'[orchestrator]\nkind = "local"\n[daemon]\nstate_dir = "{folder}/state"\n')
    command = ["check", "--no-daemon", "--config", str(folder / "config.toml"), *HOST_CHECKS]
    argv = [sys.executable, "-c", LIST_MODULES, *command]
    environ = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true"}  # on EC2 it would be asked, over HTTP
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=limit_s(60.0), env=environ)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code in (0, 1, 2), done.stderr
    return frozenset(modules)


@pytest.mark.process
@pytest.mark.parametrize("name", NOT_LOADED)
def test_a_cold_check_does_not_load(loaded: frozenset[str], name: str) -> None:
    """An import at the top of a module that every check loads costs each cold check its time."""
    assert not [module for module in loaded if module == name or module.startswith(f"{name}.")]


WORKER = "import sys, healthd.probe.fs_ops, healthd.probe.worker; print(*sys.modules)"


@pytest.mark.process
@pytest.mark.parametrize("name", ["collections", "enum", "json", "re", "subprocess", "typing"])
def test_a_worker_does_not_load(name: str) -> None:
    """Each probe worker pays for its imports with its start, and with memory for as long as it lives."""
    argv = [sys.executable, "-S", "-P", "-c", WORKER]
    environ = {**os.environ, "PYTHONPATH": module_path()}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=limit_s(60.0), env=environ)
    assert name not in done.stdout.split()


DAEMON = """
import socket, sys
import healthd.agent.job_verdicts, healthd.api.http, healthd.daemon.daemon, healthd.remediation.provisioners.from_config
from healthd.sources.deadline import Deadline
from healthd.sources.exchange import connection
with socket.create_server(("127.0.0.1", 0)) as server:
    connection(*server.getsockname(), Deadline(60.0)).connect()
print(*sys.modules)
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["encodings.idna", "hashlib", "urllib.request"])
def test_a_daemon_without_receivers_does_not_load(name: str) -> None:
    """Together they take 1.3 MB of each node; the metadata service is asked by its address."""
    done = subprocess.run(
        [sys.executable, "-c", DAEMON], capture_output=True, text=True, check=True, timeout=limit_s(60.0)
    )
    assert name not in done.stdout.split()
