"""The node that a provisioner is for, and what no platform can do for it. Pure."""

from __future__ import annotations

from msgspec import Struct

from healthd.checklib.tables import is_ultraserver
from healthd.core.model import Remedy


class TargetNode(Struct, frozen=True, kw_only=True):
    """``here``: healthd runs on this node itself, else ``healthd controller`` acts for it.

    ``instance_id``: this machine's own where ``here``. For the controller, the instance of the node's request, and the
    only one acted upon; the one behind the name now is looked up each time. "" where it is not known.
    """

    node: str
    here: bool = True
    instance_id: str = ""
    instance_type: str = ""

    def reason_against(self, remedy: Remedy) -> str:
        """Why no platform of AWS can carry this out for this node, or ""."""
        if remedy not in (Remedy.REBOOT_NODE, Remedy.REPLACE_NODE):
            return f"{remedy} is not a task of the machine's provider"
        if self.here and not self.instance_id:
            return "the instance id of this node is unknown: check [sources] imds_endpoint"
        # AWS informs the owner, who ends all instances of the block and opens a support case
        # (Amazon EC2 User Guide, "Capacity Blocks for ML: P6e-GB200 UltraServers", 2026).
        if remedy is Remedy.REPLACE_NODE and is_ultraserver(self.instance_type):
            return (
                f"{self.instance_type} is a part of an UltraServer, which AWS replaces as a whole: replace it yourself"
            )
        return ""
