"""docs/http.md and docs/service.md: every example request and the program, in order, against a running service."""

from __future__ import annotations

import json
import re
import time
from inspect import signature
from pathlib import Path

import pytest

from drimed.cli.serve import serve
from drimed.service import auth
from drimed.service.settings import Settings
from drimed.trial import template
from drimed.trial.store import open_store
from tests.service.serving import served

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "http.md").read_text(encoding="utf-8")


def test_the_examples_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(tmp_path / "trials.db")
    store = open_store(address)
    _, token = auth.create_token(store, label="admin", role="manage")
    store.close()
    examples = PAGE.partition("## By example")[2].partition("## Asking")[0]
    posts = re.findall(r"^    post (\S+) '(.*?)'", examples, re.M)
    gets = re.findall(r"^    get '?([^'\s]+)", examples, re.M)
    assert len(posts) > 6
    assert len(gets) > 6
    with served(Settings(store=address)) as running:
        headers = {"Authorization": f"Bearer {token}"}
        toml = headers | {"Content-Type": "application/toml"}
        assert running.http.post("/v1/trials", content=template(), headers=toml).status_code == 201
        for path, body in posts:
            answer = running.http.post(f"/v1/{path}", json=json.loads(body), headers=headers)
            assert answer.is_success, (path, answer.text)
        for path in gets:
            until = time.monotonic() + 60
            while (answer := running.http.get(f"/v1/{path}", headers=headers)).status_code == 503:
                assert time.monotonic() < until  # an analysis is being computed
                time.sleep(0.2)
            assert answer.is_success, (path, answer.text)

        (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
        program = program.replace("http://127.0.0.1:8000", running.address).replace("drimed_...", token)
        program = program.replace(
            '{"yield": 8.4, "leaching": 21}', '{"yield": 4.8, "leaching": 21}'
        )  # as amended above
        exec(program, {})
        said = capsys.readouterr().out
        assert "north" in said
        assert "two digits were swapped" in said


def test_every_setting_is_on_the_page() -> None:
    table = (DOCS / "service.md").read_text(encoding="utf-8").partition("## Settings")[2].partition("## Tokens")[0]
    for name, value in vars(Settings()).items():
        assert (f"`--{name.replace('_', '-')}`" in table) == (name in signature(serve).parameters), name
        assert f"`DRIMED_{name.upper()}`" in table
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        assert (f"`{shown}`" if shown else "| none |") in table, name
