"""The software stack, what EC2 announces, and the site's own plug-ins."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from healthd.checks import plugin_run, stack_versions
from healthd.core.errors import SourceMissing, SourceTimeout
from healthd.core.model import Status
from tests.faults.case import Case, Made
from tests.faults.cases_fabric import built, tool
from tests.faults.rig import Rig

_CUDA = ("cat", "/usr/local/cuda/version.json")


def pinned(**pin: str) -> dict[str, Any]:
    """A site's pins."""
    return {"stack.versions": stack_versions.StackVersionsSettings(pin=pin)}


def upgraded(rig: Rig) -> None:
    """The library is of a newer version than the module that is loaded."""
    rig.state("lib.driver_version = 580.105.08")


STACK = (
    tool(
        "stack.versions",
        "library does not fit the kernel module",
        upgraded,
        "stack.mismatch@driver:nvidia warning ask_human",
        made=Made.NVML,
    ),
    tool(
        "stack.versions",
        "older than the family needs (B300)",
        lambda rig: rig.answers(_CUDA, '{"cuda" : {"name" : "CUDA SDK", "version" : "12.8.0"}}'),
        "stack.below_minimum@software:cuda warning ask_human",
        instance_type="p6-b300.48xlarge",
    ),
    built(
        "stack.versions",
        "not the pinned version",
        lambda rig: None,
        "stack.off_pin@software:efa warning ask_human",
        settings=pinned(efa="2.17", driver="580"),
    ),
    built(
        "stack.versions",
        "pinned and not installed",
        lambda rig: None,
        "stack.absent@software:nccl warning ask_human",
        settings=pinned(nccl="2.27"),
    ),
    built("stack.versions", "as pinned", lambda rig: None, settings=pinned(driver="580", efa="3.1.0g", gdrcopy="2.5")),
    tool(
        "stack.versions",
        "a place that does not answer",
        lambda rig: rig.tools.update({_CUDA: SourceTimeout("cat: no answer within 5 s")}),
        status=Status.UNKNOWN,
        unknown=frozenset({"stack.versions"}),
    ),
)

# -- cloud.events -----------------------------------------------------------------------------------------------------

_SCHEDULED = "events/maintenance/scheduled"


def announced(path: str, item: Any) -> Callable[[Rig], None]:
    """The instance metadata service has this item."""

    def arrange(rig: Rig) -> None:
        rig.node.metadata_items = {path: item if isinstance(item, str) else json.dumps(item)}

    return arrange


def event(code: str, state: str = "active") -> list[dict[str, str]]:
    """A scheduled event, in the form of the EC2 user guide."""
    dates = {"NotBefore": "21 Jan 2026 09:00:43 GMT", "NotAfter": "21 Jan 2026 09:17:23 GMT"}
    return [
        {
            **dates,
            "Code": code,
            "Description": "scheduled",
            "EventId": "instance-event-0d59937288b749b32",
            "State": state,
        }
    ]


CLOUD = (
    tool(
        "cloud.events",
        "a reboot is scheduled",
        announced(_SCHEDULED, event("system-reboot")),
        "cloud.maintenance@node warning ask_human",
        made=Made.FAKE,
    ),
    tool(
        "cloud.events",
        "the instance will be retired",
        announced(_SCHEDULED, event("instance-retirement")),
        "cloud.retirement@node warning ask_human",
        made=Made.FAKE,
    ),
    tool(
        "cloud.events",
        "an event that is over",
        announced(_SCHEDULED, event("system-reboot", "completed")),
        made=Made.FAKE,
    ),
    tool(
        "cloud.events",
        "a rebalance recommendation",
        announced("events/recommendations/rebalance", {"noticeTime": "2026-01-05T12:02:50Z"}),
        "cloud.rebalance@node warning watch",
        made=Made.FAKE,
    ),
    tool(
        "cloud.events",
        "a Spot interruption",
        announced("spot/instance-action", {"action": "terminate", "time": "2026-01-05T12:02:50Z"}),
        "cloud.spot_interruption@node critical watch",
        made=Made.FAKE,
    ),
    tool(
        "cloud.events",
        "the Auto Scaling group ends it",
        announced("autoscaling/target-lifecycle-state", "Terminated"),
        "cloud.leaving@node critical watch",
        made=Made.FAKE,
    ),
    tool("cloud.events", "in service", announced("autoscaling/target-lifecycle-state", "InService"), made=Made.FAKE),
    tool(
        "cloud.events",
        "no metadata service",
        lambda rig: setattr(rig.node, "metadata_items", SourceMissing("no instance metadata service here")),
        status=Status.NOT_APPLICABLE,
        made=Made.FAKE,
    ),
)

# -- plugin.run -------------------------------------------------------------------------------------------------------

_COMMAND = ("/opt/site/quota.sh", "--strict")


def plugged(state: str, diagnosis: str = "", *, code: int = 0, stdout: str = "", **more: Any) -> Case:
    """A case of one plug-in and what it answers."""
    plugin = plugin_run.Plugin(name="disk_quota", command=_COMMAND, **more.pop("plugin", {}))
    settings = {"plugin.run": plugin_run.PluginRunSettings(plugins=(plugin,))}
    arrange = more.pop("arrange", lambda rig: rig.answers(_COMMAND, stdout, code=code))
    return tool("plugin.run", state, arrange, diagnosis, settings=settings, **more)


_BLIND: dict[str, Any] = {"status": Status.UNKNOWN, "unknown": frozenset({"plugin.run"})}
_TOLD = '{"status": "problem", "message": "quota used up", "component": "mount:/home"}'
PLUGIN = (
    plugged("exit 0", stdout="all well"),
    plugged("exit 1", "plugin.disk_quota@node warning ask_human", code=1, stdout="quota used up"),
    plugged("exit 1, critical", "plugin.disk_quota@node critical ask_human", code=1, plugin={"critical": True}),
    plugged("another exit", code=2, stdout="cannot tell", **_BLIND),
    plugged(
        "a problem, as JSON", "plugin.disk_quota@mount:/home warning ask_human", stdout=_TOLD, plugin={"json": True}
    ),
    plugged("it is not there", arrange=lambda rig: None, **_BLIND),
    plugged(
        "it runs too long",
        arrange=lambda rig: rig.tools.update({_COMMAND: SourceTimeout("quota.sh: killed after 5 s")}),
        **_BLIND,
    ),
)

CASES: tuple[Case, ...] = (*STACK, *CLOUD, *PLUGIN)
