"""``healthd uninstall``: put every node of a Kubernetes cluster back in service, before you remove healthd."""

from __future__ import annotations

import contextlib
import os
from argparse import Namespace
from typing import TYPE_CHECKING

from healthd.agent.node_facts import runs_kubernetes
from healthd.api.wire import Reply
from healthd.cli.output import declined, talk
from healthd.cli.settings import loaded
from healthd.config.schema.config import Config
from healthd.core.errors import UsageError
from healthd.core.json_documents import json_document

if TYPE_CHECKING:
    from healthd.remediation.orchestrators.kubernetes.api import KubeApi
    from healthd.remediation.orchestrators.kubernetes.uninstall import KubeUninstall

SCHEMA = "healthd.uninstall/v1"
_TIMEOUT_S = 30.0


def answer(options: Namespace) -> Reply:
    """Exit 0: healthd keeps no node out; 1: some nodes, which the output names, still have taints or annotations."""
    config = loaded(options).config
    if not runs_kubernetes(config, os.environ):
        raise UsageError("healthd uninstall: only for Kubernetes; on other clusters remove the package with apt or dnf")
    with contextlib.closing(_connected(config)) as api:
        return _done(options, _work(config, api))


def _done(options: Namespace, work: KubeUninstall) -> Reply:
    if not options.yes and (instead := _instead(options, work)) is not None:
        return instead
    outcome = work.run()
    if options.json:
        data = {"dry_run": False, "put_back": list(outcome.released), "not_cleared": dict(outcome.refused)}
        return Reply(code=int(bool(outcome.refused)), out=json_document({"schema": SCHEMA, **data}))
    lines = [f"{node}  NOT cleared: {why}\n" for node, why in outcome.refused.items()]
    return Reply(code=int(bool(lines)), out=f"{''.join(lines)}{len(outcome.released)} nodes put back in service\n")


def _instead(options: Namespace, work: KubeUninstall) -> Reply | None:
    """The reply of a dry run or a refusal; None where the operator confirms."""
    from healthd.remediation.orchestrators.kubernetes.objects.uninstall_patches import kept_off_by

    annotated = work.annotated_nodes()
    if options.dry_run and options.json:
        kept = {node.name: list(kept_off_by(node)) for node in annotated if kept_off_by(node)}
        data = {"dry_run": True, "would_be_put_back": kept, "written_to": [node.name for node in annotated]}
        return Reply(code=0, out=json_document({"schema": SCHEMA, **data}))
    rows = [f"{node.name}  {', '.join(kept_off_by(node))}\n" for node in annotated if kept_off_by(node)]
    effect = f"{''.join(rows)}{len(rows)} nodes would be put back in service; healthd has written to {len(annotated)}\n"
    if options.dry_run:
        return Reply(code=0, out=effect)
    question = "Stop healthd in this cluster, and put every node back in service, faulty or not?"
    return declined("uninstall", f"{effect}{question}")


def _connected(config: Config) -> KubeApi:
    from healthd.remediation.orchestrators.kubernetes.api import connect  # heavy: lightkube
    from healthd.remediation.orchestrators.kubernetes.transport import Pace

    return connect(
        kubeconfig=config.orchestrator.kubernetes.kubeconfig,
        timeout_s=_TIMEOUT_S,
        pace=Pace(),
        environ=os.environ,
        manager="healthd-uninstall",
    )


def _work(config: Config, api: KubeApi) -> KubeUninstall:
    from healthd.remediation.orchestrators.kubernetes.uninstall import KubeUninstall

    return KubeUninstall(
        api,
        namespace=config.orchestrator.kubernetes.namespace,
        scopes=config.budget.quotas.keys(),
        opt_out=config.remediation.opt_out_label,
        say=talk,
    )
