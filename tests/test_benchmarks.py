"""Every instrument runs at its smallest size, so that none of them rots unseen; what it measures then means nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import doses, drawn_trials, forecast, goals, outcomes, streams, worlds
from benchmarks.__main__ import PARTS, run
from docs import draw, pictures

from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.trial import torture


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_the_benchmark_runs_and_has_a_table(part: str) -> None:
    measured = run(part, "smallest")
    assert measured.rows
    assert all(np.isfinite(row.judged.median) for row in measured.rows)
    assert measured.table().row_count == len(measured.rows)


def test_ranges_of_drawn_trials_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    drawn_trials.main(["--trials", "2", "--each", "2", "--seasons", "3"])
    assert "| 3 |" in capsys.readouterr().out


def test_forecasts_are_measured_beside_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    forecast.main(["--trials", "2", "--simulated", "2", "--middle", "2", "--more", "2"])
    assert "| season 4 |" in capsys.readouterr().out


def test_small_worlds_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    worlds.main(["--trials", "2", "--shorter", "100"])
    each = [len(world.kinds) + (world.sd is None) for world in worlds.WORLDS.values()]  # policies
    assert capsys.readouterr().out.count("of 2 |") == sum(each)
    tables = []
    for more in ([], ["--http"]):
        worlds.main(["--trials", "2", "--shorter", "20", "--world", "clinic", *more])
        tables.append([line.split(" |")[:-2] for line in capsys.readouterr().out.splitlines()])
    assert tables[0] == tables[1]


def test_streams_are_played_beside_the_prototype(capsys: pytest.CaptureFixture[str]) -> None:
    streams.main(["--trials", "2", "--own", "0.5", "--people", "30", "--late", "20"])
    assert capsys.readouterr().out.count("±") == 3 + 3 * 2 + 1


def test_worlds_of_outcomes_are_played_by_all_policies() -> None:
    small = replace(outcomes.WORLDS["sites 30 %"], seasons=2, each=2)
    for policy in outcomes.POLICIES:
        result = outcomes.played(small, policy, [0, 1])
        assert len(outcomes.row(result)) == len(outcomes.HEADINGS) - 3
        assert ((result.control >= 0) & (result.control <= 1) & (result.lost >= -1e-12)).all()


def test_ranges_of_doses_and_a_field_of_them_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    doses.main(["ranges", "--trials", "2", "--response", "drawn", "jump"])
    assert capsys.readouterr().out.count("±") == 2 * 2 * 4
    plots = [f"1999\t{10 + x}\t{x}\t{topo}\tR{i % 3 + 1}" for topo in doses.TOPOGRAPHY for i, x in enumerate(range(9))]
    (tmp_path / "plots.txt").write_text("\n".join(["year\tyield\tnitro\ttopo\trep", *plots]))
    doses.main(["field", "--trials", "2", "--seasons", "2", "--data", str(tmp_path / "plots.txt")])
    out = capsys.readouterr().out
    assert out.count("±") == 2 * 2 * 2 * 2
    assert "hilltop: 10.00, 100.00," in out  # a straight line of 1 for each kilogram
    doses.main(["report", "--seasons", "1", "--out", str(tmp_path / "report")])
    assert "dose-chart" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


def test_goals_are_measured_beside_a_balanced_trial(capsys: pytest.CaptureFixture[str]) -> None:
    goals.main(["--trials", "2", "--seasons", "2"])
    assert capsys.readouterr().out.count("%") == 2 * 2 * 3 * 4
    goals.main(["--trials", "2", "--seasons", "2", "--metrics", "1", "--tolerance", "60", "--known", "--spread", "1.5"])
    assert capsys.readouterr().out.count("%") == 4 + 2


def test_a_live_trial_decides_as_in_the_small_world() -> None:
    world = replace(worlds.WORLDS["small noise"], decisions=30)
    y = np.stack([world.outcomes(7)])
    live = Trial.create(world.spec("people").model_copy(update={"seed": 7}), MemoryStore())
    for i, p in enumerate(worlds.trial(world, y, [7], "people").chances[0]):
        decision = live.ask(f"person {i}")
        np.testing.assert_allclose([*decision.probabilities.values()], p, atol=1e-9)
        live.tell(decision.id, {"outcome": float(y[0, i, int(decision.arm.split()[1])])}, confirm=True)


def test_outcomes_without_noise_do_not_hide_the_best_arm() -> None:
    """Where outcomes never scattered, an arm that was not tried was once taken to be like the others."""
    world, seeds = replace(worlds.WORLDS["no noise"], decisions=150), range(90_005, 90_011)
    y = np.stack([world.outcomes(seed) for seed in seeds])
    last = worlds.trial(world, y, seeds, "people").chances[:, -1]
    assert (last.argmax(-1) == np.argmax(world.means)).all()


def test_processes_are_killed_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    smallest = "--kills 1 --rounds 0 --store sqlite --workers 1 --sheets 99 --worlds 3"
    torture.main(smallest.split())
    assert "none was lost" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_picture_is_taken(tmp_path: Path) -> None:
    pictures.main(tmp_path, ["service_phone.png"])
    assert (tmp_path / "service_phone.png").stat().st_size > 10_000


def test_drawings_are_those_of_the_documents(tmp_path: Path) -> None:
    draw.main(tmp_path)
    for name in ("trial_life.svg", "architecture.svg"):
        assert (tmp_path / name).read_text() == (Path(draw.__file__).parent / name).read_text()
