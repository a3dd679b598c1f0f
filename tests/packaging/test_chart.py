"""The Helm chart: what it renders, what it refuses, and that its names are those of the code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from healthd import __version__
from healthd.api.grammar import parse
from healthd.checklib.tables import instance_types
from healthd.cli.settings import check_settings
from healthd.config.keys import dotted
from healthd.config.load import Loaded, examine
from healthd.config.report import as_data
from healthd.config.schema.daemon import DaemonSection
from healthd.controller.run import _STOP_S, _TICK_S, _YIELD_S
from healthd.core.model import Mode
from healthd.remediation.engine import gpu_reset
from healthd.remediation.orchestrators.kubernetes import gpu_clients as kube_gpu_clients
from healthd.remediation.orchestrators.kubernetes import pod_resources
from healthd.remediation.orchestrators.kubernetes.objects import budget as kube_budget
from healthd.remediation.orchestrators.kubernetes.objects import node as kube_node
from healthd.remediation.orchestrators.kubernetes.objects import platform_signals, uninstall_patches
from healthd.remediation.orchestrators.kubernetes.objects.admission_policies import POLICIES
from tests.packaging.chart import CHART, IMAGE, KUBERNETES, MONITORING, ROOT, Object, Rendered, lint, objects_in, render
from tests.support.pages import blocks
from tests.support.scripts import load_script

PROFILES = ("full", "restricted")
VERSIONS = ("1.30.1", "1.34.2", "1.35.0-eks-1a2b3c")
EVERYTHING: Mapping[str, Any] = {
    "mode": "quarantine",
    "namespace": {"create": True},
    "controller": {
        "enabled": True,
        "evict": True,
        "karpenter": True,
        "roleArn": "arn:aws:iam::123456789012:role/healthd",
    },
    "budget": {"scopes": {"p5": {"limit": 2, "nodes": 64}}},
    "metrics": {"enabled": True, "labels": {"release": "prometheus"}},
    "flowSchema": {"enabled": True},
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": {"registry": {}}},
    "extraObjects": {"one": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}},
}

DRAIN: Mapping[str, Any] = {"10-llm": {"mode": "evict_after", "after_s": 600, "namespaces": ["llm"]}}


@cache
def defaults(profile: str = "full") -> Rendered:
    rendered = render({"profile": profile})
    assert not rendered.error, rendered.error
    return rendered


def on_some_nodes(section: Mapping[str, Any]) -> Object:
    """The same section for the nodes of one label."""
    return {"match": {"10-inference": {"label": ["pool=inference"], **section}}}


@cache
def maker() -> ModuleType:
    """packaging/kubernetes/render.py, as a module."""
    return load_script("kubernetes_render", KUBERNETES / "render.py")


def configured(text: str, folder: Path) -> Loaded:
    """The text as healthd itself reads it; fails with every problem."""
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    examined = examine(path, checks=check_settings(), environ={"HEALTHD_NODE_NAME": "ip-10-0-0-1.ec2.internal"})
    assert examined.loaded is not None, "\n".join(map(str, examined.problems))
    return examined.loaded


# ---------------------------------------------------------------------------------------------------------------------
# rendering


@pytest.mark.parametrize(
    "values", [{}, {"profile": "restricted"}, EVERYTHING], ids=["full", "restricted", "everything"]
)
def test_helm_lint_finds_nothing(values: Mapping[str, Any]) -> None:
    """`helm lint --strict` passes for both profiles, and with everything switched on."""
    done = lint(values)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("profile", PROFILES)
def test_both_profiles_render_for_every_kubernetes(profile: str, version: str, tmp_path: Path) -> None:
    """From 1.30 on the chart renders, always with every admission policy."""
    rendered = render({"profile": profile, "flowSchema": {"enabled": True}}, version=version)
    assert not rendered.error
    assert len(rendered.all("ValidatingAdmissionPolicy")) == len(list((CHART / "policies").glob("*.yaml")))
    assert len(rendered.all("FlowSchema")) == 1
    assert configured(rendered.config(), tmp_path).config.orchestrator.kind == "kubernetes"


@pytest.mark.parametrize("version", ["1.25.9", "1.29.10"])
def test_an_older_kubernetes_is_refused(version: str) -> None:
    """Without the admission policies one agent's token could take every node out: the sentence says so, and no value
    leaves them out."""
    words = f"this is Kubernetes v{version}, and healthd needs 1.30 or newer: from there on the API server"
    assert words in render(version=version).error
    assert "additional properties 'enabled' not allowed" in render({"policies": {"enabled": "off"}}).error


def test_each_object_has_one_name_and_says_whose_it_is() -> None:
    """With everything on no object is rendered twice, each of the chart's own carries its labels, and extras theirs."""
    rendered = render(EVERYTHING, api_versions=(MONITORING,))
    keys = [
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in rendered.objects
    ]
    assert len(keys) == len(set(keys))
    assert ("ConfigMap", "", "healthd-x") in keys
    ours = [each for each in rendered.objects if not each["kind"].startswith("Validating")]
    unlabelled = [each["metadata"]["name"] for each in ours if "app.kubernetes.io/name" not in _labels(each)]
    assert unlabelled == ["healthd-x"]
    assert {each["kind"] for each in rendered.objects} >= {
        "ServiceMonitor",
        "PrometheusRule",
        "FlowSchema",
        "Namespace",
    }


def _labels(each: Object) -> dict[str, str]:
    return dict(each["metadata"].get("labels") or {})


def test_the_operator_of_prometheus_is_needed_for_its_kinds() -> None:
    """Without its API neither ServiceMonitor nor PrometheusRule is rendered, which would fail the installation."""
    rendered = render(EVERYTHING)
    assert not rendered.error
    assert rendered.all("ServiceMonitor") + rendered.all("PodMonitor") + rendered.all("PrometheusRule") == ()
    assert rendered.one("Service", "healthd-agent")["spec"]["clusterIP"] == "None"


def test_static_yaml_is_the_chart() -> None:
    """static.yaml, uninstall.yaml, the schema and the chart's copies of the policies are what render.py makes of the
    sources now. What applies static.yaml starts no hook."""
    module = maker()
    for path, text in (*module.copies().items(), (module.SCHEMA, module.values_schema())):
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python packaging/kubernetes/render.py"
    from tests.packaging.chart import helm

    static = module.static(helm())
    assert (KUBERNETES / "static.yaml").read_text(encoding="utf-8") == static
    assert (KUBERNETES / "uninstall.yaml").read_text(encoding="utf-8") == module.uninstall(helm())
    assert "kind: Job" not in static
    assert "healthd-test" not in static


