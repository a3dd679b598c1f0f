"""Makes the two dashboards, node.json and fleet.json, from the tables below.

    python packaging/grafana/make.py            write them
    python packaging/grafana/make.py --check    write nothing; exit 1 and name what is out of date

They need nothing but a Prometheus (or Amazon Managed Service for Prometheus) as data source, chosen by a variable, and
Grafana's own panels: no plug-in. ``instance`` is the name of the node, as the configurations in packaging/prometheus
and the chart's ServiceMonitor have it; ``cluster`` and ``partition`` may be absent.

A panel of the fleet shows sums, or the ten nodes with the highest value: it stays readable at 5,000 nodes. Its
figures of GPUs and EFA devices are the recordings for each node in packaging/prometheus/rules.yaml.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

FOLDER = Path(__file__).resolve().parent
_WIDE, _HIGH = 24, 8
_SCRAPED = "60s"
"""How often healthd is scraped, as packaging/prometheus and the chart have it. Grafana makes ``$__rate_interval`` four
times this; of a data source without its own it takes 15 s, and one sample a minute has no rate over one minute."""
GREEN, YELLOW, PURPLE, RED = "green", "yellow", "purple", "red"
HEALTH = ((0, "ok", GREEN), (1, "warning", YELLOW), (2, "unknown", PURPLE), (3, "critical", RED))
"""The meanings of the values of healthd_component_health, and their colours."""
VERDICTS = {"ok": GREEN, "warning": YELLOW, "unknown": PURPLE, "critical": RED}


class Panel(Struct, frozen=True, kw_only=True):
    """One panel. ``queries``: legend and PromQL. ``per_row``: how many of its kind fit side by side.

    ``kind``: Grafana's name of the panel. A table and a stat show the present. ``hide``: columns of a table that say
    nothing. ``note`` is shown at the panel's title. ``none``: in the place of Grafana's "No data", for a query of what
    is not ok; it holds as well where nothing is scraped. ``to_node``: each series, and each name of a node in a table,
    links to the dashboard of its node.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    kind: str = "timeseries"
    unit: str = "short"
    per_row: int = 3
    note: str = ""
    health: bool = False
    none: str = ""
    hide: tuple[str, ...] = ("Time", "__name__", "job")
    colours: Mapping[str, str] = field(default_factory=dict)
    to_node: bool = False


Rows = Mapping[str, Sequence[Panel]]

_CLUSTERS = 'cluster=~"$cluster"'
_PARTITIONS = f'{_CLUSTERS}, partition=~"$partition"'
_NODES = f'{_PARTITIONS}, instance=~"$instance"'
_CONTROLLER, _PARTITION = "healthd_controller_", "healthd:partition:"
_METRIC = re.compile(r"\b(healthd_\w+|healthd:[\w:]+|up)\b(?:\{([^}]*)\})?")


