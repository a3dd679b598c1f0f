"""The metrics page of one agent: what is on it from the start, what it says of a part that is silent, its bound."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from healthd.agent.agent import Agent, reading_agent
from healthd.api.metric_families import MOST_SERIES
from healthd.api.metrics import MetricsPage, metric_of
from healthd.api.scrape import metrics_of
from healthd.config.load import load
from healthd.core.check import discover, judged, ok, unknown
from healthd.core.model import (
    Action,
    ClearsBy,
    Component,
    Finding,
    Outcome,
    Reading,
    ReadingKind,
    Refusal,
    Result,
    Severity,
    Step,
)
from healthd.daemon.textfile import replace_file
from healthd.sim.machine import SimulatedMachine
from tests.live.prometheus.prometheus_server import promtool

pytestmark = pytest.mark.process

GPUS = tuple(Component(kind="gpu", id=f"GPU-{number}") for number in (1, 2))
Samples = dict[tuple[str, ...], float]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    settings = {name: check.settings for name, check in discover().items()}
    machine = SimulatedMachine(tmp_path / "machine")
    made = reading_agent(load(machine.config, checks=settings, environ={}).config)
    yield made
    made.close()


def samples(page: MetricsPage, name: str, *labels: str) -> Samples:
    """The values of a sample by these labels."""
    found = text_string_to_metric_families(page.render())
    return {
        tuple(sample.labels[label] for label in labels): sample.value
        for family in found
        for sample in family.samples
        if sample.name == name
    }


def looks(agent: Agent, result: Result, *, check: str = "gpu.ecc", took_s: float = 0.5) -> None:
    agent.monitor.absorb(Outcome(check=check, result=result, at=datetime.now(UTC), duration_s=took_s))


def readings(*gpus: Component) -> list[Reading]:
    return [Reading(component=gpu, name="gpu_temperature_c", value=40) for gpu in gpus]


def health(page: MetricsPage) -> dict[str, float]:
    found = samples(page, "healthd_component_health", "check", "component")
    return {component: value for (check, component), value in found.items() if check == "gpu.ecc"}


def test_the_process_began_before_its_first_scrape(agent: Agent) -> None:
    """However late that comes: a scraper that was away for a day sees no start."""
    before = time.time()
    page = metrics_of(agent)
    after = time.time()
    time.sleep(0.1)
    found = {each.name: each for each in text_string_to_metric_families(page()[1])}
    assert before - 0.05 < found["healthd_start_time_seconds"].samples[0].value < after + 0.05
    old = MetricsPage(agent, began_s=time.monotonic() - 86_400)
    assert max(samples(old, "healthd_last_success_seconds", "check").values()) > 86_000


def test_all_that_can_be_counted_is_there_from_the_start(agent: Agent) -> None:
    """A counter that appears with its first 1 has no increase: every action, refusal, step, check and code is at 0."""
    page, checks = MetricsPage(agent), agent.checkup.checks
    for name, label, words in (
        ("healthd_decisions_total", "action", Action),
        ("healthd_refusals_total", "reason", Refusal),
        ("healthd_step_duration_seconds_count", "step", Step),
        ("healthd_check_unknown_runs_total", "check", checks),
    ):
        assert samples(page, name, label) == {(str(word),): 0.0 for word in words}
    codes = {(name, code.code) for name, check in checks.items() for code in check.codes}
    found = samples(page, "healthd_findings_total", "check", "code")
    assert len(codes) > 100
    assert {found.get(code) for code in codes} == {0.0}


def test_before_the_first_look_a_node_is_unknown_in_every_eye(agent: Agent) -> None:
    """Every check that looks by itself says unknown of the node, not ok, until it has looked."""
    found = samples(MetricsPage(agent), "healthd_component_health", "check", "component")
    by_itself = {name for name, check in agent.checkup.checks.items() if check.on == "interval"}
    assert {name: found[name, "node"] for name in by_itself} == dict.fromkeys(by_itself, 2.0)


def test_a_part_that_is_not_told_of_any_more_is_unknown_and_not_gone(agent: Agent) -> None:
    """0 ok, 2 unknown while the check cannot tell, 3 critical with a fault; what is not there any more goes."""
    page = MetricsPage(agent)
    looks(agent, ok(readings(*GPUS)))
    assert health(page) == {"gpu:GPU-1": 0, "gpu:GPU-2": 0, "node": 0}
    looks(agent, unknown("NVML does not answer"))
    assert health(page) == {"gpu:GPU-1": 2, "gpu:GPU-2": 2, "node": 2}
    looks(agent, judged([], readings(GPUS[0]), undecided=["GPU-2 does not answer"]))
    assert health(page) == {"gpu:GPU-1": 0, "gpu:GPU-2": 2, "node": 2}
    looks(agent, judged([fault("gpu.ecc.x", GPUS[1])], readings(GPUS[0])))
    assert health(page) == {"gpu:GPU-1": 0, "gpu:GPU-2": 3, "node": 0}
    looks(agent, ok(readings(GPUS[0])))
    assert health(page) == {"gpu:GPU-1": 0, "node": 0}


def fault(code: str, where: Component) -> Finding:
    return Finding(code=code, severity=Severity.CRITICAL, component=where, message="m", clears_by=None)


def test_runs_that_could_not_tell_age_the_last_success(agent: Agent) -> None:
    """A check that runs and cannot tell has run just now, and has been of no use for as long as it has not told."""
    page, at = MetricsPage(agent), datetime.now(UTC)
    for age_s, result in ((600, ok()), (5, unknown("why"))):
        outcome = Outcome(check="gpu.ecc", result=result, at=at - timedelta(seconds=age_s), duration_s=0.5)
        agent.monitor.absorb(outcome)
    success = samples(page, "healthd_last_success_seconds", "check")[("gpu.ecc",)]
    ran = samples(page, "healthd_check_last_run_seconds", "check")[("gpu.ecc",)]
    assert 600 <= success < 660
    assert 5 <= ran < 60
    assert samples(page, "healthd_check_run_seconds_count", "check")[("gpu.ecc",)] == 2
    assert samples(page, "healthd_check_run_seconds_sum", "check")[("gpu.ecc",)] == 1.0
    assert samples(page, "healthd_check_unknown_runs_total", "check")[("gpu.ecc",)] == 1


def test_a_check_that_the_site_made_optional_is_not_overdue(tmp_path: Path) -> None:
    """Its unknown does not count. Of the others the page has how often each runs, as the site set it."""
    settings = {name: check.settings for name, check in discover().items()}
    machine = SimulatedMachine(tmp_path / "machine")
    with machine.config.open("a") as config:
        config.write('\n[checks."gpu.ecc"]\noptional = true\n[checks."host.memory"]\ninterval_s = 21600\n')
    agent = reading_agent(load(machine.config, checks=settings, environ={}).config)
    page = MetricsPage(agent)
    success = samples(page, "healthd_last_success_seconds", "check")
    interval = samples(page, "healthd_check_interval_seconds", "check")
    agent.close()
    assert interval[("host.memory",)] == 21600
    assert set(success) == set(interval)
    checks = {(name,) for name, check in agent.checkup.checks.items() if check.on != "active"}
    assert checks - set(success) == {("gpu.ecc",)}


def test_a_fault_is_as_old_as_its_first_finding(agent: Agent) -> None:
    """A later finding of the same code on the same component begins no other fault."""
    at, page = datetime.now(UTC), MetricsPage(agent)
    for age_s in (7200, 5):
        result, began = judged([fault("gpu.ecc.x", GPUS[0])]), at - timedelta(seconds=age_s)
        agent.monitor.absorb(Outcome(check="gpu.ecc", result=result, at=began, duration_s=0.5))
    ages = samples(page, "healthd_fault_age_seconds", "code", "component", "severity")
    assert set(ages) == set(samples(page, "healthd_fault_occurrences", "code", "component", "severity"))
    assert 7200 <= ages["gpu.ecc.x", "gpu:GPU-1", "critical"] < 7260


def test_no_sample_is_there_twice(agent: Agent) -> None:
    """Two checks that read the same, or one that names a part twice: node_exporter would refuse the whole file."""
    for check in ("gpu.ecc", "gpu.temperature"):
        looks(agent, ok([*readings(*GPUS), *readings(*GPUS)]), check=check)
    text = [line.rpartition(" ")[0] for line in MetricsPage(agent).render().splitlines() if not line.startswith("#")]
    assert len(text) == len(set(text))
    assert text.count('healthd_gpu_temperature_celsius{component="gpu:GPU-1"}') == 1


def test_no_metric_is_longer_than_the_bound_and_what_is_left_out_is_counted(agent: Agent) -> None:
    """A storm of faults on more parts than a node can have: 1,000 of them are on the page, the rest is a number."""
    storm = [
        replace(fault(f"gpu.xid.{number}", Component(kind="gpu", id=f"GPU-{number}")), clears_by=ClearsBy.REBOOT)
        for number in range(3_000)
    ]
    looks(agent, judged(storm), check="kernel.xid")
    page = MetricsPage(agent)
    text = page.render()
    families = {family.name: len(family.samples) for family in text_string_to_metric_families(text)}
    assert max(families.values()) == families["healthd_fault_occurrences"] == MOST_SERIES
    assert len(agent.monitor.stats.opened) <= MOST_SERIES + 1
    assert samples(page, "healthd_metrics_dropped_series")[()] > 2 * 2_000
    assert sum(agent.monitor.stats.opened.values()) == 3_000


def test_every_reading_has_a_name_by_convention() -> None:
    """Base units in full, ``_total`` for counters alone, no ``_count``: promtool has nothing against any of them."""
    limits = {limit.reading for check in discover().values() for limit in check.limits}
    further = {"file_write_s", "file_read_bytes_per_s", "nccl_nvlink_busbw_gb_s", "gpu_sm_clock_mhz", "clock_offset_s"}
    further |= {
        "gpu_process_count",
        "lustre_read_only_bool",
        "gpu_power_w",
        "service_restarts_total",
        "xfs_free_extent_blocks",
    }
    text = []
    for name in sorted(limits | further):
        kind = ReadingKind.COUNTER if name.endswith("_total") else ReadingKind.GAUGE
        metric = metric_of(name)[0] + ("_total" if kind is ReadingKind.COUNTER else "")
        text.append(f"# HELP {metric} Reading {name}\n# TYPE {metric} {kind}\n{metric} 1\n")
    assert len(text) > 40
    done = promtool("check", "metrics", text="".join(text))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("reading", "metric"),
    [
        ("gpu_temperature_c", ("healthd_gpu_temperature_celsius", 1.0)),
        ("gpu_sm_clock_mhz", ("healthd_gpu_sm_clock_hertz", 1e6)),
        ("nccl_nvlink_busbw_gb_s", ("healthd_nccl_nvlink_busbw_bytes_per_second", 1e9)),
        ("file_write_bytes_per_s", ("healthd_file_write_bytes_per_second", 1.0)),
        ("file_write_s", ("healthd_file_write_seconds", 1.0)),
        ("efa_tx_bytes_total", ("healthd_efa_tx_bytes", 1.0)),
        ("cpus_online_count", ("healthd_cpus_online", 1.0)),
        ("lustre_read_only_bool", ("healthd_lustre_read_only", 1.0)),
    ],
)
def test_a_unit_is_written_out_and_brought_to_its_base(reading: str, metric: tuple[str, float]) -> None:
    """The name as Prometheus wants it, and what the value is multiplied by."""
    assert metric_of(reading) == metric


def test_the_file_follows_no_link_and_no_other_writer(tmp_path: Path) -> None:
    """Who may write to the folder could lead root's pen to any file: such a folder is refused, and a link is not
    followed in one of root's own either."""
    victim = tmp_path / "victim"
    victim.write_text("root only\n")
    folder = tmp_path / "textfile"
    folder.mkdir()
    (folder / f".healthd.prom.{os.getpid()}").symlink_to(victim)
    (folder / "healthd.prom").symlink_to(victim)
    replace_file(folder / "healthd.prom", "new 1\n")
    assert (victim.read_text(), (folder / "healthd.prom").read_text()) == ("root only\n", "new 1\n")
    assert not (folder / "healthd.prom").is_symlink()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="may be written by every user"):
        replace_file(folder / "healthd.prom", "newer 1\n")
    assert [each.name for each in folder.iterdir()] == ["healthd.prom"]


def test_the_file_is_replaced_whole_and_stays_where_the_disk_refuses(tmp_path: Path) -> None:
    """A reader sees one page or the other; what was begun and refused leaves nothing behind."""
    path = tmp_path / "healthd.prom"
    replace_file(path, "old 1\n")
    seen = path.open()
    replace_file(path, "new 1\n")
    assert (seen.read(), path.read_text(), path.stat().st_mode & 0o777) == ("old 1\n", "new 1\n", 0o644)
    seen.close()
    (tmp_path / "folder.prom").mkdir()
    with pytest.raises(OSError, match="folder"):
        replace_file(tmp_path / "folder.prom", "x 1\n")
    assert {each.name for each in tmp_path.iterdir()} >= {"healthd.prom", "folder.prom"}
    assert not list(tmp_path.glob(".*"))
