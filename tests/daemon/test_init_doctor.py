"""`healthd init` and `healthd doctor` as a person runs them: processes, real files, a real daemon, a real hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from healthd.sim.machine import SimulatedMachine
from tests.support.kernel_objects import FuseDisk, NotHere, fuse_disk
from tests.support.limits import limit_s
from tests.support.running import ROOT, RunningNode

pytestmark = pytest.mark.process


def healthd(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true", "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(
        [sys.executable, "-m", "healthd", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s(60),
        check=False,
        cwd="/",
    )


def told(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The doctor's lines by what they are about."""
    return {line["about"]: line for line in json.loads(done.stdout)["lines"]}


# -- init -------------------------------------------------------------------------------------------------------------


def simulated(folder: Path) -> dict[str, str]:
    """The variables that show a healthd the simulated p5.48xlarge."""
    machine = SimulatedMachine(folder)
    trees = {f"HEALTHD_SOURCES_{name.upper()}_ROOT": f"{machine.root}/{name}" for name in ("sys", "proc", "dev")}
    resource = folder / "resource_config.json"
    resource.write_text("{}")
    return {**trees, "HEALTHD_PROVISIONER_HYPERPOD_RESOURCE_CONFIG": str(resource)}


def test_init_writes_once_and_never_over_a_file(tmp_path: Path) -> None:
    """The file is valid, its schema lies beside it; a second run changes nothing and says what to do."""
    path, environ = tmp_path / "etc/healthd/config.toml", simulated(tmp_path / "machine")
    first = healthd("init", "--output", str(path), **environ)
    assert first.returncode == 0, first.stderr
    assert f"wrote {path}, mode observe" in first.stdout
    text = path.read_text()
    assert text.startswith("#:schema ./config.schema.json\n")
    assert "p5.48xlarge" in text
    assert 'mounts = ["/fsx"]' in text
    assert '# kind = "hyperpod"' in text
    assert json.loads((path.parent / "config.schema.json").read_text())["title"] == "Configuration of healthd"
    assert sorted(each.name for each in path.parent.iterdir()) == ["config.schema.json", "config.toml"]
    assert healthd("config", "validate", "--config", str(path)).returncode == 0

    path.write_text("# mine\n")
    second = healthd("init", "--output", str(path), **environ)
    assert (second.returncode, second.stdout, path.read_text()) == (70, "", "# mine\n")
    assert "never overwritten; edit it, or compare it with `healthd init --print`" in second.stderr


def test_init_follows_no_link_and_prints_without_writing(tmp_path: Path) -> None:
    """A dangling link is a file that somebody meant; --print works beside either, and leaves nothing."""
    path = tmp_path / "config.toml"
    path.symlink_to(tmp_path / "elsewhere.toml")
    assert healthd("init", "--output", str(path)).returncode == 70
    printed = healthd("init", "--print", "--output", str(path))
    assert printed.returncode == 0
    assert 'mode = "observe"' in printed.stdout
    data = json.loads(healthd("init", "--print", "--json", "--output", str(path)).stdout)
    assert (data["schema"], data["written"]) == ("healthd.init/v1", "")
    assert 'mode = "observe"' in data["configuration"]
    assert [each.name for each in tmp_path.iterdir()] == ["config.toml"]
    assert not path.exists()


def test_init_takes_an_nhc_conf(tmp_path: Path) -> None:
    """Its lines are in the file in place of this node's mounts; a wrong file is a usage or a configuration error."""
    conf = tmp_path / "nhc.conf"
    conf.write_text("* || check_fs_mount_rw -t lustre -f /fsx\n* || check_hw_mcelog\n")
    environ = simulated(tmp_path)
    done = healthd("init", "--print", "--from-nhc", str(conf), **environ)
    assert (done.returncode, done.stdout.count('[checks."lustre.mount"]')) == (0, 1), done.stderr
    assert "# nhc.conf:2: * || check_hw_mcelog: healthd does this by itself" in done.stdout
    assert healthd("init", "--print", "--from-nhc", str(tmp_path / "gone"), **environ).returncode == 64
    conf.write_text("check_hw_mcelog\n")
    wrong = healthd("init", "--print", "--from-nhc", str(conf), **environ)
    assert (wrong.returncode, "nhc.conf:1: 'check_hw_mcelog': expected HOSTS || CHECK" in wrong.stderr) == (78, True)


def test_init_says_where_it_cannot_write_and_what_is_wrong_beside_it(tmp_path: Path) -> None:
    """A folder in which nobody can make one, and a conf.d/ that the daemon would not start with."""
    done = healthd("init", "--output", "/proc/healthd/config.toml")
    assert (done.returncode, done.stdout) == (70, "")
    assert "cannot write /proc/healthd/config.toml" in done.stderr
    assert "name another file with --output" in done.stderr
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/site.toml").write_text("[remediation]\nmoed = 1\n")
    done = healthd("init", "--output", str(tmp_path / "config.toml"))
    assert (done.returncode, "did you mean remediation.mode?" in done.stderr) == (78, True)
    assert not (tmp_path / "config.toml").exists()


# -- doctor -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    made = RunningNode(tmp_path / "node", "n1", sections='[orchestrator]\nkind = "local"\n')
    yield made
    made.stop()


def test_doctor_needs_no_daemon_and_sees_one_that_runs(node: RunningNode) -> None:
    """Missing with its fix before the start, ok with its mode after it; the text and the JSON say the same."""
    before = healthd("doctor", "--json", "--config", str(node.config))
    assert told(before)["daemon"]["status"] == "missing"
    assert before.returncode == 1
    node.start()
    after = healthd("doctor", "--json", "--config", str(node.config))
    daemon = told(after)["daemon"]
    assert (daemon["status"], str(node.socket) in daemon["why"]) == ("ok", True)
    assert "observe" in daemon["why"]
    text = healthd("doctor", "--config", str(node.config))
    assert text.returncode == after.returncode
    for about, line in told(after).items():
        assert about in text.stdout, line


def test_doctor_says_what_is_wrong_with_the_configuration(tmp_path: Path) -> None:
    """A configuration that cannot be loaded is one line with its problems, not a crash: exit 1."""
    (tmp_path / "c.toml").write_text("[remediation]\nmoed = 1\n")
    done = healthd("doctor", "--config", str(tmp_path / "c.toml"))
    assert done.returncode == 1
    assert "did you mean remediation.mode?" in done.stdout
    assert "healthd config validate" in done.stdout


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FuseDisk]:
    try:
        with fuse_disk(tmp_path, "state") as made:
            yield made
    except NotHere as missing:
        pytest.skip(str(missing))


@pytest.mark.kernel
@pytest.mark.root
@pytest.mark.slow
def test_a_state_directory_that_hangs_could_not_be_told(disk: FuseDisk, node: RunningNode) -> None:
    """Every other line is there, the command ends, and so does whoever reads its output."""
    text = node.config.read_text().replace(f'state_dir = "{node.state_dir}"', f'state_dir = "{disk.point}"')
    node.config.write_text(text)
    disk.becomes("hang:all")
    began = time.monotonic()
    done = healthd("doctor", "--json", "--config", str(node.config))
    took_s = time.monotonic() - began
    lines = told(done)
    assert lines["state"]["status"] == "could not tell"
    assert "no answer within 15 s" in lines["state"]["why"]
    assert "ps -eo" in lines["state"]["fix"]
    assert [about for about, line in lines.items() if line["why"].startswith("no answer within")] == ["state"]
    assert lines["kernel log"]["status"] == "ok"
    assert took_s < limit_s(20)