def panel(title: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """One panel of these queries: legend and PromQL. To each metric the selection of nodes is added, and ``[R]`` is the
    interval of a rate."""
    return Panel(title=title, queries=tuple((legend, _chosen(query)) for legend, query in queries), **more)


def _chosen(query: str) -> str:
    def chosen(found: re.Match[str]) -> str:
        # A controller is none of the nodes that the variable lists, and a recording of a partition has no nodes.
        selected = _CLUSTERS if found[1].startswith(_CONTROLLER) else _NODES
        if found[1].startswith(_PARTITION):
            selected = _PARTITIONS
        return f"{found[1]}{{{', '.join([found[2], selected] if found[2] else [selected])}}}"

    return _METRIC.sub(chosen, query).replace("[R]", "[$__rate_interval]")


_PER_STEP = (
    "sum by (step) (healthd:partition:step_duration_seconds:sum)"
    " / (sum by (step) (healthd:partition:step_duration_seconds:count) > 0)"
)  # fmt: skip
_PER_ROUND = (
    "sum(rate(healthd_controller_sync_seconds_sum[R]))"
    " / (sum(rate(healthd_controller_sync_seconds_count[R])) > 0)"
)  # fmt: skip
_PER_ACT = (  # nothing was done yet: 0 / 0, which no panel draws
    "sum by (step) (healthd_controller_step_duration_seconds_sum)"
    " / sum by (step) (healthd_controller_step_duration_seconds_count)"
)
_STATE = (  # one of the four verdicts of a node is 1, so this is its value in HEALTH
    'sum by (cluster, instance) (healthd_verdict{verdict="warning"})'
    ' + 2 * sum by (cluster, instance) (healthd_verdict{verdict="unknown"})'
    ' + 3 * sum by (cluster, instance) (healthd_verdict{verdict="critical"})'
)
_NODE_UID = "healthd-node"
_TOP, _ROWS = 10, 100


def top(query: str) -> str:
    """The query's highest values."""
    return f"topk({_TOP}, {query})"


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
            none="no part is reported as not ok",
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
            "ECC errors, corrected", ("{{component}}", "rate(healthd_gpu_ecc_corrected_volatile_total[R])"), unit="cps"
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
            "Lustre reconnections", ("{{component}}", "rate(healthd_lustre_connection_attempts_total[R])"), unit="cps"
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
            "Each node",
            ("{{instance}}", f"({_STATE}) >= $shown"),
            kind="stat",
            per_row=1,
            health=True,
            none="no node reports that it is not ok",
            to_node=True,
            note="By verdict: yellow warning, purple unknown, red critical. `Show` adds the nodes that are ok.",
        ),
        panel(
            "Nodes that are not ok",
            ("", f'topk({_ROWS}, healthd_verdict{{verdict!="ok"}} == 1)'),
            kind="table",
            hide=("Time", "__name__", "job", "Value"),
            to_node=True,
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
            ("", f"topk({_ROWS}, healthd_fault_occurrences)"),
            kind="table",
            note="Value: how often each was seen.",
            to_node=True,
        ),
        panel(
            "Verdict of nodes that were not ok",
            ("{{instance}}", top(f"({_STATE}) > 0")),
            kind="state-timeline",
            per_row=1,
            health=True,
            none="no node reports that it is not ok",
            to_node=True,
            note="At each moment the ten worst.",
        ),
    ),
    "The ten highest": (
        panel(
            "Most open faults",
            ("", top("count by (cluster, instance) (healthd_fault_occurrences)")),
            kind="table",
            hide=("Time",),
            to_node=True,
        ),
        panel(
            "Most repairs and drains in a week",
            ("", top("healthd:node:repairs_and_drains:increase1w")),
            kind="table",
            hide=("Time",),
            to_node=True,
            note="A node that is repaired again and again. A new machine begins at 0.",
        ),
        panel(
            "Longest unknown check, in seconds",
            ("", top("max by (cluster, instance, check) (healthd_last_success_seconds)")),
            kind="table",
            hide=("Time",),
            to_node=True,
        ),
    ),
    "Budget and decisions": (
        panel(
            "Nodes that are out, and may be",
            ("{{scope}} out", "max by (scope) (healthd_budget_out_nodes)"),
            ("{{scope}} limit", "max by (scope) (healthd_budget_limit_nodes)"),
            ("{{scope}} nodes", "max by (scope) (healthd_budget_nodes)"),
            note="As the cluster itself was read last by any node, or by the controller. No limit in mode observe.",
        ),
        panel("Decisions", ("{{action}}", "sum by (action) (healthd:partition:decisions:increase5m)")),
        panel(
            "Refusals",
            ("{{reason}}", top("sum by (reason) (healthd:partition:refusals:increase5m)")),
            note="Why healthd did nothing, or less.",
        ),
        panel("Nodes under repair, by step", ("{{step}}", "sum by (step) (healthd_remediation_step)")),
        panel("Steps: how long they take", ("{{step}}", _PER_STEP), unit="s"),
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
            "XIDs and other kernel lines: top 10 nodes",
            ("{{instance}} {{code}}", top("healthd:node:kernel_findings:sum")),
            to_node=True,
        ),
        panel(
            "ECC errors, uncorrected: top 10 nodes",
            ("{{instance}}", top("healthd:node:gpu_ecc_uncorrected:sum")),
            to_node=True,
        ),
        panel(
            "ECC errors, corrected: top 10 nodes",
            ("{{instance}}", top("healthd:node:gpu_ecc_corrected:rate5m")),
            to_node=True,
            unit="cps",
        ),
        panel(
            "Remapped rows: top 10 nodes",
            ("{{instance}} uncorrectable", top("healthd:node:gpu_remapped_rows_uncorrectable:sum")),
            ("{{instance}} correctable", top("healthd:node:gpu_remapped_rows_correctable:sum")),
        ),
        panel(
            "Throttled by heat, worst GPU of each node",
            ("{{instance}}", top("healthd:node:gpu_throttled_heat:max_rate5m")),
            to_node=True,
            unit="percentunit",
            note="Thermal violations, as the share of time.",
        ),
        panel(
            "Hottest GPU of each node",
            ("{{instance}}", top("healthd:node:gpu_temperature_celsius:max")),
            to_node=True,
            unit="celsius",
        ),
    ),
    "EFA, Lustre, NCCL": (
        panel(
            "EFA throughput: top 10 nodes",
            ("{{instance}} out", top("healthd:node:efa_tx_bytes:rate5m")),
            ("{{instance}} in", top("healthd:node:efa_rx_bytes:rate5m")),
            unit="Bps",
        ),
        panel(
            "EFA packets dropped or retransmitted: top 10 nodes",
            ("{{instance}}", top("healthd:node:efa_lost_packets:rate5m")),
            to_node=True,
            unit="cps",
        ),
        panel(
            "Slowest file system of each node: writing a small file",
            ("{{instance}}", top("max by (cluster, instance) (healthd_file_write_seconds)")),
            to_node=True,
            unit="s",
        ),
        panel(
            "NCCL bus bandwidth, active tests: the lowest",
            ("{{instance}} NVLink", f"bottomk({_TOP}, healthd_nccl_nvlink_busbw_bytes_per_second)"),
            ("{{instance}} loopback over EFA", f"bottomk({_TOP}, healthd_nccl_loopback_busbw_bytes_per_second)"),
            to_node=True,
            unit="Bps",
        ),
        panel(
            "Parts that a check calls critical or cannot tell of",
            ("{{check}} critical", "sum by (check) (healthd:node:components_critical:count)"),
            ("{{check}} unknown", "sum by (check) (healthd:node:components_unknown:count)"),
        ),
        panel("Daemons that do not answer", ("daemons", 'count(up{job=~".*healthd.*"} == 0) or vector(0)')),
    ),
}


