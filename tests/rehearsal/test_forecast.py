"""A running trial is played on from what it knows: how much longer until a better arm is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from drimed.cli.main import app
from drimed.errors import InputError
from drimed.models.mixed.effects import FittedModel
from drimed.models.mixed.learner import Field
from drimed.policies.policy import Policy
from drimed.records import Report
from drimed.rehearsal.forecast import BETTER, Forecast, OngoingTrials, forecast
from drimed.rehearsal.results import Number
from drimed.rehearsal.scenarios import Scenario, residuals_with_source
from drimed.reports.analysis import analyse
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore, open_store
from drimed.trial.trial import Trial
from tests.rehearsal.test_live import MIXED, PAPER, PLAIN, PLOTS, TWO
from tests.trial.test_history import ARMS, RANDOM, created, rows

RULE = {"stopping": {"rules": {"enough": {"kind": "superiority", "confidence": 0.9, "then": "stop"}}}}
KINDS: dict[str, Any] = {
    "metrics": {
        "cure": {"kind": "yes/no"},
        "visits": {"kind": "count"},
        "pain": {"kind": "score", "range": [0, 10]},
        "yield": {},
    },
    "preference": {"cure": 20.0, "visits": 2.0, "pain": 1.0, "yield": 0.2},
}  # fmt: skip
JOINING: dict[str, Any] = {"model": {"kind": "people"}, "enrolment": "open", "users": {}}


def running(
    more: dict[str, Any], seasons: int = 2, pending: int = 0, store: Any = None, advantage: float = 5.0
) -> Trial:
    """A trial after some seasons; the last decisions have no outcome yet."""
    spec = TrialSpec.read(PLAIN | {"seed": 3} | more)
    trial, rng = Trial.create(spec, store or MemoryStore()), np.random.default_rng(4)
    rain: dict[str, Any] = {"contexts": {u: {"rain": 420.0} for u in spec.users}} if spec.context else {}
    for season in range(1, seasons + 1):
        people: dict[str, Any] = {"users": [f"p{season}-{i}" for i in range(6)]} if not spec.users else {}
        decisions = trial.ask_many(episode=season, **rain, **people)
        told = decisions[: len(decisions) - pending] if season == seasons else decisions
        for d in told:
            better = advantage * (d.arm == "new")
            y: dict[str, Any] = {
                m: 50 + better + 4 * float(rng.standard_normal())
                if metric.kind == "number"
                else float(rng.binomial({"yes/no": 1, "count": 4, "score": 10}[metric.kind], 0.4 + better / 100))
                if metric.of is None
                else f"{rng.binomial(20, 0.4 + better / 100)} of 20"
                if metric.kind == "yes/no"
                else f"{rng.poisson(8)} in 4"
                for m, metric in spec.metrics.items()
            }
            beside = {m: 50 + 4 * float(rng.standard_normal()) for m in y} if spec.feedback == "difference" else None
            trial.tell_many([Report(d.id, y, beside)], confirm=True)
    return trial


def ongoing(trial: Trial, size: int) -> OngoingTrials:
    state = trial.state()
    assert isinstance(state.policy, Policy)
    assert isinstance(state.policy.learner, Field)
    model = FittedModel.of(state.policy.learner, state.settled.evidence)
    return OngoingTrials.of_state(state, model, [], None, range(size), 2)


@pytest.mark.parametrize(
    "more",
    [
        PLOTS,
        PLOTS | {"tolerance": {"absolute": 12.0, "for": "alike"}},
        MIXED,
        PLOTS | KINDS,
        MIXED | KINDS,
    ],
    ids=["seasons", "sites", "people", "kinds", "kinds, people"],
)
def test_worlds_are_drawn_from_the_posterior(more: dict[str, Any]) -> None:
    """Effects on single users in 1,500 worlds; deviations over the nodes are a normal's within a tenth."""
    trials = ongoing(running(more), 1500)
    users = trials.looked_at
    offers = trials.state.problem.offer(users, [None] * len(users), [None] * len(users))
    against = np.eye(3)[1:] - np.eye(3)[0]
    each = np.einsum("kj,hg->hkgj", against, np.eye(len(users))).reshape(-1, len(users), 3, 1)
    posterior = trials.model.posterior([(offers, each * users[0].preference)], "each")
    mean, sd = (x.reshape(-1, 2) for x in (posterior.mean, posterior.deviation))
    drawn = trials.effects[:, :, 1:, 0]  # (S, H, K - 1)
    assert np.abs(drawn.mean(0) - mean).max() < 0.15 * sd.max()
    assert np.abs(drawn.std(0) / sd - 1).max() < 0.2


