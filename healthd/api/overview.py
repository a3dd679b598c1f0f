"""``healthd help``: every verb by what one wants to do."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

SECTIONS: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "Look": (
        ("check", "status", "fleet", "job", "history", "explain", "checks", "case"),
        "healthd check", "may a job run here?",
    ),
    "Ask first": (
        ("plan", "policy", "replay", "drill", "doctor"),
        "healthd plan", "what would be done, and what forbids it",
    ),
    "Act": (
        ("ack", "quarantine", "repair", "release", "approve", "undo", "freeze", "relearn"),
        'healthd quarantine --reason "fan is loud"', "take the node out",
    ),
    "Set up": (
        ("init", "config", "uninstall", "demo", "new-check"),
        "healthd init --print", "a first configuration for this node",
    ),
    "Run": (
        ("run", "controller", "hook"),
        "healthd run", "the daemon, in the foreground",
    ),
}  # fmt: skip
"""The help's sections: verbs, an example, and what that is for."""


def overview(abouts: Mapping[str, str]) -> str:
    """The whole help. ``abouts``: the verbs that there are, each with its line of help."""
    lines = ["usage: healthd VERB [OPTIONS]", "", "Node health checks and remediation for GPU clusters."]
    for title, (verbs, example, meaning) in SECTIONS.items():
        lines += ["", title]
        for verb in verbs:
            first, *rest = textwrap.wrap(abouts[verb], 64)
            lines += [f"  {verb:<12}{first}", *(f"{'':14}{each}" for each in rest)]
        lines += [f"  e.g. {example:<43} {meaning}"]
    lines += ["", "`healthd help VERB` shows the options of a verb, `healthd version` the version."]
    return "\n".join(lines) + "\n"
