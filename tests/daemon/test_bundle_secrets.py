"""A bundle that leaves the node holds no secret of healthd's configuration, whatever failed before it was made."""

from __future__ import annotations

import base64
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import quote

import pytest
from msgspec.structs import fields, replace

from healthd.agent.agent import Agent, collect_evidence
from healthd.api.plan_cache import PlanCache
from healthd.api.status import status_data
from healthd.config.schema.config import Config
from healthd.config.schema.notify import NotifySection
from healthd.config.values import is_section
from healthd.core.json_documents import json_document
from healthd.core.model import Event, Mode, Remedy
from healthd.notify.node import open_notifier
from healthd.remediation.decide.remediation import Remediation
from healthd.remediation.decide.rules import REBOOT
from healthd.remediation.provisioners.aws import Aws
from healthd.remediation.provisioners.evidence_bucket import EvidenceBucket
from tests.support.limits import limit_s
from tests.support.resting_agent import resting_agent

pytestmark = pytest.mark.process

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
SECRETS = ("_url_file", "_url_files", "_token_file", "_password_file", "_key_file", "_secret_file")
"""The ends of the names of settings that name a file with a secret."""
SHAPES = ("T0B1xoxb-{}", "a'quote\"and\\slash-{}", "percent%2Fslash-{}", "grüße-{}", "tab\tin-{}")
REMEDIATION = Remediation(
    id="k3v9",
    opened=NOW,
    since=NOW,
    mode=Mode.REPAIR,
    code="gpu.xid.79",
    component="gpu:GPU-1",
    remedy=Remedy.REPLACE_NODE,
    why="w",
    text="healthd: gpu.xid.79 gpu:GPU-1 [k3v9]",
    steps=REBOOT,
)


class Bucket(Aws):
    """A bucket that keeps the bytes that it gets."""

    def __init__(self, into: Path) -> None:
        super().__init__(region="us-east-1", timeout_s=1.0)
        self._into = into

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        self._into.write_bytes(Path(arguments["Body"]).read_bytes())
        return {}


def secret_settings(kind: type = Config) -> Iterator[str]:
    """Every setting that names a file with a secret, by its name in its section."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        if each.name.endswith(SECRETS):
            yield each.name
        if is_section(hints[each.name]):
            yield from secret_settings(hints[each.name])


@contextmanager
def refusing() -> Iterator[str]:
    """A receiver that quotes the whole request in its refusal, as some do."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            quoted = f"no such hook: {self.path} {self.headers.get('Authorization', '')}".encode()
            self.send_response(404)
            self.send_header("Content-Length", str(len(quoted)))
            self.end_headers()
            self.wfile.write(quoted)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def spellings(secret: str) -> Iterator[bytes]:
    """The secret as it is, and as something between may have written it."""
    for text in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret), quote(secret, safe="")):
        yield text.encode()
    yield base64.b64encode(secret.encode())


def uploaded(agent: Agent, tmp_path: Path) -> bytes:
    """Every file of the bundle of a remediation as it leaves the node, with the names."""
    agent.checkup.report(deadline_s=limit_s(60))  # else a check may start a worker while the agent ends
    collect_evidence(agent, REMEDIATION)
    into = tmp_path / "uploaded.tar.gz"
    bucket = EvidenceBucket("s3://site/train-a", Bucket(into))
    folder = Path(agent.config.daemon.state_dir) / "bundles" / REMEDIATION.id
    bucket.upload(folder, node=agent.machine.name, remediation_id=REMEDIATION.id)
    with tarfile.open(into) as archive:
        members = [(each.name, archive.extractfile(each)) for each in archive.getmembers() if each.isreg()]
        return b"\n".join(name.encode() + b"\n" + body.read() for name, body in members if body is not None)


def holds(bundle: bytes, secret: str) -> bool:
    return any(each in bundle for each in spellings(secret))


def test_no_secret_of_the_configuration_leaves_in_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every setting that names a secret, in five shapes, at receivers that refuse and quote the request, in the
    environment, and beside the bundle. healthd's status has none either."""
    names = sorted(set(secret_settings()))
    assert set(names) <= {each.name for each in fields(NotifySection)}, "plant it in the new section as well"
    planted: list[str] = []
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-planted")
    planted.append("wJalrXUtnFEMI-planted")
    with resting_agent(tmp_path) as agent, refusing() as url:
        agent.config = replace(agent.config, evidence=replace(agent.config.evidence, commands=()))
        for number, shape in enumerate(SHAPES):
            secrets = {name: shape.format(f"{name}-{number}-planted") for name in names}
            planted += secrets.values()
            for name, secret in secrets.items():
                line = f"{url}/hooks/{secret}" if name.endswith("_url_file") else secret
                if name.endswith("_url_files"):  # a service of Apprise: JSON by POST
                    line = f"{url.replace('http', 'json')}/hooks/{quote(secret, safe='')}"
                (tmp_path / name).write_text(f"{line}\n", encoding="utf-8")
            files: dict[str, Any] = {name: str(tmp_path / name) for name in names}
            files["apprise_url_files"] = (files["apprise_url_files"],)
            section = NotifySection(**files, slack_channel="C1", slack_api=url, pagerduty_url=url)
            agent.config = replace(agent.config, notify=section)
            notifier = open_notifier(
                section, agent.checkup, engine=None, store=agent.store, mode=Mode.OBSERVE, state_dir=str(tmp_path)
            )
            assert notifier is not None
            agent.notifier = notifier
            failed = [*notifier.drill("a drill", NOW).values(), *notifier.tick(NOW + timedelta(hours=number))]
            assert any("404" in each or "cannot be reached" in each or "header" in each for each in failed), failed
            for words in failed:
                agent.monitor.record(Event(at=NOW, kind="daemon", text=words))
        bundle = uploaded(agent, tmp_path)
        status = json_document(status_data(agent, PlanCache.of(agent))).encode()
    for part in (b"/verdict.json", b"/events.txt", b"/kernel.txt", b"127.0.0.1"):
        assert part in bundle, "the bundle is whole, and has the failures"
    assert not [each for each in planted if holds(bundle, each)]
    assert not [each for each in planted if holds(status, each)]


def test_a_secret_that_healthd_wrote_down_would_be_found(tmp_path: Path) -> None:
    """The search itself, in each shape and through the audit trail."""
    with resting_agent(tmp_path) as agent:
        agent.config = replace(agent.config, evidence=replace(agent.config.evidence, commands=()))
        for shape in SHAPES:
            agent.monitor.record(Event(at=NOW, kind="daemon", text=f"cannot reach {shape.format('planted')}"))
        bundle = uploaded(agent, tmp_path)
    assert [each for each in SHAPES if not holds(bundle, each.format("planted"))] == []
