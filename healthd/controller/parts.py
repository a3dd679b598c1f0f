"""What ``healthd controller`` is put together from in the same way on every kind of cluster. Nothing runs here."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from healthd.config.schema.config import Config
from healthd.remediation.controller.act import Fleet
from healthd.remediation.controller.controller import Controller
from healthd.remediation.controller.node_status import RepairStats
from healthd.remediation.decide.policy import Rules
from healthd.remediation.decide.rules import FEATURE
from healthd.remediation.engine.dependencies import Timeouts
from healthd.remediation.engine.repairs import Door
from healthd.remediation.ports import Provisioner
from healthd.sources.identity import metadata_endpoint
from healthd.sources.imds import MetadataSource
from healthd.sources.trees import FileTree
from healthd.state.store import Store

_LOOKS = 3.0  # rounds between two questions about how far the platform is


def make_controller(
    config: Config,
    store: Store,
    *,
    fleet: Fleet,
    node: Callable[[str], Door],
    booted: Callable[[str], datetime | None],
    opt_out: str,
    feature_is: str = FEATURE,
    provisioner: Callable[[str, str], Provisioner],
    platform_texts: Collection[str] = (),
    boot_id: Callable[[str], str] | None = None,
    reckoning: RepairStats | None = None,
) -> Controller:
    """The controller of a configuration. ``opt_out``: the feature by which the cluster says that a node is to be left
    alone, ``feature_is`` what it is called there. What else differs between clusters is as in Controller."""
    return Controller(
        fleet=fleet,
        node=node,
        booted=booted,
        provisioner=provisioner,
        kept=store,
        rules=lambda: controller_rules(config, opt_out, feature_is),
        patience=controller_patience(config),
        silent_s=config.controller.silent_s,
        monotonic_s=time.monotonic,
        clock=lambda: datetime.now(UTC),
        look_s=_LOOKS * config.controller.interval_s,
        platform_texts=platform_texts,
        boot_id=boot_id,
        reckoning=reckoning,
    )


def controller_rules(config: Config, opt_out: str, feature_is: str = FEATURE) -> Rules:
    """What an operator allows the controller. ``opt_out`` and ``feature_is`` as in ``make_controller``."""
    return Rules(
        mode=config.remediation.mode,
        replacements_per_hour=config.budget.replacements_per_hour,
        replacements_per_day=config.budget.replacements_per_day,
        opt_out_feature=opt_out,
        feature_is=feature_is,
    )


def controller_patience(config: Config) -> Timeouts:
    """How long the controller waits for what it asked a platform for."""
    remediation = config.remediation
    return Timeouts(
        reboot_timeout_s=remediation.reboot_timeout_s,
        replace_timeout_s=remediation.replace_timeout_s,
        overdue_s=remediation.overdue_s,
    )


def metadata_of(config: Config) -> Callable[[str], str | None]:
    """The metadata service of the machine that the controller is on, for the region alone."""
    sources = config.sources
    tree = FileTree(Path(sources.sys_root))
    return MetadataSource(metadata_endpoint(tree, sources.imds_endpoint, sys_root=sources.sys_root)).read