def test_outcomes_in_worlds_are_of_their_kind_and_have_its_mean() -> None:
    trials = ongoing(running(PLOTS | KINDS), 800)
    season, offers = 0, trials.offers(0)
    means = trials.world.means(trials._rows(offers, trials.episodes[season]))
    y = trials.respond(season, np.zeros((800, means.shape[1]), np.intp), means).y
    assert set(np.unique(y[..., 0])) == {0.0, 1.0}
    assert (y[..., 1] == np.abs(np.round(y[..., 1]))).all()
    assert (np.abs(y[..., 2] - 5) <= 5).all()
    error = 4 * y.std((0, 1)) / np.sqrt(y[..., 0].size)
    assert (np.abs((y - means[:, :, 0]).mean((0, 1))) < error).all()


def test_shares_and_rates_in_worlds_are_of_the_mean_size_so_far() -> None:
    metrics = {"cure": {"kind": "yes/no", "of": "seeds"}, "visits": {"kind": "count", "of": "ha"}}
    trials = ongoing(running(PLOTS | {"metrics": metrics, "preference": {"cure": 20.0, "visits": 2.0}}), 800)
    means = trials.world.means(trials._rows(trials.offers(0), trials.episodes[0]))
    response = trials.respond(0, np.zeros((800, means.shape[1]), np.intp), means)
    off, phi = response.y - means[:, :, 0], [trials.world.linked[m].drawn.phi for m in (0, 1)]
    assert response.size is not None
    assert np.allclose(response.size, [20, 4])
    variance = [(means[:, :, 0, 0] * (1 - means[:, :, 0, 0])).mean() / 20, means[:, :, 0, 1].mean() / 4]
    assert np.allclose(off.var((0, 1)), np.array(variance) * phi, rtol=0.1)
    assert (np.abs(off.mean((0, 1))) < 4 * off.std((0, 1)) / np.sqrt(off[..., 0].size)).all()


@pytest.mark.parametrize(
    ("more", "pending"),
    [
        (PLOTS | RULE, 2),
        (TWO, 1),
        ({"feedback": "difference", "model": {"noise": "arm"}}, 0),
        (JOINING, 3),
        (PLOTS | RULE | KINDS, 2),
        (JOINING | KINDS, 1),
        ({"policy": {"name": "dri_med", "guard": "budget"}, "floors": {"control": 0.2, "count": "user"}}, 1),
    ],
    ids=[
        "blocks, a rule, pending",
        "two metrics, contexts",
        "control plots",
        "people who join",
        "kinds",
        "kinds, people who join",
        "budget, floors",
    ],
)
def test_any_trial_with_outcomes_is_played_on(more: dict[str, Any], pending: int) -> None:
    trial = running(more, pending=pending)
    first, again = (forecast(trial, trials=4, seasons=2, seed=7) for _ in range(2))
    assert first == again
    assert first.episodes == [3, 4]
    assert first.decisions[0] > trial.status().decisions
    for shares in first.chances.values():
        values = [share.value for share in shares]
        assert values == sorted(values)
        assert all(0 <= value <= 1 for value in values)
    assert ("rule enough is met" in first.chances) == ("stopping" in more)


def test_a_clear_winner_is_soon_shown_and_arms_alike_are_not() -> None:
    clear, alike = (forecast(running(PLOTS, advantage=a), trials=20, seasons=3) for a in (40.0, 0.0))
    assert clear.chances[BETTER][-1].value > 0.9 > 0.5 > alike.chances[BETTER][-1].value
    assert clear.any_better.value == 1.0


def test_the_rest_of_an_open_season_comes_first() -> None:
    trial = running({})
    trial.ask_many(["north"], episode=3)
    foreseen = forecast(trial, trials=2, seasons=1)
    assert (foreseen.episodes, foreseen.decisions) == ([3, 4], [9, 12])


