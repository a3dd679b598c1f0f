"""The metric name of a reading: Prometheus wants base units in full, and no ``_count`` on a gauge.

Checks name their readings with short units, which the store keeps; the names here are for scrapers.
Source: prometheus.io/docs/practices/naming, as ``promtool check metrics`` holds names to it.
"""

from __future__ import annotations

from collections.abc import Mapping

_UNITS: Mapping[str, tuple[str, float]] = {
    "c": ("celsius", 1.0),
    "w": ("watts", 1.0),
    "mhz": ("hertz", 1e6),
    "ms": ("seconds", 1e-3),
    "s": ("seconds", 1.0),
    "mib": ("bytes", float(1 << 20)),
    "bool": ("", 1.0),
}
_RATES: Mapping[str, tuple[str, float]] = {
    "_bytes_per_s": ("_bytes_per_second", 1.0),
    "_gb_s": ("_bytes_per_second", 1e9),
}
_NAMES: Mapping[str, str] = {
    "cpus_online_count": "cpus_online",
    "efa_device_count": "efa_devices",
    "efa_domain_count": "efa_domains",
    "gdrcopy_good_gpus_count": "gdrcopy_good_gpus",
    "gpu_pci_count": "gpu_pci_devices",
    "gpu_process_count": "gpu_processes",
    "imex_domain_gpu_count": "imex_domain_gpus",
    "zombies_count": "zombies",
}
"""Counts of things, in the plural; a count that is not listed only loses its ending."""


def metric_of(reading: str) -> tuple[str, float]:
    """The metric's name, for a counter without ``_total``, and the factor for its value."""
    name = _NAMES.get(reading, reading).replace(".", "_").removesuffix("_total")
    for ending, (full, scale) in _RATES.items():
        if name.endswith(ending):
            return f"healthd_{name.removesuffix(ending)}{full}", scale
    stem, _, unit = name.rpartition("_")
    if unit in _UNITS:
        full, scale = _UNITS[unit]
        return f"healthd_{stem}_{full}".rstrip("_"), scale
    return f"healthd_{name.removesuffix('_count')}", 1.0
