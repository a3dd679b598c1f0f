"""A real Prometheus on loopback, and its own checker of rules and metrics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.limits import limit_s
from tests.support.ports import free_ports


def tool(name: str, package: str = "prometheus") -> str:
    """Where the program is; without it the test is skipped, and says what to install."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: install the package {package} (tests/system-packages.sh)")
    return found


def promtool(*arguments: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """What promtool says. Its garbage, a sixth of its CPU, is collected less often than by default."""
    argv, env = [tool("promtool"), *map(str, arguments)], {**os.environ, "GOGC": "400"}
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=limit_s(60), check=False, env=env)


class Prometheus:
    """One server that scrapes ``targets``, instance name to port, each second, and judges ``rules`` as often. ``data``:
    what it knows from before; ``config``: its whole configuration, instead."""

    def __init__(
        self,
        folder: Path,
        targets: Mapping[str, int],
        rules: Path | None,
        *,
        data: Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.port, self._log = free_ports(1)[0], folder / "log"
        folder.mkdir()
        jobs = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in targets.items()]
        config = config or {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": [{"job_name": "healthd", "static_configs": jobs}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        argv = [
            tool("prometheus"),
            f"--config.file={folder}/prometheus.yaml",
            f"--storage.tsdb.path={data or folder / 'data'}",
            "--storage.tsdb.retention.time=100y",  # also data from before
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder)

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=limit_s(20))

    def query(self, promql: str, *, at: datetime | None = None) -> list[dict[str, Any]]:
        """The series that the query returns, now or then. Fails with what Prometheus says is wrong with it."""
        answer = self._get("query", query=promql, **({"time": at.isoformat()} if at else {}))
        assert answer["data"]["resultType"] in ("vector", "matrix")
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self) -> set[tuple[str, str]]:
        """(alert, instance) of every alert that fires."""
        alerts = self._get("alerts")["data"]["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"].get("instance", ""))
            for each in alerts
            if each["state"] == "firing"
        }

    def wait(self, condition: Callable[[], object], within_s: float, what: str) -> None:
        """Poll until it is so; fail with the end of the log."""
        end = time.monotonic() + limit_s(within_s)
        while not self._holds(condition):
            if time.monotonic() > end or self._process.poll() is not None:
                raise AssertionError(f"not within {limit_s(within_s):g} s: {what}\n{self._log.read_text()[-3000:]}")
            time.sleep(0.2)

    def _holds(self, condition: Callable[[], object]) -> bool:
        try:
            return bool(condition())
        except ConnectionError:
            return False  # it is still starting
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):
                return False
            raise

    def _get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=limit_s(10)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it listens, and still reads its data
                    raise ConnectionError(f"{query}: {error.read().decode()}") from error
                raise AssertionError(f"{query}: {error.read().decode()}") from error
