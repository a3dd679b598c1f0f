"""The NVLink domain of a node by its GPUs: one number for all nodes of a domain, none where a node is not sure."""

from __future__ import annotations

from typing import Any

from healthd.checklib.nvlink_domain import DOMAIN, domain_of, domain_readings
from healthd.core.model import NODE


def info(first: int, clique: int = 1) -> dict[str, Any]:
    return {"clusterUuid": [first, *[0] * 15], "cliqueId": clique}


def test_all_nodes_of_a_domain_have_one_number() -> None:
    """Another clique is another domain, and so is another cluster."""
    (reading,) = domain_readings([info(7), info(7)])
    assert (reading.component, reading.name) == (NODE, DOMAIN)
    assert [each.value for each in domain_readings([info(7)] * 4)] == [reading.value]
    others = [domain_readings([each]) for each in (info(7, 2), info(8))]
    assert reading.value not in {each.value for found in others for each in found}
    assert domain_of(info(7)) == "07" + "00" * 15 + "/1"


def test_a_node_that_is_not_sure_has_none() -> None:
    """GPUs in two domains; or in none, whose clusterUuid is all zeros."""
    assert list(domain_readings([info(7), info(8)])) == []
    assert list(domain_readings([info(0)])) == []