def test_the_chart_has_healthds_version() -> None:
    """Chart and application are released together, and the image's tag is the version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert defaults().container["image"] == f"{IMAGE}:{__version__}"


def test_every_value_has_a_comment() -> None:
    """In values.yaml each key of the first two levels, and each mount, stands below a comment."""
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"(  )?[A-Za-z]+:|    [a-z-]+: \{path", line)]
    assert len(keys) > 60
    assert [lines[number] for number in keys if not lines[number - 1].strip().startswith("#")] == []
    about = "\n".join(lines[: lines.index("mode: observe")])
    assert {each for each in Mode if f"`{each}`" not in about} == set()


# ---------------------------------------------------------------------------------------------------------------------
# the agent's pod


def test_full_is_privileged_and_mounts_what_it_says() -> None:
    """Full sees the host's processes, network and devices; every mount is spelled out, none is the host's root."""
    agent, container = defaults().agent, defaults().container
    assert (agent["hostPID"], agent["hostNetwork"]) == (True, True)
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0}
    mounted = {volume["name"]: volume["hostPath"]["path"] for volume in agent["volumes"] if "hostPath" in volume}
    assert mounted == {
        "dev": "/dev",
        "log": "/var/log",
        "log-run": "/run/log",
        "machine-id": "/etc/machine-id",
        "pod-resources": "/var/lib/kubelet/pod-resources",
        "run": "/run/healthd",
        "state": "/var/lib/healthd",
        "sys": "/sys",
        "systemd": "/run/systemd",
    }
    writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"state", "run", "dev", "sys", "tmp"}


@pytest.mark.parametrize("profile", PROFILES)
def test_no_mount_keeps_the_pod_from_starting(profile: str) -> None:
    """Whatever a host may lack is made, empty: kubelet starts no pod with a hostPath that is not there. /dev and /sys
    are there on every Linux; nothing can be made below /sys, so nothing there is mounted by itself."""
    always = {"/dev", "/sys"}
    for volume in defaults(profile).agent["volumes"]:
        if (there := volume.get("hostPath")) and there["path"] not in always:
            assert there["type"] in ("DirectoryOrCreate", "FileOrCreate"), there
            assert not there["path"].startswith(("/sys", "/proc", "/dev")), there


def test_no_pod_asks_for_a_processor() -> None:
    """arm64 (P6e-GB200) and amd64 alike: no selector, affinity or toleration names one."""
    rendered = render(EVERYTHING)
    pods = [each for kind in ("DaemonSet", "Deployment", "Job", "Pod") for each in rendered.all(kind)]
    assert len(pods) == 4
    assert not [each["metadata"]["name"] for each in pods if "kubernetes.io/arch" in str(each)]


def test_restricted_has_no_right_over_the_host() -> None:
    """Restricted: SYSLOG and no other capability, no host namespace, no device, no writable root, and the runtime's
    seccomp profile."""
    agent, container = defaults("restricted").agent, defaults("restricted").container
    assert {"hostPID", "hostNetwork", "hostIPC"} & set(agent) == set()
    assert agent["shareProcessNamespace"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["SYSLOG"]},
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    mounted = {volume["hostPath"]["path"] for volume in agent["volumes"] if "hostPath" in volume}
    assert mounted == {"/var/lib/healthd", "/run/healthd", "/var/lib/kubelet/pod-resources"}


@pytest.mark.parametrize("profile", PROFILES)
def test_the_agent_is_where_it_is_needed(profile: str) -> None:
    """It tolerates every taint, its own among them, cannot be pushed out for lack of memory, and rolls by tenths."""
    daemon_set = defaults(profile).one("DaemonSet", "healthd-agent")
    agent = defaults(profile).agent
    assert agent["tolerations"] == [{"operator": "Exists"}]
    assert agent["priorityClassName"] == "system-node-critical"
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}


@pytest.mark.parametrize("profile", PROFILES)
def test_liveness_asks_the_loop_and_nobody_else(profile: str) -> None:
    """Both probes ask /healthz where the daemon listens, and give a stuck engine longer than it gives itself."""
    from healthd.daemon.daemon import _ENGINE_IS_STUCK_AFTER_S

    rendered = defaults(profile)
    http = tomllib.loads(rendered.config())["daemon"]["http"]
    for name in ("livenessProbe", "startupProbe"):
        probe = rendered.container[name]["httpGet"]
        assert probe["path"] == "/healthz"
        host = "127.0.0.1" if profile == "full" else "[::]"  # of the pod's own network, whichever family
        assert http == f"{host}:{probe['port']}"
        assert probe.get("host") == ("127.0.0.1" if profile == "full" else None)
    liveness = rendered.container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= _ENGINE_IS_STUCK_AFTER_S


def test_another_address_of_the_same_port_is_taken() -> None:
    """As on a host without IPv6, where [::] cannot be had."""
    for values in ({}, {"profile": "restricted"}, {"metrics": {"enabled": True}}):
        assert not render({"config": {"daemon": {"http": "0.0.0.0:9809"}}, **values}).error
    controller = {"enabled": True, "config": {"controller": {"http": "0.0.0.0:9810"}}}
    assert not render({"controller": controller}).error
    assert not render(
        {"metrics": {"enabled": True, "port": 9900, "controllerPort": 9901}, "controller": COUNTING}
    ).error


def test_metrics_are_reached_only_where_wanted() -> None:
    """Without metrics the host's port is on loopback and not declared; with them, it is open and declared."""
    assert "ports" not in defaults().container
    rendered = render({"metrics": {"enabled": True, "port": 9810}})
    assert tomllib.loads(rendered.config())["daemon"]["http"] == "[::]:9810"
    assert rendered.container["ports"] == [{"name": "metrics", "containerPort": 9810}]
    assert rendered.container["livenessProbe"]["httpGet"]["port"] == 9810


def test_the_controller_is_scraped_only_where_wanted() -> None:
    """Without metrics there is no Service; with them it has a Service and a ServiceMonitor that choose its pods and no
    agent's."""
    assert not render({"controller": {"enabled": True}}).all("Service")
    assert "Service" in {each["kind"] for each in render({"metrics": {"enabled": True}}).objects}
    values = {"controller": {"enabled": True}, "metrics": {"enabled": True, "controllerPort": 9900}}
    rendered = render(values, api_versions=(MONITORING,))
    assert tomllib.loads(rendered.config("healthd-controller"))["controller"]["http"] == "[::]:9900"
    pod = rendered.one("Deployment", "healthd-controller")["spec"]["template"]
    assert pod["spec"]["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 9900}]
    service = rendered.one("Service", "healthd-controller")
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] == 9900
    monitor = rendered.one("ServiceMonitor", "healthd-controller")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert not monitor["spec"]["selector"]["matchLabels"].items() <= (
        rendered.one("Service", "healthd-agent")["metadata"]["labels"].items()
    )


def test_a_ledger_is_kept_where_the_state_outlives_the_pod() -> None:
    """With a volume: the setting, and one pod at a time. Without: none of it."""
    for claim, replicas in (("", 2), ("healthd-ledger", 1)):
        rendered = render({"controller": {"enabled": True, "stateClaim": claim, "replicas": replicas}})
        config = tomllib.loads(rendered.config("healthd-controller"))
        assert config["ledger"]["enabled"] == bool(claim)
        deployment = rendered.one("Deployment", "healthd-controller")["spec"]
        (state,) = [each for each in deployment["template"]["spec"]["volumes"] if each["name"] == "state"]
        assert (state.get("persistentVolumeClaim") or {}).get("claimName", "") == claim
        assert (deployment.get("strategy") == {"type": "Recreate"}) == bool(claim)


def test_the_controller_is_probed_where_it_listens() -> None:
    """Also without metrics, and on another port; liveness gives it longer than it needs to end by itself."""
    for values in ({}, {"metrics": {"enabled": True, "controllerPort": 9900}}):
        rendered = render({"controller": {"enabled": True}, **values})
        container = rendered.one("Deployment", "healthd-controller")["spec"]["template"]["spec"]["containers"][0]
        http = tomllib.loads(rendered.config("healthd-controller"))["controller"]["http"]
        for probe in (container["readinessProbe"], container["livenessProbe"]):
            assert probe["httpGet"]["path"] == "/healthz"
            assert http == f"[::]:{probe['httpGet']['port']}"
        assert [each["containerPort"] for each in container["ports"]] == [probe["httpGet"]["port"]]
        assert probe["periodSeconds"] * probe["failureThreshold"] > _TICK_S + _YIELD_S + _STOP_S


