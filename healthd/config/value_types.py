"""The kinds of values that settings of several sections have, each with its words for a message."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

SocketPath = Annotated[
    str, Meta(pattern=r"^/[^\0]*\Z", max_length=104, description="an absolute path of 104 bytes at most")
]
MaybePath = Annotated[str, Meta(pattern=r"^(/[^\0]*)?\Z", description='an absolute path, or ""')]
MaybeUrl = Annotated[
    str, Meta(pattern=r"^(https?://[^\s/]+(/\S*)?)?\Z", description='a URL of http:// or https://, or ""')
]
NodeUrl = Annotated[
    str, Meta(pattern=r"^(https?://\S*\{node\}\S*)?\Z", description='a URL with "{node}" for the node\'s name, or ""')
]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]*\Z", description='letters, digits, ".", "_" and "-", or ""')]
SomeName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+\Z", description='letters, digits, ".", "_" and "-"')]
MaybeLabelKey = Annotated[str, Meta(pattern=r"^[^=\s]*\Z", description='the key of a label, or ""')]
Label = Annotated[str, Meta(pattern=r"^[^=\s]+=[^\n]*\Z", description="key=value")]
Glob = Annotated[str, Meta(min_length=1, description="a name, or a glob with *, ? or [...]")]
