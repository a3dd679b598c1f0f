"""Writes the kubectl output in docs/how-to/kubernetes.md again, from a real API server and the real kubectl.

    python docs/record_kubectl.py            start etcd and an API server, lay a fleet out, and write
    python docs/record_kubectl.py --check    write nothing; exit 1 if the page shows something else

Ages, versions and the width of columns differ from run to run and are not compared. The programs are those of the
tests, see tests/live/kubernetes/find_binaries.py. tests/live/kubernetes/test_kubectl_plugin_applied.py
compares.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.live.kubernetes.agent_rig import Agents, install_policies  # noqa: E402 - runs from a checkout
from tests.live.kubernetes.control_plane import ControlPlane  # noqa: E402
from tests.live.kubernetes.find_binaries import program  # noqa: E402
from tests.live.kubernetes.shown_fleet import COMMANDS, Operator, lay_out  # noqa: E402

PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"


def comparable(text: str) -> list[list[str]]:
    """The words of each line, without what differs from run to run."""
    aged = re.sub(r"\bv1\.\S+", "", re.sub(r"\b\d+[smhd]\b", "-", text))
    return [line.split() for line in aged.splitlines()]


def shown(page: str, title: str) -> str:
    """The text of the block with this title. Raises ValueError where there is none."""
    found = re.search(_block(title), page, re.DOTALL)
    if found is None:
        raise ValueError(f"{PAGE}: no block ```text {title}")
    return found[2]


def with_shown(page: str, printed: Mapping[str, str]) -> str:
    """The page with these texts in their blocks, where they say anything else."""
    for title, text in printed.items():
        if comparable(shown(page, title)) != comparable(text):
            page = re.sub(_block(title), lambda found, text=text: f"{found[1]}{text}{found[3]}", page, flags=re.DOTALL)  # type: ignore[misc]
    return page


def printed() -> dict[str, str]:
    """The output of kubectl for the fleet, by the titles of the blocks."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="healthd-docs-")))
        plane = stack.enter_context(ControlPlane())
        install_policies(plane)
        plane.reset()
        agents = stack.enter_context(closing(Agents(plane, folder)))
        lay_out(plane, agents)
        operator = Operator(plane, program("kubectl", print))
        return {title: operator.types(line).stdout for title, line in COMMANDS.items()}


def main(arguments: Sequence[str]) -> int:
    """Write, or compare."""
    page = PAGE.read_text(encoding="utf-8")
    made = with_shown(page, printed())
    if "--check" in arguments:
        return int(made != page)
    PAGE.write_text(made, encoding="utf-8")
    return 0


def _block(title: str) -> str:
    return rf"(```text {re.escape(title)}\n)(.*?)(```)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
