"""What `from drimed import ...` offers: cheap to import, documented in full, typed."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import drimed
from drimed.errors import MissingExtraError

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
HEAVY = ("numpy", "scipy", "numba", "pydantic", "sqlalchemy", "httpx", "polars", "pyarrow", "importlib.metadata")


def python(code: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **more)


def test_every_public_name_is_documented_and_nothing_else_is() -> None:
    rows = re.findall(r"^\| (`.*?) \| .* \|$", PAGE, re.M)
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(documented) == len(set(documented))
    assert {*documented, "__version__"} == set(drimed.__all__)
    assert "`__version__`" in PAGE


@pytest.mark.parametrize("name", drimed.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(drimed, name) is not None
    assert name in dir(drimed)


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    seen: dict[str, str] = {}
    for node in ast.parse((Path(drimed.__path__[0]) / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            seen |= {str(alias.asname): f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign):  # where the public name differs
            (target,) = node.targets
            assert isinstance(target, ast.Name)
            assert isinstance(node.value, ast.Name)
            seen[target.id] = seen.pop(node.value.id)
    assert {*seen, "__version__"} == set(drimed.__all__)
    for name, place in seen.items():
        assert getattr(drimed, name) is pkgutil.resolve_name(place)


def test_importing_drimed_or_a_name_loads_only_what_it_needs() -> None:
    light = [m for m in HEAVY if m not in ("numpy", "scipy", "importlib.metadata")]
    done = python(
        f"import sys, drimed; print([m for m in {HEAVY} if m in sys.modules])\n"
        f"from drimed import Offer, Rule, Tolerance; print([m for m in {light} if m in sys.modules])"
    )
    assert done.stdout.split() == ["[]", "[]"], done.stderr


def test_a_name_whose_extra_is_not_installed_says_which() -> None:
    names = {"Trial": ("pydantic", "trial"), "TrialSpec": ("pydantic", "trial"), "Client": ("httpx", "client")}
    code = (
        "import sys; sys.modules |= {'pydantic': None, 'httpx': None}\nimport drimed\n"
        f"for name in {list(names)}:\n"
        "    try: getattr(drimed, name)\n"
        "    except drimed.MissingExtraError as error: print(error)"
    )
    done = python(code)
    assert done.stdout.splitlines() == [str(MissingExtraError(*missing)) for missing in names.values()], done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'drimed' has no attribute 'Trail'"):
        _ = drimed.Trail  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_documented_example_runs(code: str, tmp_path: Path) -> None:
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_trial_of_the_page_leaves_its_control() -> None:
    (code,) = (code for code in EXAMPLES if "MemoryStore" in code)
    done = python(f"for seed in range(4): exec({code!r}.replace('control =', f'seed = {{seed}}\\ncontrol =', 1))")
    times = re.findall(r"left the control (\d+) times", done.stdout)
    assert len(times) == 4, done.stderr
    assert min(map(int, times)) >= 10


def test_there_is_an_example_for_each_kind_of_use() -> None:
    used = {name for code in EXAMPLES for name in re.findall(r"\w+", code)}
    assert {"make", "Trial", "verify"} <= used
