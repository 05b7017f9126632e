"""A record from JSON data, and pages of many of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some of many."""

    items: list[T]
    next: str | None  # the cursor of what follows; None: that was all


def read(kind: type[T], data: Mapping[str, Any]) -> T:
    """A record from JSON data; fields that a newer service adds are left out."""
    names = getattr(kind, "__dataclass_fields__", {})
    return kind(**{name: value for name, value in data.items() if name in names})
