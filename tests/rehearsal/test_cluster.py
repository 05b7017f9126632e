"""A rehearsal on a real Dask scheduler with two worker processes: the same numbers, to the last bit."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from drimed.cli.main import app
from drimed.trial import template
from tests.simulation.test_sweep import THIRD_PARTY_WARNINGS, DaskOnLoopback


@THIRD_PARTY_WARNINGS
def test_the_command_shows_the_same_numbers_on_a_dask_cluster(tmp_path: Path) -> None:
    file = tmp_path / "maize.toml"
    file.write_text(template(), encoding="utf-8")
    run = ["trial", "rehearse", str(file), "--quick", "--trials", "4", "--seasons", "2"]
    dask = DaskOnLoopback()
    try:
        for name, how in {"there": ["--cluster", f"dask={dask.address}"], "here": ["--jobs", "1"]}.items():
            done = CliRunner().invoke(app, [*run, *how, "--out", str(tmp_path / name)])
            assert done.exit_code == 0, done.output
    finally:
        dask.stop()
    here, there = ((tmp_path / name / "results.json").read_bytes() for name in ("here", "there"))
    assert here == there
