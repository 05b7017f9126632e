"""States as plain named arrays and back: for files and databases, without pickle."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from drimed.errors import InputError

S = TypeVar("S")


def to_arrays(state: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """Every array of a state under its dotted name; what is None is left out."""
    arrays: dict[str, NDArray[Any]] = {}
    for f in fields(state):
        value, name = getattr(state, f.name), prefix + f.name
        if is_dataclass(value):
            arrays |= to_arrays(value, name + ".")
        elif value is not None:
            arrays[name] = np.asarray(value)
    return arrays


def from_arrays(like: S, arrays: dict[str, NDArray[Any]], prefix: str = "") -> S:
    """The state that `to_arrays` wrote; `like` is any state of the same policy, for instance `policy.init(...)`."""
    values: dict[str, Any] = {}
    for f in fields(like):  # type: ignore[arg-type]  # S is always a dataclass of arrays
        value, name = getattr(like, f.name), prefix + f.name
        if is_dataclass(value) and not isinstance(value, type):
            values[f.name] = from_arrays(value, arrays, name + ".")
        elif value is None:
            extra = [key for key in arrays if key == name or key.startswith(name + ".")]
            if extra:
                raise InputError(f"the stored state has {extra[0]!r}, which this policy does not use")
            values[f.name] = None
        elif name not in arrays:
            raise InputError(f"the stored state has no {name!r}; it holds {', '.join(sorted(arrays))}")
        else:
            stored = arrays[name]
            grown = f.metadata.get("grows", False) and np.ndim(value) == stored.ndim
            if np.shape(value) != stored.shape and not grown:
                raise InputError(f"stored {name!r} has shape {stored.shape}, this policy needs {np.shape(value)}")
            values[f.name] = int(stored) if isinstance(value, int) else stored
    return type(like)(**values)
