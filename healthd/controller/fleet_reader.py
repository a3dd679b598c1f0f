"""The one reading of the fleet that a controller has: for its incidents and its ledger, and for its page.

The keepers of the controller that leads wait for it. A page never does for long: where the reading is old, the next one
begins in a thread of its own, however many browsers there are, and none begins while no page is in sight.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from healthd.core.errors import HealthdError
from healthd.fleet.nodes import FleetPicture

EVERY_S = 20.0
"""How often the fleet is read for the keepers, in seconds; as often as the ledger asks for it, where that is more
often."""
SHOWN_EVERY_S = 30.0
"""How often it is read at most for the page, in seconds, where no keeper has read it."""
_DEFECT = "a defect of healthd; see the controller's log"


class FleetReadings(Struct, frozen=True, kw_only=True):
    """The last reading, and why there is no later one: ``problem`` at ``failed``. ``under_way``: one is being read."""

    picture: FleetPicture | None = None
    problem: str = ""
    failed: datetime | None = None
    under_way: bool = False


class SharedReading:
    """The fleet as it was read last. ``read`` reads all nodes, and raises BackendError or ConfigError. ``every_s``: the
    time between two readings, at least. ``racks``: those of nodes of which the cluster names none."""

    def __init__(
        self,
        read: Callable[[], FleetPicture],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self.every_s, self._clock, self._monotonic_s = read, every_s, clock, monotonic_s
        self._reading = threading.Lock()  # of the one that reads; the others wait for its result
        self._due_s = float("-inf")
        self._failure: HealthdError | None = None
        self._state, self._done = threading.Lock(), threading.Event()
        self._last, self._began_s = FleetReadings(), float("-inf")
        self.racks: Mapping[str, str] = {}

    def __call__(self) -> FleetPicture:
        """The fleet, read again if that is due. Raises BackendError, ConfigError, until the next reading is due."""
        with self._reading:
            if self._monotonic_s() >= self._due_s:
                self._due_s = self._monotonic_s() + self.every_s
                self._refresh()
            if self._failure is not None:
                raise self._failure
            assert self._last.picture is not None  # noqa: S101 - else it failed
            return self._last.picture

    def latest(self, log: Any, *, wait_s: float = 0.0) -> FleetReadings:
        """The last reading, for a page. Where it is too old the next one begins, in a thread of its own, and is waited
        for so long at most. ``log`` gets a defect."""
        with self._state:
            if self._monotonic_s() - self._began_s >= SHOWN_EVERY_S and not self._last.under_way:
                self._begin()
                threading.Thread(target=self._read_for_page, args=(log,), name="fleet", daemon=True).start()
            under_way = self._last.under_way
        if under_way and wait_s:
            self._done.wait(wait_s)
        with self._state:
            return self._last

    def _begin(self) -> None:
        self._began_s = self._monotonic_s()
        self._last = replace(self._last, under_way=True)
        self._done.clear()

    def _end(self, last: FleetReadings) -> None:
        with self._state:
            self._last = last
        self._done.set()

    def _read_for_page(self, log: Any) -> None:
        try:
            self()
        except HealthdError:
            pass  # the page shows it, with its time
        except Exception:
            log.error("the fleet was not read; please report this defect of healthd", exc_info=True)
        finally:
            self._end(replace(self._last, under_way=False))  # also where none was due

    def _refresh(self) -> None:
        with self._state:
            self._begin()
        self._failure = HealthdError(_DEFECT)
        try:
            picture = self._read().with_racks(self.racks)
        except HealthdError as error:
            self._failure = error
        else:
            self._failure = None
            self._end(FleetReadings(picture=picture))
        finally:
            if self._failure is not None:
                self._end(replace(self._last, problem=str(self._failure), failed=self._clock(), under_way=False))
