"""Makes the two dashboards, node.json and fleet.json, from the tables below.

    python packaging/grafana/make.py            write them
    python packaging/grafana/make.py --check    write nothing; exit 1 and name what is out of date

They need nothing but a Prometheus (or Amazon Managed Service for Prometheus) as data source, chosen by a variable, and
Grafana's own panels: no plug-in. ``instance`` is the name of the node, as the configurations in packaging/prometheus
and the chart's ServiceMonitor have it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
_WIDE, _HIGH = 24, 8
GREEN, YELLOW, PURPLE, RED = "green", "yellow", "purple", "red"
HEALTH = ((0, "ok", GREEN), (1, "warning", YELLOW), (2, "unknown", PURPLE), (3, "critical", RED))
"""The meanings of the values of healthd_component_health, and their colours."""
VERDICTS = {"ok": GREEN, "warning": YELLOW, "unknown": PURPLE, "critical": RED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One panel. ``queries``: legend and PromQL. ``per_row``: how many of its kind fit side by side.

    ``kind``: Grafana's name of the panel. A table and a stat show the present. ``hide``: columns of a table that say
    nothing. ``note`` is shown at the panel's title.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    kind: str = "timeseries"
    unit: str = "short"
    per_row: int = 3
    note: str = ""
    health: bool = False
    hide: tuple[str, ...] = ("Time", "__name__", "job")
    colours: Mapping[str, str] = field(default_factory=dict)


Rows = Mapping[str, Sequence[Panel]]

_NODES = 'instance=~"$instance"'
_CONTROLLER = "healthd_controller_"
_METRIC = re.compile(r"\b(healthd_\w+|up)\b(?:\{([^}]*)\})?")


def panel(title: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """One panel of these queries: legend and PromQL. To each metric the choice of nodes is added, and ``[R]`` is the
    interval of a rate."""
    return Panel(title=title, queries=tuple((legend, _chosen(query)) for legend, query in queries), **more)


def _chosen(query: str) -> str:
    def chosen(found: re.Match[str]) -> str:
        if found[1].startswith(_CONTROLLER):
            return found[0]  # it is none of the nodes that are chosen from
        labels = [found[2]] if found[2] else []
        return f"{found[1]}{{{', '.join([*labels, _NODES])}}}"

    return _METRIC.sub(chosen, query).replace("[R]", "[$__rate_interval]")


_PER_STEP = (
    "sum by (step) (healthd_step_duration_seconds_sum)"
    " / (sum by (step) (healthd_step_duration_seconds_count) > 0)"
)  # fmt: skip
_PER_ROUND = (
    "sum(rate(healthd_controller_sync_seconds_sum[R]))"
    " / (sum(rate(healthd_controller_sync_seconds_count[R])) > 0)"
)  # fmt: skip
_PER_ACT = (  # nothing was done yet: 0 / 0, which no panel draws
    "sum by (step) (healthd_controller_step_duration_seconds_sum)"
    " / sum by (step) (healthd_controller_step_duration_seconds_count)"
)
_HEAT = (
    "max by (instance) (rate(healthd_gpu_throttled_hardware_heat_seconds_total[R])"
    " + rate(healthd_gpu_throttled_software_heat_seconds_total[R]))"
)

NODE: Rows = {
    "Now": (
        panel("Verdict", ("{{verdict}}", "healthd_verdict == 1"), kind="stat", per_row=4, colours=VERDICTS),
        panel("Decision", ("{{action}}", "healthd_decision == 1"), kind="stat", per_row=4),
        panel("Node", ("", "healthd_node_info"), kind="table", per_row=2, hide=("Time", "__name__", "job", "Value")),
        panel(
            "Open faults",
            ("", "healthd_fault_occurrences"),
            kind="table",
            per_row=2,
            note="Value: how often each was seen. `healthd explain CODE` says what it means.",
        ),
        panel(
            "Health of each part, by check",
            ("{{component}} {{check}}", "max by (component, check) (healthd_component_health > 0)"),
            kind="state-timeline",
            per_row=2,
            health=True,
            note="Only what was not ok at some time.",
        ),
    ),
    "GPUs": (
        panel(
            "Health, each GPU",
            ("{{component}}", 'max by (component) (healthd_component_health{component=~"gpu:.*"})'),
            kind="state-timeline",
            health=True,
        ),
        panel(
            "XIDs and other kernel lines",
            ("{{code}}", 'healthd_findings_total{check=~"kernel[.].*"}'),
            note="Faults since healthd began: a burst of lines is one.",
        ),
        panel(
            "ECC errors, uncorrected",
            ("{{component}} since driver load", "healthd_gpu_ecc_uncorrected_volatile_total"),
            ("{{component}} in all", "healthd_gpu_ecc_uncorrected_aggregate_total"),
        ),
        panel(
            "ECC errors, corrected",
            ("{{component}}", "rate(healthd_gpu_ecc_corrected_volatile_total[R])"),
            unit="cps",
        ),
        panel(
            "Remapped rows",
            ("{{component}} uncorrectable", "healthd_gpu_remapped_rows_uncorrectable_total"),
            ("{{component}} correctable", "healthd_gpu_remapped_rows_correctable_total"),
        ),
        panel("Memory banks without spare rows", ("{{component}}", "healthd_gpu_banks_with_none_spare_rows")),
        panel(
            "Throttled by heat or power brake",
            ("{{component}} hardware heat", "rate(healthd_gpu_throttled_hardware_heat_seconds_total[R])"),
            ("{{component}} software heat", "rate(healthd_gpu_throttled_software_heat_seconds_total[R])"),
            ("{{component}} power brake", "rate(healthd_gpu_throttled_power_brake_seconds_total[R])"),
            unit="percentunit",
            note="Thermal and power violations, as the share of time.",
        ),
        panel(
            "Temperature",
            ("{{component}}", "healthd_gpu_temperature_celsius"),
            ("{{component}} memory", "healthd_gpu_memory_temperature_celsius"),
            unit="celsius",
        ),
        panel("Power", ("{{component}}", "healthd_gpu_power_watts"), unit="watt"),
        panel("SM clock", ("{{component}}", "healthd_gpu_sm_clock_hertz"), unit="hertz"),
        panel(
            "NVLink errors",
            ("{{component}} CRC", "healthd_gpu_nvlink_crc_errors_total"),
            ("{{component}} replays", "healthd_gpu_nvlink_replays_total"),
            ("{{component}} recoveries", "healthd_gpu_nvlink_recoveries_total"),
        ),
        panel("PCIe replays", ("{{component}}", "rate(healthd_gpu_pcie_replays_total[R])"), unit="cps"),
    ),
    "EFA, Lustre, disks, NCCL": (
        panel(
            "EFA throughput",
            ("{{component}} out", "rate(healthd_efa_tx_bytes_total[R])"),
            ("{{component}} in", "rate(healthd_efa_rx_bytes_total[R])"),
            unit="Bps",
        ),
        panel(
            "EFA trouble",
            ("{{component}} dropped", "rate(healthd_efa_rx_drops_total[R])"),
            ("{{component}} retransmitted", "rate(healthd_efa_retrans_pkts_total[R])"),
            ("{{component}} time-outs", "rate(healthd_efa_retrans_timeout_events_total[R])"),
            ("{{component}} unresponsive remotes", "rate(healthd_efa_unresponsive_remote_events_total[R])"),
            unit="cps",
        ),
        panel(
            "Health, each EFA device",
            ("{{component}}", 'max by (component) (healthd_component_health{component=~"efa:.*"})'),
            kind="state-timeline",
            health=True,
        ),
        panel(
            "File system: latency of a small file",
            ("{{component}} write", "healthd_file_write_seconds"),
            ("{{component}} read", "healthd_file_read_seconds"),
            ("{{component}} unlink", "healthd_file_unlink_seconds"),
            unit="s",
        ),
        panel(
            "File system: throughput of a small file",
            ("{{component}} write", "healthd_file_write_bytes_per_second"),
            ("{{component}} read", "healthd_file_read_bytes_per_second"),
            unit="Bps",
        ),
        panel(
            "Lustre reconnections",
            ("{{component}}", "rate(healthd_lustre_connection_attempts_total[R])"),
            unit="cps",
        ),
        panel("NVMe media errors", ("{{component}}", "healthd_nvme_media_errors_total")),
        panel(
            "NCCL bus bandwidth, active tests",
            ("NVLink", "healthd_nccl_nvlink_busbw_bytes_per_second"),
            ("loopback over EFA", "healthd_nccl_loopback_busbw_bytes_per_second"),
            unit="Bps",
            note="From `healthd check --active`; empty on a node on which it was never run.",
        ),
        panel(
            "Space and inodes that are free",
            ("{{component}} space", "healthd_space_free_ratio"),
            ("{{component}} inodes", "healthd_inodes_free_ratio"),
            unit="percentunit",
        ),
    ),
    "healthd": (
        panel("Refusals", ("{{reason}}", "healthd_refusals_total"), note="Why healthd did nothing, or less."),
        panel("Step of the open remediation", ("{{step}}", "healthd_remediation_step")),
        panel(
            "Steps: how long they took",
            ("{{step}}", "healthd_step_duration_seconds_sum / (healthd_step_duration_seconds_count > 0)"),
            unit="s",
        ),
        panel("Checks that could not tell", ("{{check}}", 'healthd_check_status{status="unknown"}')),
        panel("Since a check could last tell", ("{{check}}", "healthd_last_success_seconds"), unit="s"),
        panel("Duration of checks", ("{{check}}", "healthd_check_duration_seconds"), unit="s"),
        panel(
            "Workers that do not answer",
            ("{{worker}} stalled", "healthd_worker_stalled_seconds"),
            ("{{worker}} abandoned", "healthd_worker_abandoned"),
        ),
        panel(
            "Messages",
            ("{{channel}} {{result}}", "healthd_notifications_total"),
            ("{{channel}} waiting", "healthd_notifications_undelivered"),
        ),
    ),
}

FLEET: Rows = {
    "Now": (
        panel(
            "Nodes by verdict",
            ("{{verdict}}", "sum by (verdict) (healthd_verdict)"),
            kind="stat",
            per_row=2,
            colours=VERDICTS,
        ),
        panel("Nodes by decision", ("{{action}}", "sum by (action) (healthd_decision)"), kind="stat", per_row=2),
        panel(
            "Nodes that are not ok",
            ("", 'healthd_verdict{verdict!="ok"} == 1'),
            kind="table",
            hide=("Time", "__name__", "job", "Value"),
        ),
        panel(
            "Open faults, by code",
            ("", "count by (code, severity) (max by (code, severity, instance) (healthd_fault_occurrences))"),
            kind="table",
            hide=("Time",),
            note="Value: on how many nodes. The same on many at once is no node's fault.",
        ),
        panel(
            "Open faults, by node",
            ("", "healthd_fault_occurrences"),
            kind="table",
            note="Value: how often each was seen.",
        ),
        panel(
            "Verdict of each node",
            ("{{instance}}", "max by (instance) (healthd_component_health)"),
            kind="state-timeline",
            per_row=1,
            health=True,
        ),
    ),
    "Budget and decisions": (
        panel(
            "Nodes that are out, and may be",
            ("{{scope}} out", "max by (scope) (healthd_budget_out_nodes)"),
            ("{{scope}} limit", "max by (scope) (healthd_budget_limit_nodes)"),
            ("{{scope}} nodes", "max by (scope) (healthd_budget_nodes)"),
            note="As the cluster itself was read last by any node. None in mode observe.",
        ),
        panel("Decisions", ("{{action}}", "sum by (action) (increase(healthd_decisions_total[R]))")),
        panel(
            "Refusals",
            ("{{reason}}", "sum by (reason) (increase(healthd_refusals_total[R]))"),
            note="Why healthd did nothing, or less.",
        ),
        panel("Nodes under repair, by step", ("{{step}}", "sum by (step) (healthd_remediation_step)")),
        panel(
            "Steps: how long they take",
            (
                "{{step}}",
                _PER_STEP,
            ),
            unit="s",
        ),
        panel("How far healthd may go", ("{{mode}}", "sum by (mode) (healthd_mode)")),
    ),
    "healthd controller": (
        panel(
            "Who leads",
            ("{{instance}}", "healthd_controller_leads"),
            note="One line at 1. None: requests of nodes wait.",
        ),
        panel(
            "Nodes at the controller",
            ("{{state}}", "sum by (state) (healthd_controller_nodes)"),
            ("an operator is needed", "sum(healthd_controller_operator_needed)"),
        ),
        panel(
            "What became of requests",
            ("{{state}}", "sum by (state) (increase(healthd_controller_decisions_total[R]))"),
            ("refused: {{reason}}", "sum by (reason) (increase(healthd_controller_refusals_total[R]))"),
        ),
        panel(
            "Since a sync succeeded",
            ("{{instance}}", "healthd_controller_last_success_seconds"),
            ("a sync, on average", _PER_ROUND),
            unit="s",
        ),
        panel("Reboots and replacements: how long they take", ("{{step}}", _PER_ACT), unit="s"),
        panel(
            "Asked of the cluster and of AWS",
            ("{{to}} {{result}}", "sum by (to, result) (rate(healthd_controller_requests_total[R]))"),
            unit="reqps",
            note='Which request was denied or refused: healthd_controller_requests_total{result!="ok"}.',
        ),
    ),
    "GPUs": (
        panel(
            "XIDs and other kernel lines, by node",
            ("{{instance}} {{code}}", 'sum by (instance, code) (healthd_findings_total{check=~"kernel[.].*"}) > 0'),
        ),
        panel(
            "ECC errors, uncorrected, by node",
            ("{{instance}}", "sum by (instance) (healthd_gpu_ecc_uncorrected_aggregate_total)"),
        ),
        panel(
            "ECC errors, corrected, by node",
            ("{{instance}}", "sum by (instance) (rate(healthd_gpu_ecc_corrected_volatile_total[R]))"),
            unit="cps",
        ),
        panel(
            "Remapped rows, by node",
            ("{{instance}} uncorrectable", "sum by (instance) (healthd_gpu_remapped_rows_uncorrectable_total)"),
            ("{{instance}} correctable", "sum by (instance) (healthd_gpu_remapped_rows_correctable_total)"),
        ),
        panel(
            "Throttled by heat, worst GPU of each node",
            (
                "{{instance}}",
                _HEAT,
            ),
            unit="percentunit",
            note="Thermal violations, as the share of time.",
        ),
        panel(
            "Hottest GPU of each node",
            ("{{instance}}", "max by (instance) (healthd_gpu_temperature_celsius)"),
            unit="celsius",
        ),
    ),
    "EFA, Lustre, NCCL": (
        panel(
            "EFA throughput, by node",
            ("{{instance}} out", "sum by (instance) (rate(healthd_efa_tx_bytes_total[R]))"),
            ("{{instance}} in", "sum by (instance) (rate(healthd_efa_rx_bytes_total[R]))"),
            unit="Bps",
        ),
        panel(
            "EFA packets dropped or retransmitted, by node",
            (
                "{{instance}}",
                "sum by (instance) (rate(healthd_efa_rx_drops_total[R]) + rate(healthd_efa_retrans_pkts_total[R]))",
            ),
            unit="cps",
        ),
        panel(
            "Slowest file system of each node: writing a small file",
            ("{{instance}}", "max by (instance) (healthd_file_write_seconds)"),
            unit="s",
        ),
        panel(
            "NCCL bus bandwidth, active tests",
            ("{{instance}} NVLink", "healthd_nccl_nvlink_busbw_bytes_per_second"),
            ("{{instance}} loopback over EFA", "healthd_nccl_loopback_busbw_bytes_per_second"),
            unit="Bps",
        ),
        panel(
            "Parts that a check calls critical or cannot tell of",
            ("{{check}} critical", "count by (check) (healthd_component_health == 3)"),
            ("{{check}} unknown", "count by (check) (healthd_component_health == 2)"),
        ),
        panel("Daemons that do not answer", ("{{instance}}", '1 - up{job=~".*healthd.*"}')),
    ),
}


def dashboards() -> dict[Path, str]:
    """Both files, with the text that each must have."""
    node = _dashboard("healthd-node", "healthd: one node", NODE, all_nodes=False)
    fleet = _dashboard("healthd-fleet", "healthd: the fleet", FLEET, all_nodes=True)
    made = {FOLDER / "node.json": node, FOLDER / "fleet.json": fleet}
    return {path: json.dumps(each, indent=1) + "\n" for path, each in made.items()}


def _dashboard(uid: str, title: str, rows: Rows, *, all_nodes: bool) -> dict[str, Any]:
    return {
        "uid": uid,
        "title": title,
        "tags": ["healthd", "gpu"],
        "schemaVersion": 36,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["healthd"], "title": "healthd", "keepTime": True}],
        "templating": {"list": [_datasource(), _instance(all_nodes=all_nodes)]},
        "panels": list(_panels(rows)),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instance(*, all_nodes: bool) -> dict[str, Any]:
    every = {"includeAll": True, "multi": True, "allValue": ".+", "current": {"text": "All", "value": "$__all"}}
    query = "label_values(healthd_verdict, instance)"
    return {
        "name": "instance",
        "label": "Node",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "instance"},
        "refresh": 2,
        "sort": 7,
        **(every if all_nodes else {}),
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panels(rows: Rows) -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for title, panels in rows.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _at(0, y, 24, 1),
        }
        number, x, y = number + 1, 0, y + 1
        for panel in panels:
            wide = _WIDE // panel.per_row
            if x + wide > _WIDE:
                x, y = 0, y + _HIGH
            yield {"id": number, "gridPos": _at(x, y, wide, _HIGH), **_panel(panel)}
            number, x = number + 1, x + wide
        y += _HIGH


def _at(x: int, y: int, wide: int, high: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": wide, "h": high}


def _panel(panel: Panel) -> dict[str, Any]:
    made = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.note,
        "datasource": _SOURCE,
        "targets": list(_targets(panel)),
        "fieldConfig": {"defaults": _defaults(panel), "overrides": list(_coloured(panel.colours))},
        "options": _options(panel.kind),
    }
    if panel.kind == "table":
        hidden = dict.fromkeys(panel.hide, True)
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def _targets(panel: Panel) -> Iterator[dict[str, Any]]:
    now = panel.kind in ("table", "stat")
    for letter, (legend, query) in zip("ABCDEFGH", panel.queries, strict=False):
        how = {"instant": True, "format": "table"} if panel.kind == "table" else {"instant": now, "range": not now}
        yield {"refId": letter, "datasource": _SOURCE, "expr": query, "legendFormat": legend, **how}


def _defaults(panel: Panel) -> dict[str, Any]:
    if not panel.health:
        return {"unit": panel.unit, "min": 0} if panel.kind == "timeseries" else {"unit": panel.unit}
    words = {str(value): {"text": word, "color": colour, "index": value} for value, word, colour in HEALTH}
    return {"unit": panel.unit, "mappings": [{"type": "value", "options": words}], "custom": {"fillOpacity": 80}}


def _coloured(colours: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    for name, colour in colours.items():
        fixed = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
        yield {"matcher": {"id": "byName", "options": name}, "properties": [fixed]}


def _options(kind: str) -> dict[str, Any]:
    match kind:
        case "stat":
            return {
                "textMode": "value_and_name",
                "colorMode": "background",
                "reduceOptions": {"calcs": ["lastNotNull"]},
            }
        case "state-timeline":
            return {"showValue": "never", "mergeValues": True, "rowHeight": 0.8}
        case "timeseries":
            return {
                "legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        case _:
            return {}


def main() -> int:
    """Write what is out of date, or only say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check, stale = parser.parse_args().check, []
    for path, text in dashboards().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {path.name}", file=sys.stderr)  # noqa: T201 - a script
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
