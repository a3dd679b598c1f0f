"""moto's server, one request after the other; its options are those of ``python -m moto.server``.

That one answers each connection in a thread, and what its services keep is not made for that: where many asked at
once, some had the answer 500 ("OrderedDict mutated during iteration").
"""

from __future__ import annotations

import threading
from typing import Any

from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication


class InTurn(DomainDispatcherApplication):
    """moto's application, which answers one thread at a time."""

    _turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """The answer to one request."""
        with self._turn:
            return super().__call__(environ, start_response)


if __name__ == "__main__":
    server.DomainDispatcherApplication = InTurn  # type: ignore[attr-defined]  # what main serves
    server.main()
