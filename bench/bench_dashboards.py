"""The dashboard of the fleet over 500 and 5,000 nodes: each of its queries, asked of a real Prometheus.

Each node has the series that the dashboard asks for, five scrapes of them; the queries are those of the present. Aim,
at 5,000 nodes: each query within a second.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.measure import skipped, write_down
from tests.live.prometheus.dashboards import panel_queries
from tests.live.prometheus.metrics_fleet import END, Fleet, serving, stored

AIM_S = 1.0


def main() -> int:
    """Measure and write down. Exit 1 where the aim is missed, 77 where there is no Prometheus."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("-n", type=int, default=5, help="how often each query is asked")
    runs = options.parse_args().n
    if shutil.which("promtool") is None:
        return skipped("no promtool: install the package prometheus")
    small, large = measured(500, runs), measured(5_000, runs)
    slowest = max(large.values())
    write_down(
        "dashboards",
        {
            "queries": len(large),
            "slowest_500_nodes_s": round(max(small.values()), 2),
            "slowest_5000_nodes_s": round(slowest, 2),
            "aim_slowest_5000_nodes_s": AIM_S,
            "all_500_nodes_s": round(sum(small.values()), 2),
            "all_5000_nodes_s": round(sum(large.values()), 2),
            "slowest": max(large, key=large.__getitem__),
        },
    )
    return 0 if slowest <= AIM_S else 1


def measured(nodes: int, runs: int) -> dict[str, float]:
    """Panel and query to the median of its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        server = serving(Path(folder) / "server", stored(Fleet(nodes=nodes), Path(folder) / "stored"))
        try:
            server.wait(lambda: server.query("up", at=END), 120, "the data of the fleet are loaded")
            found = {}
            for number, query in enumerate(panel_queries("fleet")):
                times = []
                for _ in range(runs):
                    began = time.monotonic()
                    server.query(query.promql, at=END)
                    times.append(time.monotonic() - began)
                found[f"{query.title} ({number})"] = median(times)
            return found
        finally:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
