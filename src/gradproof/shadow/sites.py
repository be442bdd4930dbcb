"""Where data comes from: the name of a site, and how far its stream has come.

Data that a `DataLoader` fetches belongs to the loader, not to the line of the user's that asked for the batch: a
framework that fetches ahead asks from several lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch

from gradproof.shadow.places import COLLATE, FETCH, TORCH, USER, frames, owner


class Sites:
    """Names sites, and counts the elements that came from each."""

    def __init__(self) -> None:
        self.stream: dict[str, int] = {}
        self.loaders: list[Any] = []
        self.by_callers = False
        self._callers: dict[str, set[str]] = {}
        self._unit: FrameType | None = None
        self._fields: dict[str, list[FrameType]] = {}

    def close(self) -> None:
        """Let go of the frames and data sets that were kept."""
        self._unit, self._fields = None, {}
        self.loaders.clear()

    def advance(self, site: str, count: int) -> int:
        """The position of the next element of a site's stream, which then moves on by `count`."""
        first = self.stream.get(site, 0)
        self.stream[site] = first + count
        return first

    def here(self, tensor: torch.Tensor) -> str:
        """The site of the caller's stack that makes this tensor."""
        inner, fetch = inside(frames())
        chain: list[str] = []
        user = ""
        outer: list[FrameType] = []
        for depth, frame in enumerate(inner, 1):
            kind = owner(frame.f_code.co_filename)
            if kind == USER:
                user, outer = f"{frame.f_code.co_filename}:{frame.f_lineno}+{frame.f_lasti}", inner[depth:]
                break
            chain.append(f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}")
        if fetch is None and user:
            user = self._called(user, chain, tensor, outer)
        if fetch is not None:
            chain += self._fetched(inner, "/".join([user, *chain, shape_of(tensor)]))
            user = f"{user} loader {self._loader(fetch.f_locals.get('self'))}".strip()
        return " < ".join([*chain, user]) + " " + shape_of(tensor)

    def _called(self, user: str, chain: list[str], tensor: torch.Tensor, outer: list[FrameType]) -> str:
        """The user's line, with the lines that called it where these tell sources apart."""
        lines = [f"{f.f_lineno}+{f.f_lasti}" for f in outer if owner(f.f_code.co_filename) == USER]
        callers = " for " + ",".join(lines) if lines else ""
        self._callers.setdefault(" < ".join([*chain, user, shape_of(tensor)]), set()).add(callers)
        return user + callers if self.by_callers else user

    def shared(self) -> bool:
        """Whether a line made data for several callers."""
        return any(len(callers) > 1 for callers in self._callers.values())

    def _fetched(self, inner: list[FrameType], site: str) -> list[str]:
        """What tells apart the fields of a batch that the same line makes: a key, or a count in torch's own collate."""
        found = []
        for frame in inner:
            if owner(frame.f_code.co_filename) != TORCH:
                found += strings(frame)
        fields = [f for f in inner if f.f_code.co_filename.endswith(COLLATE) and not f.f_code.co_name.startswith("<")]
        if fields:
            found.append(f"field {self._ordinal(inner[-1], fields[0], site)}")
        return [f"[{word}]" for word in found]

    def _loader(self, fetcher: Any) -> int:
        data = getattr(fetcher, "dataset", None)
        for number, known in enumerate(self.loaders):
            if known is data:
                return number
        self.loaders.append(data)
        return len(self.loaders) - 1

    def _ordinal(self, unit: FrameType, field: FrameType, site: str) -> int:
        """Which field of the batch a call inside torch's collate function, which `unit` is, collates."""
        if self._unit is not unit:
            self._unit, self._fields = unit, {}
        known = self._fields.setdefault(site, [])
        if all(frame is not field for frame in known):
            known.append(field)
        return next(i for i, frame in enumerate(known) if frame is field)


def inside(stack: Iterable[FrameType]) -> tuple[list[FrameType], FrameType | None]:
    """The frames within a loader's fetch, innermost first, and the fetch; all frames and None outside of one."""
    inner: list[FrameType] = []
    for frame in stack:
        if frame.f_code.co_filename.endswith(FETCH) and owner(frame.f_code.co_filename) == TORCH:
            return inner, frame
        inner.append(frame)
    return inner, None


def strings(frame: FrameType) -> list[str]:
    """Short texts in a frame's variables: the key of a field, in a loop over the fields of a batch."""
    return [
        f"{k}={v}" for k, v in sorted(frame.f_locals.items()) if isinstance(v, str) and len(v) <= 40 and k != "self"
    ]


def shape_of(tensor: torch.Tensor) -> str:
    """The shape of one sample, and the dtype."""
    return f"{tuple(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}"
