"""The alert rules and the configurations for Prometheus, by its own tool."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from healthd.checks.lustre_io import LustreIoSettings
from healthd.config.schema.controller import ControllerSection
from healthd.config.schema.notify import MetricsSection
from healthd.sources.filesystem import FilesystemSource
from tests.live.prometheus.prometheus_server import promtool
from tests.support.running import ROOT

pytestmark = pytest.mark.process

FOLDER = ROOT / "packaging/prometheus"


def loaded(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def alerts() -> dict[str, Any]:
    """The alerts of rules.yaml by name."""
    rules = [rule for group in loaded("rules.yaml")["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def test_the_rules_pass_their_tests() -> None:
    """`promtool test rules`, which also looks at the words of each alert."""
    done = promtool("test", "rules", FOLDER / "rules.test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_to_fire_and_to_be_over() -> None:
    """No alert is without a moment at which it fires, and without a later one at which it does not any more."""
    seen: dict[str, list[bool]] = {}
    for test in loaded("rules.test.yaml")["tests"]:
        for moment in test.get("alert_rule_test", ()):
            seen.setdefault(moment["alertname"], []).append(bool(moment["exp_alerts"]))
    assert set(seen) == set(alerts())
    assert {name: fires for name, fires in seen.items() if fires != [False, True, False]} == {}


def test_a_rule_that_is_changed_fails_its_tests(tmp_path: Path) -> None:
    """The tests can fail: with an alert turned round, promtool says so of those that ask for it."""
    tests = loaded("rules.test.yaml")
    for name in ("HealthdOperatorNeeded", "HealthdBudgetSpent", "HealthdAgentGone"):
        asking = [
            each for each in tests["tests"] if name in {one["alertname"] for one in each.get("alert_rule_test", ())}
        ]
        (tmp_path / "rules.test.yaml").write_text(yaml.safe_dump({**tests, "tests": asking}))
        changed = loaded("rules.yaml")
        for rule in (rule for group in changed["groups"] for rule in group["rules"] if rule.get("alert") == name):
            rule["expr"] = f"absent({rule['expr']})"
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump(changed))
        done = promtool("test", "rules", tmp_path / "rules.test.yaml")
        assert (done.returncode, name in done.stdout + done.stderr) == (1, True)


def test_every_alert_says_what_to_do_and_who_is_woken() -> None:
    """A severity that Alertmanager can route by (none: it inhibits others), the next step in a sentence, a runbook."""
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("none", "warning", "critical"), name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["description"].endswith((".", "!")), name


def test_an_alert_for_silence_outlasts_the_longest_interval_that_can_be_set() -> None:
    """Twice: what is merely slow by its configuration, and once late, is not taken for what has stopped."""
    for name, section, key in (
        ("HealthdControllerStopped", ControllerSection, "interval_s"),
        ("HealthdTextfileOld", MetricsSection, "every_s"),
    ):
        (longest,) = (each.le for each in get_type_hints(section, include_extras=True)[key].__metadata__)
        assert float(alerts()[name]["expr"].partition("> ")[2].split()[0]) >= 2 * longest, name


def test_the_alert_for_a_slow_mount_is_within_what_its_probe_can_measure() -> None:
    """A probe that takes longer than its deadline has no reading, and is a hung mount."""
    deadline_s = inspect.signature(FilesystemSource).parameters["deadline_s"].default
    limit_s = float(alerts()["HealthdLustreSlow"]["expr"].split("#")[0].rpartition("> ")[2])
    assert limit_s == LustreIoSettings().slow_after_s < deadline_s


def test_the_example_configuration_is_one_of_prometheus(tmp_path: Path) -> None:
    """With the placeholders filled in, promtool reads it, and the rules beside it."""
    filled(tmp_path, "prometheus.yaml")
    for name in ("rules.yaml", "nodes.yaml"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    done = promtool("check", "config", tmp_path / "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["adot-collector.yaml", "otlp-collector.yaml"])
def test_a_collector_scrapes_as_prometheus_would_and_names_only_parts_that_it_has(tmp_path: Path, name: str) -> None:
    """The receiver's configuration is Prometheus's own; each part of the pipeline is declared, with the sign-in."""
    collector = yaml.safe_load(filled(tmp_path, name).read_text())
    receiver = collector["receivers"]["prometheus"]["config"]
    (job,) = receiver["scrape_configs"]
    if "kubernetes_sd_configs" in job:
        (found,) = job.pop("kubernetes_sd_configs")  # Debian builds its Prometheus without
        assert (found["role"], found["namespaces"]) == ("endpoints", {"names": ["healthd"]})
    else:
        (tmp_path / "nodes.yaml").write_text((FOLDER / "nodes.yaml").read_text())
        assert job["metric_relabel_configs"] == loaded("prometheus.yaml")["scrape_configs"][0]["metric_relabel_configs"]
    (tmp_path / "receiver.yaml").write_text(yaml.safe_dump(receiver))
    done = promtool("check", "config", tmp_path / "receiver.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    service = collector["service"]
    assert set(service["extensions"]) == set(collector["extensions"])
    for pipeline in service["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) == set(collector[kind])
    for exporter in collector["exporters"].values():
        assert exporter["auth"]["authenticator"] in collector["extensions"]


def filled(folder: Path, name: str) -> Path:
    """A configuration as somebody filled it in."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    for place, value in {"CLUSTER": "training", "REGION": "us-east-1", "WORKSPACE": "ws-1"}.items():
        text = text.replace(place, value)
    (folder / name).write_text(text)
    return folder / name