def test_a_pod_monitor_takes_the_place_of_the_service_monitors() -> None:
    """Never both, which would count everything twice: each chooses its component's pods, with a port named metrics."""
    values = {"controller": {"enabled": True}, "metrics": {"enabled": True, "podMonitor": True}}
    rendered = render(values, api_versions=(MONITORING,))
    assert not rendered.all("ServiceMonitor")
    for kind, name in (("DaemonSet", "healthd-agent"), ("Deployment", "healthd-controller")):
        pod = rendered.one(kind, name)["spec"]["template"]
        monitor = rendered.one("PodMonitor", name)["spec"]
        assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (endpoint,) = monitor["podMetricsEndpoints"]
        assert endpoint["port"] in [port["name"] for port in pod["spec"]["containers"][0]["ports"]]


def test_nothing_comes_in_but_metrics() -> None:
    """The NetworkPolicy is of every pod of healthd's; without metrics nothing comes in, with them their two ports, from
    whom `from` names. What goes out is left alone unless it is named."""
    closed = render().one("NetworkPolicy", "healthd")["spec"]
    assert closed["podSelector"]["matchLabels"].items() <= (
        defaults().one("DaemonSet", "healthd-agent")["spec"]["template"]["metadata"]["labels"].items()
    )
    assert (closed["policyTypes"], "ingress" in closed) == (["Ingress"], False)
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    rule = {"ports": [{"port": 443, "protocol": "TCP"}]}
    values = {"metrics": {"enabled": True}, "networkPolicy": {"from": {"p": peer}, "egress": {"api": rule}}}
    policy = render(values).one("NetworkPolicy", "healthd")["spec"]
    (came,) = policy["ingress"]
    assert ([each["port"] for each in came["ports"]], came["from"]) == ([9809, 9810], [peer])
    assert (policy["policyTypes"], policy["egress"]) == (["Ingress", "Egress"], [rule])
    assert not render({"networkPolicy": {"enabled": False}}).all("NetworkPolicy")


def test_a_null_takes_away_what_an_earlier_file_gave() -> None:
    """Helm leaves the key in the values: a null in a list of rules would allow everything, one of a nodeSelector would
    fit no node, and a variable would be empty instead of gone."""
    nulls = {
        "agent": {each: {"x": None} for each in ("env", "nodeSelector", "podAnnotations", "podLabels")},
        "controller": {"enabled": True, "nodeSelector": {"x": None}, "serviceAccountAnnotations": {"x": None}},
        "image": {"pullSecrets": {"x": None}},
        "metrics": {"enabled": True, "labels": {"x": None}},
        "networkPolicy": {"from": {"x": None}, "egress": {"x": None}},
    }
    without = {"controller": {"enabled": True}, "metrics": {"enabled": True}}
    assert render(nulls) == render(without)


def test_no_part_of_a_configuration_is_lost_for_a_character() -> None:
    """Helm cannot read every text again that it writes as YAML: one such character took all checks out, silently."""
    value = {"config": {"checks": {"gpu.count": {"expected": 8}, "host.services": {"required": ["x\x80"]}}}}
    assert "control characters are not allowed" in render(value).error


def test_a_reset_is_not_killed_in_the_middle() -> None:
    """The grace period is longer than the deadline of a GPU reset with the stop of a service before it."""
    longest_s = gpu_reset._RESET_S + gpu_reset._STOP_S
    assert defaults().agent["terminationGracePeriodSeconds"] > longest_s
    assert "minimum" in render({"agent": {"terminationGracePeriodSeconds": 30}}).error


