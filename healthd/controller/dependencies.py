"""The dependencies of ``healthd controller`` that are the same on every kind of cluster. Nothing runs here."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from healthd.agent.freezes import freezes_on
from healthd.config.schema.config import Config
from healthd.core.model import Mode, Step
from healthd.fleet.fences import FenceRules
from healthd.remediation.controller.act import Fleet
from healthd.remediation.controller.controller import Controller
from healthd.remediation.controller.node_status import RepairStats
from healthd.remediation.decide.freeze import frozen
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.rules import FEATURE
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.engine.repairs import RepairPort
from healthd.remediation.ports import Provisioner
from healthd.sources.identity import metadata_endpoint
from healthd.sources.imds import MetadataSource
from healthd.sources.trees import FileTree
from healthd.state.store import Store

_SYNC_S = 60.0
_SYNCS_PER_POLL = 3.0  # syncs between two polls of the platform's progress


def make_controller(
    config: Config,
    store: Store,
    *,
    fleet: Fleet,
    node: Callable[[str], RepairPort],
    booted: Callable[[str], datetime | None],
    opt_out: str,
    feature_is: str = FEATURE,
    provisioner: Callable[[str, str], Provisioner],
    platform_texts: Collection[str] = (),
    boot_id: Callable[[str], str] | None = None,
    stats: RepairStats | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Controller:
    """The controller of a configuration. ``opt_out``: the feature by which the cluster opts a node out; ``feature_is``
    is the cluster's word for it. The other arguments are those of Controller."""
    return Controller(
        fleet=fleet,
        node=node,
        booted=booted,
        provisioner=provisioner,
        kept=store,
        rules=lambda: controller_rules(config, opt_out, feature_is, now=clock()),
        timeouts=controller_timeouts(config),
        silent_s=config.controller.silent_s,
        monotonic_s=monotonic_s,
        clock=clock,
        poll_s=_SYNCS_PER_POLL * config.controller.interval_s,
        platform_texts=platform_texts,
        boot_id=boot_id,
        sync_s=min(_SYNC_S, config.controller.sync_timeout_s / 4),
        stats=stats,
    )


def controller_rules(config: Config, opt_out: str, feature_is: str = FEATURE, *, now: datetime) -> Rules:
    """The rules that the operator configures for the controller. ``opt_out``, ``feature_is``: see
    ``make_controller``. ``now``: of the freezes that are on."""
    return Rules(
        mode=config.remediation.mode,
        replacements_per_hour=config.budget.replacements_per_hour,
        replacements_per_day=config.budget.replacements_per_day,
        opt_out_feature=opt_out,
        feature_is=feature_is,
        freezes=freezes_on(config.remediation.freeze, now),
    )


def fence_rules(config: Config, now: datetime) -> FenceRules:
    """How many NVLink domains may be fenced, and why none may be now: the mode, the setting, or a freeze that allows no
    drain."""
    most = config.budget.max_domains_out
    if config.remediation.mode is Mode.OBSERVE:
        return FenceRules(most=most, objection="in observe mode")
    if not most:
        return FenceRules(most=most, objection="[budget] max_domains_out = 0")
    refused = frozen(freezes_on(config.remediation.freeze, now), Step.DRAIN)
    return FenceRules(most=most, objection=refused.reason if refused is not None else "")


def controller_timeouts(config: Config) -> Timeouts:
    """How long the controller waits for the result of a request to a platform."""
    remediation = config.remediation
    return Timeouts(
        reboot_timeout_s=remediation.reboot_timeout_s,
        replace_timeout_s=remediation.replace_timeout_s,
        overdue_s=remediation.overdue_s,
    )


def metadata_of(config: Config) -> Callable[[str], str | None]:
    """The metadata service of the controller's own machine; only the region is read from it."""
    sources = config.sources
    tree = FileTree(Path(sources.sys_root))
    return MetadataSource(metadata_endpoint(tree, sources.imds_endpoint, sys_root=sources.sys_root)).read
