"""Rules, guards and policies from outside the package: `module:name`, and entry points of installed packages.

A package offers its policies under the group `drimed.policies`. A module is found as Python finds any other. A program
that takes policies from others, such as a service, names the modules that may be loaded in DRIMED_MODULES: importing a
module runs it. Where the variable is not set any module may be.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from drimed.errors import ConfigError, UnknownNameError

GROUP = "drimed.policies"
MODULES = "DRIMED_MODULES"


def is_place(name: str) -> bool:
    """Whether this is `module:name`."""
    module, separator, inside = name.partition(":")
    return bool(separator) and all(part.isidentifier() for part in [*module.split("."), *inside.split(".")])


def load(place: str, *, trusted: bool = False) -> Any:
    """What `module:name` stands for; `trusted` where an installed package says so.

    >>> load("math:pi")
    3.141592653589793
    """
    if not is_place(place):
        raise ConfigError(f"expected module:name, such as my_rules:Epsilon, got {place!r}")
    name, _, inside = place.partition(":")
    allowed = os.environ.get(MODULES)
    ours = trusted or name.startswith("drimed.")
    if allowed is not None and not ours and name not in allowed.replace(",", " ").split():
        raise ConfigError(f"{place}: module {name!r} may not be loaded here; {MODULES} names those that may")
    try:
        found: Any = import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{place}: {name} cannot be imported: {error}") from error
        raise ConfigError(
            f"{place}: there is no module {name!r}; it must be installed, in the current folder, or on PYTHONPATH"
        ) from error
    except Exception as error:  # whatever the code of others raises
        raise ConfigError(f"{place}: {name} cannot be imported: {type(error).__name__}: {error}") from error
    for step in inside.split("."):
        if not hasattr(found, step):
            raise UnknownNameError(f"name in {name}", inside, [n for n in vars(found) if not n.startswith("_")])
        found = getattr(found, step)
    return found


@cache
def offered() -> dict[str, str]:
    """The policies of installed packages: name -> module:name."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=GROUP)}


def digest(names: Iterable[object]) -> str:
    """A fingerprint of the modules that these policies, rules and guards come from; empty where all are drimed's own.

    It changes with the files: a result that is kept under it is not used again after an edit.
    """
    from hashlib import sha256

    pieces = []
    for name in sorted({str(n) for n in names}):
        place = offered().get(name, name)
        module = place.partition(":")[0]
        if is_place(place) and not module.startswith("drimed."):
            load(place, trusted=place != name)
            file = getattr(sys.modules[module], "__file__", None)
            pieces.append(place.encode() + (Path(file).read_bytes() if file else b""))
    return sha256(b"".join(pieces)).hexdigest()[:16] if pieces else ""


def look_here() -> None:
    """Let modules of the current folder be found, after all others."""
    if "" not in sys.path:
        sys.path.append("")