def dashboards() -> dict[Path, str]:
    """Both files, with the text that each must have."""
    node = _dashboard(_NODE_UID, "healthd: one node", NODE, all_nodes=False)
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
        "templating": {"list": [_datasource(), *_variables(all_nodes=all_nodes)]},
        "annotations": {"list": list(_annotations())},
        "panels": list(_panels(rows)),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variables(*, all_nodes: bool) -> Iterator[dict[str, Any]]:
    """Selections at the top. Where a Prometheus has no label cluster or partition, All is the only one."""
    yield _variable("cluster", "Cluster", "label_values(healthd_verdict, cluster)", every=".*")
    partitions = f"label_values(healthd_verdict{{{_CLUSTERS}}}, partition)"
    yield _variable("partition", "Partition", partitions, every=".*")
    nodes = f"label_values(healthd_verdict{{{_PARTITIONS}}}, instance)"
    yield _variable("instance", "Node", nodes, every=".+" if all_nodes else None)
    if all_nodes:
        yield {
            "name": "shown",
            "label": "Show",
            "type": "custom",
            "query": "not ok : 1,all nodes : 0",
            "options": [
                {"text": "not ok", "value": "1", "selected": True},
                {"text": "all nodes", "value": "0", "selected": False},
            ],
            "current": {"text": "not ok", "value": "1"},
        }


def _variable(name: str, label: str, query: str, *, every: str | None) -> dict[str, Any]:
    """A variable with the values of a label. ``every``: the expression behind All; None where one value is selected."""
    some = {"includeAll": True, "multi": True, "allValue": every, "current": {"text": "All", "value": "$__all"}}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 7,
        **(some if every else {}),
    }


_TAKEN_OUT = 'healthd_remediation_step{step=~"drain|wait_idle"} == 1'
_REPAIRED = 'healthd_remediation_step{step=~"reset|reboot|replace"} == 1'


def _annotations() -> Iterator[dict[str, Any]]:
    """Marks on the time axis: from when to when a node was drained and repaired."""
    for name, query, colour in (("Drains", _TAKEN_OUT, "orange"), ("Repairs", _REPAIRED, "blue")):
        yield {
            "name": name,
            "datasource": _SOURCE,
            "enable": True,
            "iconColor": colour,
            "expr": _chosen(query),
            "step": "60s",
            "titleFormat": "{{instance}}",
            "textFormat": "{{step}}",
            "tagKeys": "instance,step",
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
        "fieldConfig": {"defaults": _defaults(panel), "overrides": [*_coloured(panel.colours), *_linked(panel)]},
        "options": _options(panel),
    }
    if panel.kind == "table":
        hidden = dict.fromkeys(panel.hide, True)
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def _targets(panel: Panel) -> Iterator[dict[str, Any]]:
    now = panel.kind in ("table", "stat")
    for letter, (legend, query) in zip("ABCDEFGH", panel.queries, strict=False):
        how: dict[str, Any] = {"instant": now, "range": not now}
        if panel.kind == "table":
            how = {"instant": True, "format": "table"}
        elif "$__rate_interval" in query:
            how["interval"] = _SCRAPED
        yield {"refId": letter, "datasource": _SOURCE, "expr": query, "legendFormat": legend, **how}


def _defaults(panel: Panel) -> dict[str, Any]:
    made: dict[str, Any] = {"unit": panel.unit}
    if panel.to_node and panel.kind != "table":
        made["links"] = [_link("${__field.labels.instance}")]
    if panel.health:
        words = {str(value): {"text": word, "color": colour, "index": value} for value, word, colour in HEALTH}
        made |= {"mappings": [{"type": "value", "options": words}], "custom": {"fillOpacity": 80}}
    elif panel.kind == "timeseries":
        made["min"] = 0
    return made | ({"noValue": panel.none} if panel.none else {})


def _linked(panel: Panel) -> Iterator[dict[str, Any]]:
    """In a table the name of the node is the link."""
    if panel.to_node and panel.kind == "table":
        links = {"id": "links", "value": [_link("${__value.raw}")]}
        yield {"matcher": {"id": "byName", "options": "instance"}, "properties": [links]}


def _link(node: str) -> dict[str, str]:
    """To the dashboard of a node, at the same time."""
    selected = f"var-instance={node}&${{datasource:queryparam}}&${{cluster:queryparam}}&${{__url_time_range}}"
    return {"title": "Show the node", "url": f"/d/{_NODE_UID}?{selected}"}


def _coloured(colours: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    for name, colour in colours.items():
        fixed = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
        yield {"matcher": {"id": "byName", "options": name}, "properties": [fixed]}


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "stat":
            return {
                "textMode": "name" if panel.health else "value_and_name",
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