def test_what_a_history_taught_is_played_on_in_seasons_after_it() -> None:
    trial = created(rows(ARMS), **RANDOM)
    assert min(ongoing(trial, 2).world.clusters) == 3  # seasons 0 to 2 are the past's
    trial.ask_many(["farm 0"])
    foreseen = forecast(trial, trials=2, seasons=1)
    assert (foreseen.episodes, foreseen.decisions) == ([1, 2], [12, 24])


def made(*chances: float, already: bool = False) -> Forecast:
    shares = {BETTER: [Number(c, 0.01) for c in chances]}
    return Forecast([4, 5, 6], [40, 50, 60], shares, Number(0.9, 0.01), already, 100)


@pytest.mark.parametrize(
    ("foreseen", "text"),
    [
        (made(0.2, 0.6, 0.85), "With 80 % chance .* by season 6; with 50 % chance by season 5."),
        (made(0.2, 0.6, 0.7), r"With 50 % chance .* by season 5; by season 6 the chance is 70 % \(± 1\)."),
        (made(0.1, 0.2, 0.3), r"The chance .* by season 6 is 30 % \(± 1\)."),
        (made(0.9, 0.9, 0.9, already=True), "An arm is shown .* already."),
    ],
)
def test_the_sentence_names_the_seasons(foreseen: Forecast, text: str) -> None:
    assert re.fullmatch(text, foreseen.text())


def test_a_trial_that_cannot_be_played_on_says_why() -> None:
    for trial, reason in (
        (running(PAPER), "the paper's model"),
        (running({}, seasons=0), "no outcomes that differ"),
        (running({"stopping": {"seasons": 2}}), "largest number of seasons"),
    ):
        with pytest.raises(InputError, match=reason):
            forecast(trial, trials=2)
    stopped = running({})
    stopped.stop(reason="enough")
    with pytest.raises(InputError, match="is stopped"):
        forecast(stopped, trials=2)


def test_a_running_trial_is_rehearsed_by_its_name(tmp_path: Path) -> None:
    store = f"{tmp_path / 'trials.db'}"
    running(RULE, store=open_store(store))
    command = ["trial", "rehearse", "t", "--store", store, "--trials", "2", "--seasons", "1"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.strip().splitlines()
    assert lines[0].startswith("assumed:")
    assert "by season 3" in lines[-1] or "already" in lines[-1]
    said = analyse(Trial("t", open_store(store))).forecast
    assert said == f"{lines[-1].removesuffix('.')} (forecast from season 2 with 2 rehearsals)."
    refused = CliRunner().invoke(app, [*command, "--for", "power 0.8"])
    assert refused.exit_code != 0
    assert CliRunner().invoke(app, ["trial", "rehearse", "other", "--store", store]).exit_code != 0


@pytest.mark.parametrize(
    ("metric", "scenario", "sd", "source"),
    [
        ({"kind": "yes/no", "typical": 0.1}, {}, 0.3, "as yes/no outcomes scatter"),
        ({"range": [0, 1], "spread": 0.1}, {}, 0.1, "declared"),
        ({"range": [0, 60]}, {}, 6.34, "six deviations"),
        ({"spread": 6.0}, {"noise": {"yield": 2.0}}, 2.0, "scenario"),
        ({"spread": 6.0}, {"noise": {"yield": 7e-15}, "level": {"yield": 50.0}}, 6.0, "declared"),
    ],
)
def test_the_scatter_that_is_assumed_has_a_source(
    metric: dict[str, Any], scenario: dict[str, Any], sd: float, source: str
) -> None:
    spec = TrialSpec.read(PLAIN | {"metrics": {"yield": metric}})
    assumed, why = residuals_with_source(spec, Scenario.model_validate(scenario))["yield"]
    assert assumed == pytest.approx(sd, rel=0.01)
    assert source in why


def test_scatter_that_is_round_off_is_refused_where_nothing_else_is_declared() -> None:
    spec = TrialSpec.read(PLAIN | {"metrics": {"yield": {}}})
    with pytest.raises(InputError, match="round-off"):
        residuals_with_source(spec, Scenario.model_validate({"noise": {"yield": 7e-15}, "level": {"yield": 50.0}}))
