"""``healthd checks``: the checks of this installation."""

from __future__ import annotations

from argparse import Namespace

from healthd.api.wire import Reply
from healthd.config.report import documented_fields
from healthd.core.check import discover
from healthd.core.json_documents import json_document, json_fields

SCHEMA = "healthd.checks/v1"


def answer(options: Namespace) -> Reply:
    """Every check with its title, interval, settings and finding codes."""
    checks = discover().values()
    if options.json:
        data = [
            {
                **json_fields(check, "name", "title", "interval_s", "on"),
                "settings": [json_fields(f, "name", "default", "doc") for f in documented_fields(check.settings)],
                "codes": [json_fields(code, "code", "severity", "remedy", "meaning") for code in check.codes],
            }
            for check in checks
        ]
        return Reply(code=0, out=json_document({"schema": SCHEMA, "checks": data}))
    lines = []
    for check in checks:
        lines.append(f"{check.name:<18} {check.often:<14} {check.title}")
        lines += [f"    {code.code:<26} {code.severity:<9} {code.remedy:<13} {code.meaning}" for code in check.codes]
    return Reply(code=0, out="\n".join(lines) + "\n")