def test_the_pod_starts_what_exists() -> None:
    """Arguments of the containers are a command line of healthd; the agent's name is its Node's."""
    assert parse(defaults().container["args"]).verb == "run"
    for kind, name, verb in (("Job", "healthd-uninstall", "uninstall"), ("Pod", "healthd-test", "doctor")):
        found = defaults().one(kind, name)["spec"]
        (container,) = (found["template"]["spec"] if kind == "Job" else found)["containers"]
        assert parse(container["args"]).verb == verb
        assert container["image"] == defaults().container["image"]
    environ = {each["name"]: each for each in defaults().container["env"]}
    assert environ["HEALTHD_NODE_NAME"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_the_pods_that_run_once_go_where_healthd_keeps_others_off() -> None:
    """`helm uninstall` waits for no node that its own Job is to release: it tolerates all of healthd's taints."""
    rendered = defaults()
    job = rendered.one("Job", "healthd-uninstall")["spec"]["template"]["spec"]
    for each in (job, rendered.one("Pod", "healthd-test")["spec"]):
        tolerated = {one["key"] for one in each["tolerations"] if one["operator"] == "Exists" and "effect" not in one}
        assert set(uninstall_patches.TAINTS) <= tolerated


class OneLabel:
    """The facts of a node of on_some_nodes."""

    def label(self) -> tuple[str, ...]:
        return ("pool=inference",)

    host = instance_type = partition = label


@pytest.mark.parametrize("stopped", [False, True])
def test_one_variable_stops_agents_whatever_mode_the_values_set(stopped: bool, tmp_path: Path) -> None:
    """As docs/how-to/kubernetes.md has it: over `mode`, `config.remediation` and each match."""
    acts: Mapping[str, Any] = {"remediation": {"mode": "quarantine"}}
    agent = {"env": {"HEALTHD_REMEDIATION_MODE": "observe"}} if stopped else {}
    values = {"mode": "observe", "config": {**acts, **on_some_nodes(acts)}, "budget": {"limit": 1, "nodes": 9}}
    rendered, path = render({**values, "agent": agent}), tmp_path / "config.toml"
    path.write_text(rendered.config(), encoding="utf-8")
    environ = {each["name"]: each["value"] for each in rendered.container["env"] if "value" in each}
    loaded = examine(path, checks=check_settings(), environ=environ, who=lambda _: OneLabel()).loaded
    assert loaded is not None
    assert loaded.config.remediation.mode == (Mode.OBSERVE if stopped else Mode.QUARANTINE)


def test_the_controller_has_variables_of_the_site() -> None:
    """Such as those of a proxy, as the agent; none by itself, and a later file of values takes one away."""
    for given, made in (({}, None), ({"NO_PROXY": ".a", "X": None}, [{"name": "NO_PROXY", "value": ".a"}])):
        rendered = render({"controller": {"enabled": True, "env": given}})
        (container,) = rendered.one("Deployment", "healthd-controller")["spec"]["template"]["spec"]["containers"]
        assert container.get("env") == made


def test_mounts_are_changed_by_name() -> None:
    """A file system of the site is added, one of the chart's is taken away, and the rest stays."""
    rendered = render(
        {
            "agent": {
                "mounts": {
                    "fsx": {"path": "/fsx", "propagation": "HostToContainer"},
                    "log": {"enabled": False},
                    "pod-resources": {
                        "path": "/var/lib/k0s/kubelet/pod-resources",
                        "at": "/var/lib/kubelet/pod-resources",
                    },
                }
            }
        }
    )
    mounts = {mount["name"]: mount for mount in rendered.container["volumeMounts"]}
    assert mounts["fsx"] == {"name": "fsx", "mountPath": "/fsx", "mountPropagation": "HostToContainer"}
    assert "log" not in mounts
    assert mounts["pod-resources"]["mountPath"] == "/var/lib/kubelet/pod-resources"
    assert {"state", "run", "dev"} <= set(mounts)


def test_the_secrets_of_messages_are_files_for_agents_and_controllers(tmp_path: Path) -> None:
    """The values of docs/how-to/messages.md. One that is missing keeps no pod from starting. The controller is no
    root, and reads them by its fsGroup. A later file of values takes one away."""
    (page,) = (
        yaml.safe_load(each.text) for each in blocks() if each.page.endswith("/messages.md") and each.language == "yaml"
    )
    rendered = render({**page, "controller": {"enabled": True}})
    file = Path(configured(rendered.config(), tmp_path).config.notify.pagerduty_key_file)
    controller = rendered.one("Deployment", "healthd-controller")["spec"]["template"]["spec"]
    for pod in (rendered.agent, controller):
        (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["mountPath"] == str(file.parent))
        (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
        secret = {"secretName": "healthd-notify", "defaultMode": 0o440, "optional": True}
        assert (mount["readOnly"], volume["secret"]) == (True, secret)
    assert "secret-healthd-notify" not in str(render({**page, "secrets": {"healthd-notify": None}}).objects)


# ---------------------------------------------------------------------------------------------------------------------
# names


def test_paths_in_the_pod_are_healthds_own() -> None:
    """State, socket and the kubelet's socket are mounted where healthd looks for them."""
    mounts = {mount["mountPath"] for mount in defaults("restricted").container["volumeMounts"]}
    daemon = DaemonSection()
    assert daemon.state_dir in mounts
    assert str(Path(daemon.socket).parent) in mounts
    assert str(Path(pod_resources.SOCKET).parent) in mounts


def test_the_leases_are_those_of_the_code() -> None:
    """The budget's Leases carry the numbers that the agents read, under the names that they ask for."""
    values = {"budget": {"limit": 5, "nodes": 100, "scopes": {"p5": {"limit": 2, "nodes": 64}}}}
    leases = {each["metadata"]["name"]: each["metadata"] for each in render(values).all("Lease")}
    assert set(leases) == {kube_budget.LEASE, kube_budget.lease_name("p5")}
    for scope, limit, nodes in (("cluster", 5, 100), ("p5", 2, 64)):
        name = kube_budget.lease_name(scope)
        lease = {"metadata": {**leases[name], "resourceVersion": "1"}}
        budget = kube_budget.budget_of(scope, lease)
        assert (budget.limit, budget.total, budget.counted) == (limit, nodes, None)


PERCENTAGE: Mapping[str, Any] = {"budget": {"scope": {"p5": {"max_out": "10%"}, "gone": None}}}


@pytest.mark.parametrize(
    "values",
    [
        {"config": PERCENTAGE, "controller": {"enabled": True}},
        {"config": on_some_nodes(PERCENTAGE), "controller": {"enabled": True}},
        {"controller": {"enabled": True, "config": PERCENTAGE}},
        {"config": PERCENTAGE, "budget": {"scopes": {"p5": {"limit": 2, "nodes": 64}}}},
    ],
)
def test_a_scope_of_the_configuration_has_its_lease(values: Mapping[str, Any]) -> None:
    """With the rights to it, the admission policy, and its return at the uninstallation: as a scope of `budget.scopes`,
    which takes no percentage. Without, the controller's every sync would end at that Lease."""
    rendered, lease = render(values), kube_budget.lease_name("p5")
    assert rendered.one("Lease", lease)
    assert {each["metadata"]["name"] for each in rendered.all("Lease")} & {kube_budget.lease_name("gone")} == set()
    accounts = ["healthd-agent", "healthd-uninstall", *(["healthd-controller"] if values.get("controller") else [])]
    for account in accounts:
        assert any(lease in names.split() for _, _, names, _ in rights(rendered, account)), account
    policy = rendered.one("ValidatingAdmissionPolicy", "healthd-budget")["spec"]["matchConstraints"]
    assert lease in policy["resourceRules"][0]["resourceNames"]


@pytest.mark.parametrize("label", [None, "example.com/hands-off", ""])
def test_the_plugin_is_told_which_label_opts_a_node_out(label: str | None) -> None:
    """On the budget's Lease, which every operator may read: what the agents' configuration says."""
    remediation = {} if label is None else {"opt_out_label": label}
    notes = render({"config": {"remediation": remediation}}).one("Lease", kube_budget.LEASE)["metadata"]["annotations"]
    assert notes.get("healthd.io/opt-out-label") == label


def test_with_a_controller_the_numbers_are_its_own() -> None:
    """Helm writes no limit where the controller counts: an upgrade must not undo what it counted."""
    rendered = render(EVERYTHING)
    notes = [each["metadata"].get("annotations", {}) for each in rendered.all("Lease")]
    assert {note.get(key, "") for note in notes for key in note if key.startswith("healthd.io/")} == {""}
    assert len([note for note in notes if note.get("helm.sh/resource-policy") == "keep"]) == 2


def test_the_policies_let_through_what_the_code_writes() -> None:
    """Taints, annotations and conditions of the code begin as the policies ask, for this release's ServiceAccount."""
    rendered = render({"budget": {"scopes": {"p5": {"limit": 1, "nodes": 2}}}}, namespace="gpu-health")
    policies = {each["metadata"]["name"]: each for each in rendered.all("ValidatingAdmissionPolicy")}
    for name, policy in policies.items():
        account = "controller" if name.startswith("healthd-controller") else "agent"
        who = f"request.userInfo.username == 'system:serviceaccount:gpu-health:healthd-{account}'"
        assert who in [each["expression"] for each in policy["spec"]["matchConditions"]]
    for key in (
        kube_node.UNHEALTHY,
        kube_node.CLAIMED,
        kube_node.UNVERIFIED,
        kube_node.HOLD,
        kube_budget.LIMIT,
        platform_signals.ASKED,
    ):
        assert key.startswith("healthd.io/")
    text = str(policies)
    for word in (
        kube_budget.CLAIM,
        kube_budget.LIMIT,
        platform_signals.ASKED,
        platform_signals.SIGNAL,
        "'healthd.io/'",
        "startsWith('Healthd')",
    ):
        assert word in text, word
    (rule,) = policies["healthd-budget"]["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resourceNames"] == [kube_budget.LEASE, kube_budget.lease_name("p5")]
    (binding,) = (each for each in rendered.all("ValidatingAdmissionPolicyBinding") if "paramRef" in each["spec"])
    assert binding["spec"]["paramRef"]["namespace"] == "gpu-health"
    assert "system:serviceaccount:healthd:" not in text


def test_the_kind_of_the_chart_is_the_one_that_is_proved_and_stays() -> None:
    """Under templates/, so that an upgrade changes it; kept at an uninstallation, with every NodeHealth."""
    (made,) = render().all("CustomResourceDefinition")
    assert made["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    (proved,) = _objects(KUBERNETES / "nodehealths.yaml")
    assert _unlabelled(made) == proved
    (static,) = (each for each in _objects(KUBERNETES / "static.yaml") if each["kind"] == proved["kind"])
    assert _unlabelled(static) == proved


def test_the_policies_of_the_chart_are_those_that_are_proved() -> None:
    """With all that an agent may ever ask of its platform the chart installs, object for object, what the tests on a
    live API server attack; by default it asks nobody."""
    proved = [each for path in sorted((KUBERNETES / "policies").glob("*.yaml")) for each in _objects(path)]
    orchestrator = {"kubernetes": {"pause_gpu_operator": True}}
    provisioner = {"kind": "eks", "hyperpod": {"how": "label"}}
    rendered = render({"config": {"orchestrator": orchestrator, "provisioner": provisioner}})
    policies = [each for each in rendered.objects if each["kind"].startswith("ValidatingAdmissionPolicy")]
    assert sorted(policies, key=str) == sorted(proved, key=str)


@pytest.mark.parametrize(
    ("values", "labels", "conditions"),
    [
        ({}, False, False),
        ({"config": {"provisioner": {"kind": "hyperpod", "hyperpod": {"how": "label"}}}}, True, False),
        ({"config": {"provisioner": {"kind": "hyperpod", "hyperpod": None}}}, False, False),
        ({"config": {"provisioner": None, "match": {"10-p5": None}}}, False, False),
        ({"config": {"provisioner": {"kind": "eks"}}}, False, True),
        ({"config": {"match": {"10-p5": {"host": ["p5-*"], "provisioner": {"kind": "eks"}}}}}, False, True),
        (
            {
                "config": {"provisioner": {"kind": "eks"}},
                "policies": {"platformConditions": {"AcceleratedHardwareReady": False}},
            },
            False,
            False,
        ),
    ],
)
def test_an_agent_may_ask_the_platform_that_is_configured_and_no_other(
    values: Mapping[str, Any], labels: bool, conditions: bool
) -> None:
    """HyperPod's label and EKS's condition are orders: both policies know them where the provisioner writes them."""
    rendered = render(values)
    for name in ("healthd-agent-own-node", "healthd-agent-claim-first"):
        policy = rendered.one("ValidatingAdmissionPolicy", name)
        found = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
        assert found["platformLabels"] == (f"['{platform_signals.HYPERPOD_LABEL}']" if labels else "[]")
        assert found["platformConditions"] == (f"['{platform_signals.EKS_CONDITION}']" if conditions else "[]")


@pytest.mark.parametrize("on", [False, True])
def test_an_agent_may_pause_the_gpu_operator_where_that_is_set(on: bool) -> None:
    """The clients whose labels the code writes, and by default none; of one pool of nodes as well."""
    section = {"orchestrator": {"kubernetes": {"pause_gpu_operator": on}}}
    names = [key.removeprefix(kube_gpu_clients.LABEL) for key in kube_gpu_clients.CLIENTS]
    for config in (section, on_some_nodes(section)):
        policy = render({"config": config}).one("ValidatingAdmissionPolicy", "healthd-agent-own-node")
        found = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
        assert found["gpuClients"] == str(names if on else [])
        for word in (kube_gpu_clients.LABEL, f"'{kube_gpu_clients.PAUSED}'", f"'{kube_gpu_clients.RUNS}'"):
            assert word in str(policy), word


def test_the_rights_of_the_agent_are_those_that_are_proved() -> None:
    """The agent's ServiceAccount, roles and bindings are, but for labels, those of agent-rbac.yaml."""
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    rendered = [_unlabelled(each) for kind in kinds for each in defaults().all(kind) if not _is_hook(each)]
    assert sorted(rendered, key=str) == sorted(_objects(KUBERNETES / "agent-rbac.yaml"), key=str)


def _is_hook(each: Object) -> bool:
    return "helm.sh/hook" in each["metadata"].get("annotations", {})


def _objects(path: Path) -> list[Object]:
    return list(objects_in(path.read_text(encoding="utf-8")))


def _unlabelled(each: Object) -> Object:
    return {**each, "metadata": {key: value for key, value in each["metadata"].items() if key != "labels"}}


AGENT_MAY = {
    ("", "nodes", "", "get patch"),
    ("", "nodes/status", "", "patch"),
    ("healthd.io", "nodehealths", "", "create delete get list patch"),
    ("coordination.k8s.io", "leases", "healthd-budget healthd-budget-p5", "get patch"),
    ("coordination.k8s.io", "leases", "healthd-incidents", "get"),
    ("events.k8s.io", "events", "", "create patch"),
}
CONTROLLER_MAY = {
    ("", "nodes", "", "get list"),
    ("", "pods", "", "list"),
    ("healthd.io", "nodehealths", "", "create delete get list patch"),
    (
        "coordination.k8s.io",
        "leases",
        "healthd-budget healthd-budget-p5 healthd-controller healthd-incidents healthd-status",
        "get patch",
    ),
    ("coordination.k8s.io", "leases", "", "create list"),
    ("events.k8s.io", "events", "", "create"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", " ".join(sorted(POLICIES)), "get"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", " ".join(sorted(POLICIES)), "get"),
}


FENCES_DOMAINS = {("", "nodes", "", "patch")}
UNINSTALL_MAY = {
    ("", "nodes", "", "get list patch"),
    ("", "nodes/status", "", "patch"),
    ("", "pods", "", "list"),
    ("healthd.io", "nodehealths", "", "delete list"),
    ("apps", "daemonsets", "healthd-agent", "delete"),
    ("apps", "deployments", "healthd-controller", "delete"),
    ("coordination.k8s.io", "leases", "healthd-budget healthd-budget-p5", "get patch"),
}


def test_nobody_may_more_than_the_table_says() -> None:
    """Every rule that reaches a ServiceAccount is in the table above; evictions and NodeClaims only where asked for."""
    rendered = render(EVERYTHING)
    assert rights(rendered, "healthd-agent") == AGENT_MAY
    optional = {
        ("", "pods/eviction", "", "create"),
        ("karpenter.sh", "nodeclaims", "", "delete list"),
    }
    assert rights(rendered, "healthd-controller") == CONTROLLER_MAY | FENCES_DOMAINS | optional
    assert rights(rendered, "healthd-uninstall") == UNINSTALL_MAY
    for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Job"):
        notes = rendered.one(kind, "healthd-uninstall")["metadata"]["annotations"]
        assert notes["helm.sh/hook"] == "pre-delete", f"{kind}: those rights are there at uninstallation alone"
    values = {**EVERYTHING, "controller": {"enabled": True}}
    assert rights(render(values), "healthd-controller") == CONTROLLER_MAY | FENCES_DOMAINS
    assert rights(render({**values, "mode": "observe"}), "healthd-controller") == CONTROLLER_MAY


@pytest.mark.parametrize(
    ("mode", "most", "may"),
    [("repair", 1, True), ("quarantine", None, True), ("repair", 0, False), ("observe", 2, False)],
)
def test_the_controller_may_taint_nodes_only_where_it_may_fence_domains(mode: str, most: int | None, may: bool) -> None:
    """By its own settings, which win over the agents'; the policy that bounds it stands in every installation."""
    budget = {"budget": {"max_domains_out": most}} if most is not None else {}
    values = {"mode": mode, "controller": {"enabled": True, "config": budget}}
    rendered = render(values)
    assert (rights(rendered, "healthd-controller") >= FENCES_DOMAINS) is may
    policy = rendered.one("ValidatingAdmissionPolicy", "healthd-controller-domain-fence")
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"].endswith(":healthd:healthd-controller'")


def rights(rendered: Rendered, account: str) -> set[tuple[str, str, str, str]]:
    """Every (group, resource, names, verbs) that a ServiceAccount of the release has."""
    found = set()
    for binding in (*rendered.all("RoleBinding"), *rendered.all("ClusterRoleBinding")):
        if not any(subject["name"] == account for subject in binding["subjects"]):
            continue
        namespace = binding["metadata"].get("namespace")
        for role in rendered.all(binding["roleRef"]["kind"]):
            same_place = role["metadata"].get("namespace") == namespace
            if same_place and role["metadata"]["name"] == binding["roleRef"]["name"]:
                found |= {row for rule in role["rules"] for row in _rows(rule)}
    return found


def _rows(rule: Object) -> Iterator[tuple[str, str, str, str]]:
    assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            yield group, resource, " ".join(sorted(rule.get("resourceNames", ()))), " ".join(sorted(rule["verbs"]))


def test_the_chart_has_the_alerts_of_packaging_prometheus() -> None:
    """The PrometheusRule is rules.yaml, every template of an annotation as it stands there; each alert leads to the
    runbooks of the site, and to none where the site has none."""
    text = (ROOT / "packaging/prometheus/rules.yaml").read_text(encoding="utf-8")
    base = "https://docs.site.example/runbooks"
    values = {**EVERYTHING, "metrics": {**EVERYTHING["metrics"], "runbooks": f"{base}/"}}
    (rule,) = render(values, api_versions=(MONITORING,)).all("PrometheusRule")
    assert rule["spec"] == yaml.safe_load(text.replace("https://runbooks.example.com", base))
    (bare,) = render(EVERYTHING, api_versions=(MONITORING,)).all("PrometheusRule")
    assert bare["spec"] == yaml.safe_load(re.sub(r"(?m)^ +runbook_url: .*\n", "", text))


def test_alerts_name_the_node() -> None:
    """The label by which alerts and dashboards call a node is its name, not the address of a pod."""
    monitor = render(EVERYTHING, api_versions=(MONITORING,)).one("ServiceMonitor", "healthd-agent")
    (endpoint,) = monitor["spec"]["endpoints"]
    node = {each["targetLabel"] for each in endpoint["relabelings"] if "node_name" in each["sourceLabels"][0]}
    assert "instance" in node


def test_the_role_of_aws_is_the_controllers_alone() -> None:
    """IRSA is annotated on the controller; the agent's ServiceAccount has no way to AWS."""
    rendered = render(EVERYTHING)
    notes = rendered.one("ServiceAccount", "healthd-controller")["metadata"]["annotations"]
    assert notes["eks.amazonaws.com/role-arn"] == "arn:aws:iam::123456789012:role/healthd"
    assert "annotations" not in rendered.one("ServiceAccount", "healthd-agent")["metadata"]
    pod = rendered.one("Deployment", "healthd-controller")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True


# ---------------------------------------------------------------------------------------------------------------------
# the configuration


CONFIG: Mapping[str, Any] = {
    "remediation": {"settle_s": 61, "reset_services": ["nvidia-dcgm"], "opt_out_file": None},
    "daemon": {"log_level": "debug"},
    "budget": {"max_out": "2.5%", "settle_s": 12.5},
    "orchestrator": {"kubernetes": {"tolerated_taints": ["example.com/*"]}},
    "policy": {
        "rule": {
            "20-b": {
                "codes": ["gpu.xid.95"],
                "ladder": [],
                "reason": 'says "no" \\ <é>',
                "source": "me",
                "mode": "observe",
            },
            "10-a": {"codes": ["gpu.xid.79"], "ladder": ["reboot_node"], "reason": "one\ttwo", "source": "me"},
        }
    },
    "checks": {
        "efa.devices": {"expected": 32},
        "storage.xfs": {"enabled": True},
        "lustre.io": {"size_bytes": 16777216, "folders": {"/home": "/home/healthd"}, "write": False},
        "plugin.run": {"plugins": {"disk": {"command": ["/usr/bin/true", "a b"], "timeout_s": 2.5}}},
        "kernel.rules": {"rules": {"oops": {"pattern": r"^Oops: (\d+)"}}},
    },
    "match": {
        "10-p5": {
            "instance_type": ["p5.*"],
            "checks": {"gpu.count": {"enabled": False}},
            "remediation": {"settle_s": 5},
        }
    },
}


def test_maps_become_healthds_own_toml(tmp_path: Path) -> None:
    """Numbers stay whole, quotes and letters stay what they are, maps become lists in the order of their names."""
    rendered = render({"config": CONFIG})
    assert not rendered.error, rendered.error
    config = configured(rendered.config(), tmp_path).config
    assert (config.remediation.settle_s, config.remediation.reset_services) == (61.0, ("nvidia-dcgm",))
    assert config.remediation.opt_out_file == "/etc/healthd/opt-out"  # healthd's default: the chart's was taken away
    assert (config.budget.max_out, config.budget.settle_s) == ("2.5%", 12.5)
    assert config.orchestrator.kubernetes.tolerated_taints == ("example.com/*",)
    assert [rule.name for rule in config.policy.rule] == ["10-a", "20-b"]
    assert [rule.reason for rule in config.policy.rule] == ["one\ttwo", 'says "no" \\ <é>']
    assert config.policy.rule[1].ladder == ()
    assert config.checks["efa.devices"].settings.expected == 32
    assert config.checks["storage.xfs"].enabled is True
    lustre = config.checks["lustre.io"].settings
    assert (lustre.size_bytes, dict(lustre.folders), lustre.write) == (16777216, {"/home": "/home/healthd"}, False)
    (plugin,) = config.checks["plugin.run"].settings.plugins
    assert (plugin.name, tuple(plugin.command), plugin.timeout_s) == ("disk", ("/usr/bin/true", "a b"), 2.5)
    (rule,) = config.checks["kernel.rules"].settings.rules
    assert (rule.name, rule.pattern) == ("oops", r"^Oops: (\d+)")
    (match,) = tomllib.loads(rendered.config())["match"]
    assert match == {
        "instance_type": ["p5.*"],
        "checks": {"gpu.count": {"enabled": False}},
        "remediation": {"settle_s": 5},
    }


@pytest.mark.parametrize("profile", PROFILES)
def test_the_chart_sets_nothing_that_healthd_has_already(profile: str, tmp_path: Path) -> None:
    """Each setting of the chart differs from healthd's default, but for those that one looks for in a configuration."""
    loaded, plain = configured(defaults(profile).config(), tmp_path), as_data(configured("", tmp_path))
    path, values = str(tmp_path / "config.toml"), as_data(loaded)
    ours = {dotted(key) for key, each in loaded.settings.items() if each.origin.startswith(path)}
    assert len(ours) >= 6
    same = {key for key in ours if values[key]["value"] == plain[key]["value"]}
    assert same <= {"remediation.mode", "orchestrator.kubernetes.namespace", "daemon.http"}


def test_restricted_does_not_call_blindness_health(tmp_path: Path) -> None:
    """What restricted cannot see is told and not counted; no check of the GPUs, EFA or the kernel log that works there
    is off, and nothing is reset."""
    config = configured(defaults("restricted").config(), tmp_path).config
    off = {name for name, check in config.checks.items() if not check.enabled}
    assert off == {"ebs.allowances", "gpu.gdrcopy", "gpu.processes", "host.processes", "storage.xfs"}
    optional = {name for name, check in config.checks.items() if check.optional}
    assert optional == {"cloud.events"}
    assert (config.sources.kmsg, config.remediation.gpu_reset) == ("syslog", False)
    full = configured(defaults().config(), tmp_path).config
    assert {name for name, check in full.checks.items() if not check.enabled} == {"storage.xfs"}
    assert not any(check.optional for check in full.checks.values())


def test_the_controller_has_settings_of_its_own(tmp_path: Path) -> None:
    """controller.config lies over config, for the controller alone."""
    values = {"controller": {"enabled": True, "config": {"provisioner": {"kind": "hyperpod"}}}, "config": CONFIG}
    rendered = render(values)
    assert configured(rendered.config("healthd-controller"), tmp_path).config.provisioner.kind == "hyperpod"
    assert configured(rendered.config(), tmp_path).config.provisioner.kind == "none"


def test_the_right_to_restart_the_device_plugin_is_of_its_namespace_alone() -> None:
    """Only where its pods are named: evictions, in that namespace; nothing is deleted, and nothing elsewhere."""
    named = {"device_plugin": "app=nvidia-device-plugin-daemonset", "device_plugin_namespace": "gpu-operator"}
    rendered = render({"controller": {"enabled": True}, "config": {"orchestrator": {"kubernetes": named}}})
    role = rendered.one("Role", "healthd-controller-device-plugin")
    assert role["metadata"]["namespace"] == "gpu-operator"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}]
    binding = rendered.one("RoleBinding", "healthd-controller-device-plugin")
    assert binding["subjects"][0]["name"] == "healthd-controller"
    cluster = rendered.one("ClusterRole", "healthd-controller")
    assert not any("pods/eviction" in rule["resources"] for rule in cluster["rules"])
    plain = render({"controller": {"enabled": True}})
    assert "healthd-controller-device-plugin" not in [each["metadata"]["name"] for each in plain.all("Role")]


def test_a_changed_configuration_restarts_the_agents() -> None:
    """The pods' template changes with the configuration, which the daemon reads when it starts."""

    def checksum(rendered: Rendered) -> str:
        notes = rendered.one("DaemonSet", "healthd-agent")["spec"]["template"]["metadata"]["annotations"]
        return str(notes["checksum/config"])

    assert checksum(defaults()) == checksum(render())
    assert checksum(defaults()) != checksum(render({"config": {"remediation": {"settle_s": 31}}}))


SHOWN = [pytest.param(yaml.safe_load(each.text), id=str(each)) for each in blocks() if each.language == "yaml"]


@pytest.mark.parametrize("values", SHOWN)
def test_the_values_that_the_pages_show_are_installed_and_loaded(values: Mapping[str, Any], tmp_path: Path) -> None:
    """Each block is whole: the chart takes it, and healthd its configuration, the agent's and the controller's."""
    rendered = render(values)
    assert rendered.error == ""
    for name in ("healthd", *(["healthd-controller"] if values.get("controller") else [])):
        loaded = configured(rendered.config(name), tmp_path)
        assert loaded.config.remediation.mode == values.get("mode", "observe")


def test_evictions_by_taint_need_no_second_switch() -> None:
    """The policy lets NoExecute through exactly where the agents are configured to set it, one pool of them as well."""

    def may_evict(config: Mapping[str, Any]) -> str:
        policy = render({"config": config}).one("ValidatingAdmissionPolicy", "healthd-agent-own-node")
        (found,) = (each["expression"] for each in policy["spec"]["variables"] if each["name"] == "mayEvict")
        return str(found)

    section = {"orchestrator": {"kubernetes": {"taint_effect": "NoExecute"}}}
    assert may_evict({}) == "false"
    assert may_evict(on_some_nodes({"remediation": {"settle_s": 60}})) == "false"
    assert may_evict(section) == may_evict(on_some_nodes(section)) == "true"


# ---------------------------------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mod": "observe"}, "additional properties 'mod' not allowed"),
        ({"mode": "drain"}, "at '/mode'"),
        ({"profile": "baseline"}, "at '/profile'"),
        ({"agent": {"resource": {}}}, "additional properties 'resource' not allowed"),
        ({"agent": {"mounts": {"root": {"path": "/"}}}}, "at '/agent/mounts/root/path'"),
        ({"agent": {"maxUnavailable": "0%"}}, "at '/agent/maxUnavailable'"),
        ({"image": {"digest": "sha256:abc"}}, "at '/image/digest'"),
        ({"metrics": {"interval": "5m"}}, "at '/metrics/interval'"),
        ({"controller": {"roleArn": "healthd"}}, "at '/controller/roleArn'"),
        ({"controller": {"enabled": True, "stateClaim": "a", "replicas": 2}}, "needs controller.replicas: 1"),
        ({"config": {"remediation": {"settle": 3}}}, "additional properties 'settle' not allowed"),
        ({"config": {"remediation": {"settle_s": "soon"}}}, "at '/config/remediation/settle_s'"),
        ({"config": {"checks": {"gpu.eccs": {}}}}, "additional properties 'gpu.eccs' not allowed"),
        ({"config": {"checks": {"gpu.ecc": {"interval_s": 0}}}}, "at '/config/checks/gpu.ecc/interval_s'"),
        ({"config": {"policy": {"rule": [{"name": "a"}]}}}, "got array, want null or object"),
        ({"config": {"policy": {"rule": {"a": {"codes": []}}}}}, "minItems: got 0, want 1"),
        ({"config": {"match": {"a": {"node": {"name": "x"}}}}}, "additional properties 'node' not allowed"),
        ({"mode": "repair", "profile": "restricted"}, "set mode: quarantine, or profile: full"),
        (
            {"config": {"remediation": {"mode": "repair"}}, "profile": "restricted"},
            "set mode: quarantine, or profile: full",
        ),
        (
            {"config": {"provisioner": {"kind": "local"}}, "profile": "restricted"},
            "name another kind",
        ),
        (
            {"config": on_some_nodes({"provisioner": {"kind": "local"}}), "profile": "restricted"},
            "name another kind",
        ),
        ({"config": {"orchestrator": {"kubernetes": {"device_plugin": "app=x"}}}}, "no controller restarts the plugin"),
        (
            {
                "config": {
                    "match": {"a": {"host": ["p5-*"], "orchestrator": {"kubernetes": {"device_plugin": "app=x"}}}}
                }
            },
            "no controller restarts the plugin",
        ),
        ({"image": {"repository": ""}}, "image.repository is not set"),
        ({"config": {"daemon": {"http": ""}}}, 'daemon.http: "" is where the kubelet\'s probes do not ask'),
        ({"config": {"daemon": {"http": "[::]:9900"}}}, "set metrics.port"),
        ({"config": {"daemon": {"http": "127.0.0.1:9809"}}, "profile": "restricted"}, "set metrics.port"),
        (
            {"controller": {"enabled": True, "config": {"controller": {"http": "127.0.0.1:9810"}}}},
            "set metrics.controllerPort",
        ),
        ({"config": {"controller": {"drain": DRAIN}}}, "controller.drain.10-llm evicts, without controller.enabled"),
        (
            {"controller": {"enabled": True, "config": {"controller": {"drain": DRAIN}}}},
            "controller.drain.10-llm evicts, without controller.evict",
        ),
        ({"config": {"provisioner": {"kind": "eks", "act_from": "controller"}}}, "no controller acts"),
        ({"mode": "quarantine"}, "set budget.limit and budget.nodes, or controller.enabled"),
        ({"config": {"remediation": {"mode": "approve"}}}, "mode: approve without a budget: set budget.limit"),
        (
            {"mode": "quarantine", "config": PERCENTAGE, "budget": {"limit": 1, "nodes": 9}},
            "budget.scope.p5 without its numbers: set budget.scopes.p5",
        ),
        (
            {"config": {"match": {"a": {"host": ["p5-*"], "remediation": {"mode": "quarantine"}}}}},
            "mode: quarantine without a budget: set budget.limit",
        ),
        (
            {
                "config": {"match": {"a": {"host": ["p5-*"], "remediation": {"mode": "approve"}}}},
                "controller": {"enabled": True},
                "profile": "restricted",
            },
            "mode: approve with profile: restricted",
        ),
        (
            {"config": {"provisioner": {"kind": "karpenter"}}},
            "may not read or delete NodeClaims",
        ),
        (
            {"config": {"match": {"a": {"host": ["p5-*"], "provisioner": {"kind": "karpenter"}}}}},
            "may not read or delete NodeClaims",
        ),
        (
            {"config": {"provisioner": {"kind": "karpenter"}}, "controller": {"enabled": True, "karpenter": True}},
            "karpenter without provisioner.act_from: controller",
        ),
        ({"config": {"provisioner": {"kind": "pcs"}}}, "provisioner.kind: pcs needs Slurm"),
        ({"config": on_some_nodes({"provisioner": {"kind": "parallelcluster"}})}, "parallelcluster needs Slurm"),
        (
            {"mode": "repair", "config": {"provisioner": {"kind": "hyperpod"}}, "controller": {"enabled": True}},
            "set provisioner.hyperpod.how: label, or",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_right_is_refused_before_anything_is_installed(values: Mapping[str, Any], words: str) -> None:
    """A misspelt key, a wrong kind of value and a contradiction end `helm install` with the place or the next step."""
    assert words in render(values).error


def test_the_controller_keeps_off_the_nodes_that_it_may_replace() -> None:
    """By the label of NVIDIA's GPU feature discovery, and by every instance type with GPUs that healthd knows; a
    cluster that has no others takes the rule away."""
    values = {"controller": {"enabled": True}}
    pods = render(values).one("Deployment", "healthd-controller")["spec"]["template"]["spec"]
    required = pods["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    by_label, by_type = term["matchExpressions"]
    assert by_label == {"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}
    assert (by_type["key"], by_type["operator"]) == ("node.kubernetes.io/instance-type", "NotIn")
    assert by_type["values"] == sorted(name for name, each in instance_types().items() if each.gpus)
    free = render({"controller": {"enabled": True, "affinity": {"nodeAffinity": None}}})
    assert "affinity" not in free.one("Deployment", "healthd-controller")["spec"]["template"]["spec"]


def test_what_a_controller_counted_does_not_outlive_it() -> None:
    """Switched off again, the numbers of `budget` hold: a count that nobody renews would be too old for every agent.
    Neither writes a key of the other's, which server-side apply would refuse."""
    off = render({"budget": {"limit": 5, "nodes": 100}}).one("Lease", "healthd-budget")["metadata"]["annotations"]
    counted = kube_budget.counts(limit=3, total=60, out=["n1", "n2"], at=datetime(2026, 11, 1, tzinfo=UTC))
    assert not set(off) & set(counted)
    lease = {"metadata": {"resourceVersion": "1", "annotations": {**counted, **off}}}
    budget = kube_budget.budget_of("", lease)
    kube_budget.check_counted(budget, datetime(2026, 11, 22, tzinfo=UTC), max_age_s=900.0)
    assert (budget.limit, budget.total, budget.out) == (5, 100, frozenset())
    on = render({"controller": {"enabled": True}}).one("Lease", "healthd-budget")["metadata"]["annotations"]
    lease = {"metadata": {"resourceVersion": "1", "annotations": {**counted, **off, **on}}}
    assert kube_budget.budget_of("", lease).limit == 3, "what an earlier release fixed does not stay"


COUNTING: Mapping[str, Any] = {"enabled": True}


@pytest.mark.parametrize(
    ("agent", "selector"),
    [
        ({}, "kubernetes.io/os=linux,eks.amazonaws.com/compute-type notin (fargate)"),
        ({"nodeSelector": {"kubernetes.io/os": None, "pool": "gpu"}, "affinity": {"nodeAffinity": None}}, "pool=gpu"),
        ({"nodeSelector": {"kubernetes.io/os": None}, "affinity": {"nodeAffinity": None}}, ""),
    ],
)
def test_nodes_are_counted_where_agents_run(agent: Mapping[str, Any], selector: str, tmp_path: Path) -> None:
    """One selector says both: the DaemonSet's, as a label selector in the controller's configuration."""
    rendered = render({"controller": COUNTING, "agent": agent})
    config = configured(rendered.config("healthd-controller"), tmp_path).config
    assert config.controller.selector == selector


EXPRESSIONS = (
    ({"key": "a", "operator": "In", "values": ["x", "y"]}, "a in (x,y)"),
    ({"key": "b", "operator": "NotIn", "values": ["z"]}, "b notin (z)"),
    ({"key": "c", "operator": "Exists"}, "c"),
    ({"key": "d", "operator": "DoesNotExist"}, "!d"),
)


def affine(*terms: Mapping[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}, "nodeSelector": {"kubernetes.io/os": None}}


def test_an_affinity_counts_as_it_chooses(tmp_path: Path) -> None:
    """Each operator that a label selector has as well; one that it has not is refused, unless the same nodes are given
    as a label selector. A selector beside one that is derived is refused."""
    whole = affine({"matchExpressions": [each for each, _ in EXPRESSIONS]})
    config = configured(render({"controller": COUNTING, "agent": whole}).config("healthd-controller"), tmp_path).config
    assert config.controller.selector == ",".join(text for _, text in EXPRESSIONS)
    one = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    given = {"enabled": True, "config": {"controller": {"selector": "a"}}}
    for odd, words in (
        (affine(one, one), "it has several nodeSelectorTerms"),
        (affine({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), "it has matchFields"),
        (affine({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}), "it has the operator Gt"),
    ):
        assert f"agent.affinity: {words}, which no label selector can say" in (
            render({"controller": COUNTING, "agent": odd}).error
        )
        assert not render({"agent": odd}).error, "without a controller nothing is counted"
        rendered = render({"controller": given, "agent": odd})
        assert configured(rendered.config("healthd-controller"), tmp_path).config.controller.selector == "a"
    error = render({"controller": given, "agent": affine(one)}).error
    assert "controller.selector: a is not yours to set here" in error


def test_the_schema_knows_every_value() -> None:
    """Each key of values.yaml is in the schema, and each of the schema in values.yaml."""
    schema = maker().json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, part in values.items():
        known = schema["properties"][name].get("properties")
        assert known is None or set(known) == set(part), name


def test_the_example_of_a_preflight_asks_as_a_prolog_does() -> None:
    """The example's init container runs a command line that healthd knows, and refuses only what is critical."""
    (pod,) = _objects(KUBERNETES / "examples" / "preflight-pod.yaml")
    (container,) = pod["spec"]["initContainers"]
    script = container["command"][-1]
    (line,) = (each for each in script.splitlines() if each.startswith("healthd "))
    options = parse(line.split()[1:])
    assert (options.verb, options.context) == ("check", "prolog")
    assert "-ne 1" in script
    assert replace(DaemonSection()).socket.startswith(container["volumeMounts"][0]["mountPath"])
