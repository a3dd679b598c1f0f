"""Makes what a shell and man(1) know of healthd from its grammar and configuration schema, so that they cannot differ.

    python packaging/manual/manual.py SHARE    below SHARE, the /usr/share of a package: man pages, completions

packaging/stage.sh runs it with the Python and the healthd that the package holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import completions
import man_pages


def made() -> dict[str, str]:
    """The path of each file below /usr/share, and its text."""
    return {
        "man/man1/healthd.1": man_pages.of_the_command(),
        "man/man5/healthd.toml.5": man_pages.of_the_configuration(),
        "bash-completion/completions/healthd": completions.bash(),
        "zsh/vendor-completions/_healthd": completions.zsh(),
        "fish/vendor_completions.d/healthd.fish": completions.fish(),
    }


def main(arguments: list[str]) -> int:
    """Write all of them below the folder that is named."""
    if len(arguments) != 1:
        sys.stderr.write("usage: packaging/manual/manual.py SHARE\n")
        return 64
    for name, text in made().items():
        path = Path(arguments[0], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
