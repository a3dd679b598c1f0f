"""``healthd explain``: meaning, severity and remedy of a finding code or an XID."""

from __future__ import annotations

import json
from argparse import Namespace

from healthd.api.wire import Reply
from healthd.config.values import did_you_mean
from healthd.core.check import discover
from healthd.core.errors import UsageError


def answer(options: Namespace) -> Reply:
    """The text for one code. Raises UsageError, with the nearest code, for one that does not exist."""
    text = explained(options.code)
    if options.json:
        return Reply(code=0, out=json.dumps({"code": options.code, "text": text}, indent=2) + "\n")
    return Reply(code=0, out=text.rstrip() + "\n")


def explained(wanted: str) -> str:
    """The text of one code: from the explain function of its family (``gpu.xid.79``, ``79``), else from its row."""
    codes = {code.code: (check, code) for check in discover().values() for code in check.codes}
    if wanted in codes:
        check, code = codes[wanted]
        ends = f"It ends by: {code.clears_by}." if code.clears_by else f"It ends when {check.name} no longer finds it."
        judged = f"severity {code.severity}, calls for {code.remedy}; found by {check.name}"
        return f"{code.code}: {code.meaning}\n  {judged}. {ends}"
    for check in discover().values():
        if check.explain is not None and (text := check.explain(wanted)):
            return text
    hint = did_you_mean(wanted, codes, "see `healthd checks`")
    raise UsageError(f"healthd explain: unknown code {wanted!r}; {hint}")
