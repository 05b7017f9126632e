"""The container and compose files, as far as they can be checked without an engine: all they name exists and runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from drimed.service.auth import is_loopback
from drimed.service.settings import Settings

ROOT = Path(__file__).parents[2]
FILE = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
SERVICE, DATABASE = COMPOSE["services"]["service"], COMPOSE["services"]["database"]


def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Containerfile, on one line."""
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", FILE, flags=re.M)).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line)]


def environment() -> dict[str, str]:
    """What the Containerfile sets, and compose over it."""
    given = dict(pair.split("=", 1) for word, rest in instructions() if word == "ENV" for pair in rest.split())
    return given | SERVICE["environment"]


def test_the_containerfile_installs_extras_that_exist_and_can_write_where_it_must() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (wanted,) = re.findall(r"'/source\[(.*?)\]'", FILE)
    assert {"service", "postgres"} <= set(wanted.split(",")) <= set(extras)
    (made,) = re.findall(r"install -d -o drimed -g drimed (.*)", FILE)
    given = dict(pair.split("=", 1) for word, rest in instructions() if word == "ENV" for pair in rest.split())
    assert made.split() == [str(Path(given["DRIMED_STORE"]).parent), given["NUMBA_CACHE_DIR"]]
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("CMD")


def test_compose_sets_what_exists_and_both_files_agree() -> None:
    given = environment()
    ours = {name: value for name, value in given.items() if name.startswith("DRIMED_")}
    assert set(ours) <= set(Settings().environment())
    settings = Settings.resolve(environment=ours)
    assert not is_loopback(settings.host)
    assert f"EXPOSE {settings.port}" in FILE
    assert SERVICE["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert (ROOT / "deploy" / SERVICE["build"]["context"] / SERVICE["build"]["dockerfile"]).exists()
    user, name = DATABASE["environment"]["POSTGRES_USER"], DATABASE["environment"]["POSTGRES_DB"]
    assert ours["DRIMED_STORE"] == f"postgresql://{user}:${{POSTGRES_PASSWORD}}@database:5432/{name}"
    assert "database" in COMPOSE["services"]
    assert {volume.split(":")[0] for volume in DATABASE["volumes"]} == set(COMPOSE["volumes"])
    assert int(SERVICE["stop_grace_period"].removesuffix("s")) > settings.grace
    assert dict(instructions())["CMD"] == str(SERVICE["command"]).replace("'", '"')
