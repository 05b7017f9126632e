"""Where numbers come from: version, code and machine, for the last table of every page."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import numpy as np


def provenance(code: str, seconds: float) -> dict[str, Any]:
    """What a reader needs to measure the same again."""
    return {
        "drimed": version("drimed"),
        "code": code,
        "seconds of this run": round(seconds, 1),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
