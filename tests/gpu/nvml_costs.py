"""Times NVML calls where healthd makes them: in a process of its own, in the NVML family. Run by test_gpu_costs.py.

Reads questions from standard input, one JSON object a line, ``{"calls": […], "fields": [[id, scope]]}``, each with one
call or field; writes the median of ROUNDS in milliseconds for each, as one JSON list.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from healthd.probe.nvml_ops import family

ROUNDS = 20


def main() -> None:
    """Every question ROUNDS times over all GPUs, after one that is not counted; less what no question at all costs."""
    nvml = family(("",))

    def median_ms(question: dict[str, object]) -> float:
        took_ms = []
        for _ in range(ROUNDS + 1):
            began_s = time.perf_counter()
            nvml.answer("ask", question)
            took_ms.append((time.perf_counter() - began_s) * 1e3)
        return statistics.median(took_ms[1:])

    nothing_ms = median_ms({"calls": [], "fields": []})
    costs_ms = [median_ms(json.loads(line)) - nothing_ms for line in sys.stdin]
    json.dump([max(0.0, cost_ms) for cost_ms in costs_ms], sys.stdout)


if __name__ == "__main__":
    main()
