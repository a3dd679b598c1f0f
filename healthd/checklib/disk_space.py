"""The space of a file system: the shares left for users and for root, and the owners of the files in the rest. And the
errors that it has recorded."""

from __future__ import annotations

from collections.abc import Mapping

from healthd.checklib.host_text import whole
from healthd.core.errors import SourceError, SourceMissing
from healthd.core.node import Mount, Node, Space

_EXT4_POOL_SHARE, _EXT4_POOL_BYTES = 50, 4096 * 4096  # 2 % of the blocks, 4,096 at most: for no user, not even root
_NAMED = 3  # owners in a finding


def shares(space: Space, kept_by: str = "") -> dict[str, float]:
    """The free shares of space and inodes; with the part that only root may take, as the kind ``kept_by`` keeps it."""
    kept_bytes, kept_inodes = (space.kept_bytes, space.kept_inodes) if kept_by not in ("", "btrfs") else (0, 0)
    if kept_by == "ext4":
        kept_bytes = max(0, kept_bytes - min(space.total_bytes // _EXT4_POOL_SHARE, _EXT4_POOL_BYTES))
    counts = {
        "space": (space.available_bytes + kept_bytes, space.total_bytes),
        "inodes": (space.available_inodes + kept_inodes, space.total_inodes),
    }
    return {kind: free / total for kind, (free, total) in counts.items() if total}


def below(free: Mapping[str, float], limit: float) -> dict[str, float]:
    """The shares that are less than the limit."""
    return {kind: ratio for kind, ratio in free.items() if ratio < limit}


def held_by(node: Node, point: str) -> str:
    """The users of most of a full disk, as the end of a message. The finding stands without it."""
    try:
        holders = node.holders(point)
    except SourceError as error:
        return f"; the owners of its files were not counted: {error}"
    most = sorted(holders.bytes_of.items(), key=lambda held: held[1], reverse=True)[:_NAMED]
    names = ", ".join(f"uid {uid} {held / 1e9:.1f} GB" for uid, held in most)
    counted = "" if holders.whole else f" among the {holders.files} files counted within a second"
    return f"; most is used by {names}{counted}" if most else ""


def ext4_errors(node: Node, mount: Mount) -> int:
    """ext4's own count, kept on the disk until e2fsck; 0 for other kinds, which keep none. Raises SourceError."""
    if not mount.fstype.startswith("ext"):
        return 0
    try:
        path = f"fs/ext4/{node.sys.target(f'dev/block/{mount.device}')}/errors_count"
        return whole(node.sys.read(path), path)
    except SourceMissing:
        return 0
