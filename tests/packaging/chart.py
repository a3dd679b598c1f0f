"""The Helm chart as Helm renders it: objects, refusals, and the configuration in them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

from tests.live.kubernetes.find_binaries import Unavailable, program
from tests.support.limits import limit_s

ROOT = Path(__file__).parents[2]
CHART = ROOT / "packaging" / "helm" / "healthd"
KUBERNETES = ROOT / "packaging" / "kubernetes"
MONITORING = "monitoring.coreos.com/v1"

Object = dict[str, Any]
IMAGE = "registry.example/healthd"
"""What the chart does without least: it is given to every rendering that names no image."""


@cache
def helm() -> str:
    """The helm of the tests, found or built once; without Go and without helm the test is skipped."""
    try:
        return str(program("helm", print))
    except Unavailable as error:
        pytest.skip(str(error))


class Rendered(Struct, frozen=True, kw_only=True):
    """What `helm template` came to: the objects, or why there are none."""

    objects: tuple[Object, ...]
    error: str = ""

    def all(self, kind: str) -> tuple[Object, ...]:
        """Every object of this kind."""
        return tuple(each for each in self.objects if each["kind"] == kind)

    def one(self, kind: str, name: str) -> Object:
        """The object of this kind and name."""
        (found,) = (each for each in self.all(kind) if each["metadata"]["name"] == name)
        return found

    @property
    def agent(self) -> Object:
        """The pod specification of the DaemonSet."""
        spec: Object = self.one("DaemonSet", "healthd-agent")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        """The agent's only container."""
        (found,) = self.agent["containers"]
        return dict(found)

    def config(self, name: str = "healthd") -> str:
        """The text of the config.toml in this ConfigMap."""
        text: str = self.one("ConfigMap", name)["data"]["config.toml"]
        return text


def render(
    values: Mapping[str, Any] | None = None,
    *,
    namespace: str = "healthd",
    version: str = "1.34.0",
    api_versions: tuple[str, ...] = (),
) -> Rendered:
    """`helm template` with these values, for this Kubernetes version and these further API versions."""
    argv = [helm(), "template", "healthd", str(CHART), "--namespace", namespace, "--kube-version", version]
    argv += [word for each in api_versions for word in ("--api-versions", each)]
    done = _run([*argv, "--values", "-"], values)
    if done.returncode != 0:
        return Rendered(objects=(), error=done.stderr)
    return Rendered(objects=tuple(objects_in(done.stdout)))


def lint(values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """`helm lint --strict` with these values."""
    return _run([helm(), "lint", "--strict", str(CHART), "--kube-version", "1.34.0", "--values", "-"], values)


def objects_in(text: str) -> Iterator[Object]:
    """The objects of a YAML text, empty documents left out."""
    return (each for each in yaml.safe_load_all(text) if each)


def _run(argv: list[str], values: Mapping[str, Any] | None) -> subprocess.CompletedProcess[str]:
    given = {**(values or {}), "image": {"repository": IMAGE, **(values or {}).get("image", {})}}
    return subprocess.run(
        argv, check=False, input=json.dumps(given), capture_output=True, text=True, timeout=limit_s(60)
    )
