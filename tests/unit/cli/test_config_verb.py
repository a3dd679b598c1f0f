"""``healthd config validate`` and ``doctor`` name the configuration that they read, and what it cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest

from healthd.api.exit_codes import ExitCode
from healthd.api.grammar import parse
from healthd.cli import config, doctor
from healthd.config.schema.config import Config
from healthd.config.schema.notify import MetricsSection
from healthd.setup.doctor import DoctorStatus

REPAIR = '[remediation]\nmode = "{mode}"\n[provisioner]\nkind = "{kind}"\n'


def warned(folder: Path, text: str) -> str:
    path = folder / "config.toml"
    path.write_text(text)
    reply = config.answer(parse(["config", "validate", "--config", str(path)]))
    assert (reply.code, reply.out) == (0, "the configuration is valid\n")
    return reply.err


@pytest.mark.parametrize("mode", ["approve", "repair"])
@pytest.mark.parametrize(
    ("kind", "shown"), [("none", "provisioner.kind = none"), ("local", "without provisioner.local.reboot_command")]
)
def test_a_mode_that_nothing_can_carry_out_is_warned_of(tmp_path: Path, mode: str, kind: str, shown: str) -> None:
    """Repair without a way to repair is valid, and says what is missing and what healthd does in its place."""
    err = warned(tmp_path, REPAIR.format(mode=mode, kind=kind))
    assert f"warning: remediation.mode = {mode}" in err
    assert shown in err
    assert "keeps the node out" in err


def test_repair_without_a_cluster_is_warned_of(tmp_path: Path) -> None:
    """A node whose drain no cluster sees takes jobs while it is repaired."""
    text = REPAIR.format(mode="repair", kind="ec2") + '[orchestrator]\nkind = "local"\n'
    assert "no cluster keeps jobs off" in warned(tmp_path, text)


@pytest.mark.parametrize(("mode", "kind"), [("observe", "none"), ("quarantine", "none"), ("repair", "ec2")])
def test_what_can_be_done_is_not_warned_of(tmp_path: Path, mode: str, kind: str) -> None:
    """No warning where the mode repairs nothing, or the platform can."""
    assert warned(tmp_path, REPAIR.format(mode=mode, kind=kind)) == ""


@pytest.mark.parametrize(
    ("settle_s", "timeout_s", "kind", "is_warned"),
    [
        (2, 10, "slurm", True),
        (2, 10, "auto", True),
        (10, 10, "slurm", False),
        (2, 2, "slurm", False),
        (2, 10, "kubernetes", False),
        (2, 10, "local", False),
    ],
)
def test_a_settle_time_that_no_call_has_to_keep_to_is_warned_of(
    tmp_path: Path, settle_s: float, timeout_s: float, kind: str, is_warned: bool
) -> None:
    """Slots of Slurm are counted by readings as old as a call may last; a Lease of Kubernetes counts by itself."""
    text = f'[budget]\nsettle_s = {settle_s}\n[orchestrator]\nkind = "{kind}"\n'
    err = warned(tmp_path, f"{text}[orchestrator.slurm]\ntimeout_s = {timeout_s}\n")
    assert ("warning: budget.settle_s = 2 is less than orchestrator.slurm.timeout_s = 10" in err) == is_warned
    assert bool(err) == is_warned


@pytest.mark.parametrize(
    ("orchestrator", "provisioner", "how", "needed"),
    [
        ("slurm", "hyperpod", "label", "kubernetes"),
        ("local", "hyperpod", "label", "kubernetes"),
        ("slurm", "eks", "api", "kubernetes"),
        ("slurm", "karpenter", "api", "kubernetes"),
        ("kubernetes", "pcs", "api", "slurm"),
        ("local", "parallelcluster", "api", "slurm"),
        ("kubernetes", "hyperpod", "label", ""),
        ("auto", "hyperpod", "label", ""),
        ("slurm", "hyperpod", "scontrol", ""),
        ("slurm", "hyperpod", "api", ""),
        ("slurm", "pcs", "api", ""),
        ("kubernetes", "ec2", "api", ""),
        ("slurm", "auto", "label", ""),
    ],
)
def test_a_provisioner_that_no_node_of_the_orchestrator_can_have_is_a_problem(
    tmp_path: Path, orchestrator: str, provisioner: str, how: str, needed: str
) -> None:
    """Such a daemon does not start: the machine on which a configuration is written has to tell that too."""
    path = tmp_path / "config.toml"
    sections = f'[orchestrator]\nkind = "{orchestrator}"\n[provisioner]\nkind = "{provisioner}"\n'
    path.write_text(f'{sections}[provisioner.hyperpod]\nhow = "{how}"\n')
    reply = config.answer(parse(["config", "validate", "--config", str(path)]))
    assert reply.code == (ExitCode.CONFIG if needed else 0)
    expected = f"and orchestrator.kind = {orchestrator}; expected orchestrator.kind = {needed} or auto"
    assert (expected in reply.err) == bool(needed)
    assert ("    ^" in reply.err or f"{path}: 1 problem" in reply.err) == bool(needed)


def test_the_doctor_reads_a_file_named_relative_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative --config is a configuration like any other: the doctor names it, by its whole path."""
    (tmp_path / "site.toml").write_text('[remediation]\nmode = "quarantine"\n')
    monkeypatch.chdir(tmp_path)
    _, (line, *_) = doctor._configuration(parse(["doctor", "--config", "site.toml"]))
    assert (line.status, line.why) == (DoctorStatus.OK, f"{tmp_path}/site.toml; mode quarantine")


def test_the_doctor_in_a_removed_folder_asks_for_the_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative --config has no folder then, and the doctor's answer says so."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    reply = doctor.answer(parse(["doctor", "--config", "site.toml"]))
    assert reply.code == 1
    assert "--config site.toml: the working directory cannot be read" in reply.out


@pytest.mark.parametrize(
    ("name", "words"), [("p5.48xlrge", "did you mean p5.48xlarge?"), ("p5.48xlarge", ""), ("m7i.metal", "")]
)
def test_a_mistyped_instance_type_is_warned_of(tmp_path: Path, name: str, words: str) -> None:
    """A type that no table has is valid, because healthd learns such a node; a misspelt one is seldom meant."""
    err = warned(tmp_path, f'[node]\ninstance_type = "{name}"\n')
    assert words in err
    assert bool(err) == bool(words)


@pytest.mark.parametrize("name", ["missing", "shared"])
def test_metrics_that_no_file_will_hold_are_warned_of(tmp_path: Path, name: str) -> None:
    """The daemon writes no file into a folder that is missing or that others may write, and only its log says so."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    path = tmp_path / "config.toml"
    path.write_text(f'[metrics]\ntextfile = "{tmp_path}/{name}/healthd.prom"\n')
    err = config.answer(parse(["config", "validate", "--here", "--config", str(path)])).err
    assert f"metrics.textfile: no metrics will be written: {tmp_path}/{name}" in err


@pytest.mark.parametrize("textfile", ["", "/healthd.prom"])
def test_metrics_that_are_written_are_not_warned_of(textfile: str) -> None:
    """No file is asked for, or root alone may write its folder."""
    assert config._no_textfile(Config(metrics=MetricsSection(textfile=textfile))) == ()
