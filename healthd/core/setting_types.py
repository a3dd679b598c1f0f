"""The kinds of values that the settings of checks have, each with its words for a message. ``healthd.config`` has more.

A limit that no node can be at, or a path that nothing is at, is refused when the configuration is read.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, description="a whole number of at least 0")]
AtLeastOne = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
Amount = Annotated[float, Meta(ge=0, le=1e18, description="a number of at least 0")]
Ratio = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]
Seconds = Annotated[float, Meta(gt=0, le=86_400, description="seconds, more than 0 and at most 86400")]
WindowSeconds = Annotated[float, Meta(gt=0, le=31_536_000, description="seconds, more than 0 and at most 31536000")]
GraceSeconds = Annotated[float, Meta(ge=0, le=86_400, description="seconds, from 0 to 86400")]
AbsolutePath = Annotated[str, Meta(pattern=r"^/[^\0]*\Z", description="an absolute path, such as /run/healthd")]
MountPoint = Annotated[
    str,
    Meta(
        pattern=r"^/(?:[^\0]*[^\0/])?\Z",
        description="the path of a mount as the kernel lists it, without a / at its end, such as /fsx",
    ),
]
Word = Annotated[str, Meta(pattern=r"\S", description="a text that is not empty")]
Words = Annotated[tuple[Word, ...], Meta(min_length=1, description="a list of at least one text, none of them empty")]
