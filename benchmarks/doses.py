"""Smooth responses to doses: how often ranges hold, and how soon the best dose of each place is found.

    python -m benchmarks.doses ranges [--trials 400] [--kind number "yes/no"] [--response drawn ...]
    python -m benchmarks.doses field [--trials 400] [--seasons 8] [--data lasrosas.corn.txt]
    python -m benchmarks.doses report [--seasons 5] [--out out/doses]

Ranges: four sites, three seasons, nine doses, of which one is never given. `drawn` takes every variance from the
model's prior, so that ranges must hold as often as they say; the others are responses as they might be, which no prior
describes: a plateau, a parabola, a jump at some dose, and doses that have nothing to do with each other.

Field: nitrogen in strips on the field Las Rosas (Anselin, Bongiovanni and Lowenberg-DeBoer 2004), four topographies.
The parabolas are least squares with a level for each replication of 1999 in the data set lasrosas.corn of the R package
agridat; --data estimates them again from that file (tab-separated) and prints them. Lost: margin below that of a
topography's best dose, in $ a hectare, by the dose that the outcomes so far recommend, and on the strips of the trial.
Shapes: S trials, G sites, L seasons, K doses, n plots.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from drimed import TrialSpec, streams
from drimed.models.mixed.effects import EffectPosterior, FittedModel, effects_of_users, effects_together
from drimed.models.mixed.generalised import AVERAGED, on_link_scale
from drimed.models.mixed.learner import Field
from drimed.models.mixed.terms import Family, Terms, dose_columns, field_families
from drimed.models.offer import Offer, Outcome
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.policies.policy import Policy
from drimed.records import Report
from drimed.reports.page import write_report
from drimed.trial.events import Created, Draft, chain
from drimed.trial.state import TrialState
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial

BLOCK = 100  # trials at a time
DOSES = np.arange(0.0, 180.0, 20.0)
NEVER = 5  # the number of the dose that is never given
SITES, SEASONS = 4, 3
PLOTS = {"number": 8, "yes/no": 40}  # of a site in a season
RESPONSES = ("drawn", "plateau", "parabola", "jump", "unrelated")
# Las Rosas 1999: level, slope and curvature of yield (q/ha) in 100 kg/ha of nitrogen, by topography.
FIELD: dict[str, tuple[float, ...]] = {
    "low east": (65.52, 8.76, -2.57),
    "slope east": (59.70, 10.49, -4.14),
    "hilltop": (46.20, 14.87, -4.27),
    "slope west": (59.44, 12.08, -3.33),
}
TOPOGRAPHY = {"LO": "low east", "E": "slope east", "HT": "hilltop", "W": "slope west"}
GRAIN, NITROGEN = 6.85, 0.4348  # $ for a quintal, and for a kilogram
# Deviations in q/ha, as in 1999 and 2001: of a strip within a topography, of seasons, also by topography, and of the
# response to 100 kg/ha in them.
STRIP, SEASON, SEASON_SITE, SEASON_SLOPE = 1.7, 10.0, 13.0, 1.6
STRIPS = 8  # of a topography in a season
RATES = np.arange(0.0, 160.0, 20.0)
CONTROL = 4  # 80 kg/ha everywhere, about what farmers there gave
TOLERANCE = 30.0  # $ a hectare


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: means over trials, with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("ranges", "field", "report"))
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trial")
    parser.add_argument("--kind", choices=PLOTS, nargs="*", default=list(PLOTS))
    parser.add_argument("--response", choices=RESPONSES, nargs="*", default=list(RESPONSES))
    parser.add_argument("--seasons", type=int, default=8)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/doses"))
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.trials)
    blocks = [seeds[i : i + BLOCK] for i in range(0, len(seeds), BLOCK)]
    if options.part == "ranges":
        print(f"| outcome | response | given: all | each site | never given: all | each site |\n{'|---' * 6}|")
        for kind in options.kind:
            for response in options.response:
                held = np.concatenate([holds(kind, response, block) for block in blocks])
                print(f"| {kind} | {response} | {' | '.join(text(held, 3))} |", flush=True)
        return
    if options.part == "report":
        print(report(options.out, options.first, options.seasons))
        return
    field = FIELD if options.data is None else estimated(options.data)
    print("\n".join(f"{name}: {a:.2f}, {b:.2f}, {c:.2f}" for name, (a, b, c) in field.items()))
    print(f"| arms | strips | {' | '.join(f'{4 * STRIPS * (i + 1)}' for i in range(options.seasons))} |")
    for arms in ("unrelated", "smooth"):
        for strips in ("uniform", "dri_med"):
            lost = np.concatenate([play(field, block, arms, strips, options.seasons) for block in blocks])
            for what, part in zip(("recommended", "on the strips"), np.moveaxis(lost, -1, 0), strict=True):
                print(f"| {arms} | {strips}, {what} | {' | '.join(text(part, 2))} |", flush=True)


def text(values: FloatArray, digits: int) -> list[str]:
    """Means over trials with standard errors: (S, columns)."""
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    return [f"{m:.{digits}f} ± {e:.{digits}f}" for m, e in zip(values.mean(0), error, strict=True)]


def file(users: Sequence[str], plots: int, at: FloatArray, **more: Any) -> TrialSpec:
    """A trial of doses at some sites."""
    spec: dict[str, Any] = {
        "name": "doses",
        "metrics": {"y": {}},
        "preference": {"y": 1},
        "control": f"dose {at[0]:g}",
        "doses": {"dose": {"from": at[0], "to": at[-1], "step": at[1] - at[0]}},
        "users": {name: {"plots": [str(i + 1) for i in range(plots)]} for name in users},
    }
    return TrialSpec.read(spec | more)


def start(spec: TrialSpec) -> TrialState:
    draft = Draft(Created(spec.plain(), 0, np.__version__, "benchmark"))
    (created,) = chain([draft], seq=0, hash="", time="1970-01-01T00:00:00Z", actor="doses")
    return TrialState.start(created)


def offers(state: TrialState, site: IntArray) -> Offer:
    """Of plots at these sites: (n, ...)."""
    names = list(state.users)
    return state.problem.offer([state.profile(names[g]) for g in site], [None] * len(site), [None] * len(site))


def learner_of(state: TrialState) -> Field:
    if not (isinstance(state.policy, Policy) and isinstance(state.policy.learner, Field)):
        raise TypeError("a trial with doses has a mixed model")
    return state.policy.learner


def spread_evenly(rng: np.random.Generator, arms: Sequence[int], sites: int, plots: int) -> IntArray:
    """All doses as often at each site, in a random order: (n,)."""
    return np.concatenate([np.resize(rng.permutation(arms), plots) for _ in range(sites)])


# Ranges


def holds(kind: str, response: str, seeds: Sequence[int]) -> FloatArray:
    """Shares of 95 % ranges of effects that hold: (S, 4), of doses given and never given, of all sites and of each."""
    S, plots, K = len(seeds), PLOTS[kind], len(DOSES)
    state = start(file([f"site {g}" for g in range(SITES)], plots, DOSES, metrics={"y": {"kind": kind}}))
    learner, site = learner_of(state), np.repeat(np.arange(SITES), plots)
    given = [k for k in range(K) if k != NEVER]
    worlds = [drawn_world(kind, response, streams.generator(seed, "world")) for seed in seeds]
    eta, of_seasons, noise = (np.stack(part) for part in zip(*worlds, strict=True))  # (S, G, K), (S, L, G, K), (S, K)
    evidence, every = learner.start(state.problem.shape, (S,)), offers(state, site).broadcast((S, len(site)))
    for season in range(SEASONS):
        rngs = [streams.generator(seed, f"season {season}") for seed in seeds]
        arm = np.stack([spread_evenly(rng, given, SITES, plots) for rng in rngs])
        mean = (eta + of_seasons[:, season])[np.arange(S)[:, None], site, arm]
        y = mean + np.stack([rng.standard_normal(len(site)) for rng in rngs])
        if kind == "yes/no":
            y = (np.stack([rng.random(len(site)) for rng in rngs]) < expit(mean)).astype(np.float64)
        evidence = learner.add(learner.age(evidence), every, arm, Outcome(None, y[..., None]))
    model, each = FittedModel.of(learner, evidence), offers(state, np.arange(SITES)).broadcast((S, SITES))
    if kind == "yes/no":  # in an average season
        eta = expit(eta / np.sqrt(1 + AVERAGED * noise[:, None]))
    true, possible = eta - eta[..., :1], np.ones((S, SITES, K), bool)
    together = effects_together(model, each, possible).at((..., 0))
    own = effects_of_users(model, each).at((..., 0))
    shares = [(_hold(together, true.mean(1))), _hold(own, true).mean(1)]  # (S, K) each
    return np.stack([held[:, some].mean(1) for some in (given[1:], [NEVER]) for held in shares], -1)


def _hold(effects: EffectPosterior, true: FloatArray) -> FloatArray:
    low, high = effects.likely
    return ((low <= true) & (true <= high)).astype(np.float64)


def drawn_world(kind: str, response: str, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Responses of the sites, what seasons add, and the variance of that: (G, K), (L, G, K), (K,).

    On the logit scale of yes or no, or in units of the noise. Variances are drawn from the prior for responses that are
    `drawn`, and at its centre for everything but the others' responses.
    """
    columns = dose_columns(DOSES, DOSES)
    q, K = columns.shape[1], len(DOSES)
    terms = Terms(attributes=(0,), bends=tuple(range(1, q)), doses=tuple(range(q)))
    families = field_families(terms, {"member": 1, "block": 1})
    families = families if kind == "number" else on_link_scale(families)
    lasting, of_seasons, variance = np.zeros((SITES, K)), np.zeros((SEASONS, SITES, K)), np.zeros(K)
    for f in families:
        if f.variance is not None or f.slopes == ():
            continue
        if response != "drawn" and ("arm" in f.by or f.slopes) and "season" not in f.by:
            continue
        v = f.centre * np.exp(f.spread * rng.standard_normal()) if response == "drawn" else f.centre
        shape = SEASONS if "season" in f.by else 1, SITES if "group" in f.by else 1
        form = _form(f, columns)
        effect = np.sqrt(v) * rng.standard_normal((*shape, form.shape[1])) @ form.T
        if "season" in f.by:
            of_seasons, variance = of_seasons + effect, variance + v * (form**2).sum(1)
        else:
            lasting = lasting + effect[0]
    return lasting + curve(response, rng), of_seasons, variance


def _form(family: Family, columns: FloatArray) -> FloatArray:
    if family.slopes:
        return columns[:, list(family.slopes)]
    return np.eye(len(columns)) if "arm" in family.by else np.ones((len(columns), 1))


def curve(response: str, rng: np.random.Generator) -> FloatArray:
    """A response of each site: (G, K)."""
    height, best = rng.uniform(0.5, 2.5), rng.uniform(40, 150) + rng.normal(0, 15, (SITES, 1))
    if response == "plateau":
        return height * np.minimum(DOSES / best, 1)
    if response == "parabola":
        return height * (1 - ((DOSES - best) / 80) ** 2)
    if response == "jump":
        return np.where(best.mean() < DOSES, height, 0.0) + np.zeros((SITES, 1))
    if response == "unrelated":
        return 0.7 * rng.standard_normal(len(DOSES)) + 0.3 * rng.standard_normal((SITES, len(DOSES)))
    return np.zeros((SITES, len(DOSES)))


# Las Rosas


def estimated(path: Path) -> dict[str, tuple[float, ...]]:
    """The parabolas of 1999 from the file, with a level for each replication."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["year"] == "1999"]
    found = {}
    for code, name in TOPOGRAPHY.items():
        own = [row for row in rows if row["topo"] == code]
        x = np.array([float(row["nitro"]) / 100 for row in own])
        others = [[float(row["rep"] == rep) for rep in ("R2", "R3")] for row in own]
        design = np.column_stack([np.ones(len(x)), x, x**2, others])
        found[name] = tuple(np.linalg.lstsq(design, np.array([float(row["yield"]) for row in own]))[0][:3].tolist())
    return {name: found[name] for name in FIELD}


def margins(field: dict[str, tuple[float, ...]]) -> FloatArray:
    """$ a hectare by topography and rate: (G, K)."""
    x = RATES / 100
    return np.array([GRAIN * (a + b * x + c * x**2) - NITROGEN * RATES for a, b, c in field.values()])


def file_of_field(field: dict[str, tuple[float, ...]], **more: Any) -> TrialSpec:
    own = {"metrics": {"y": {"spread": GRAIN * STRIP}}, "control": f"dose {RATES[CONTROL]:g}"}
    tolerance = {"relative": 0.0, "absolute": TOLERANCE}
    return file(list(field), STRIPS, RATES, **own, tolerance=tolerance, reward={"unit": "$/ha"}, **more)


def report(folder: Path, seed: int, seasons: int) -> Path:
    """The report of one live trial on this field."""
    spec, true = file_of_field(FIELD, seed=seed), margins(FIELD)
    trial, rng = Trial.create(spec, MemoryStore()), streams.generator(seed, "report")
    for _ in range(seasons):
        level, slope, at_site = rng.standard_normal(), rng.standard_normal(), rng.standard_normal(len(FIELD))
        trial.open_episode()
        outcomes = []
        for given in trial.ask_many():
            g, k = list(FIELD).index(given.user), list(spec.arms).index(given.arm)
            yields = SEASON * level + SEASON_SITE * at_site[g] + SEASON_SLOPE * slope * RATES[k] / 100
            y = true[g, k] + GRAIN * (yields + STRIP * rng.standard_normal())
            outcomes.append(Report(given.id, {"y": float(y)}))
        trial.tell_many(outcomes, confirm=True)
    return write_report(trial, folder, force=True)


def play(field: dict[str, tuple[float, ...]], seeds: Sequence[int], arms: str, strips: str, seasons: int) -> FloatArray:
    """$ lost a hectare after each season, by the dose recommended and on the strips so far: (S, L, 2)."""
    unrelated: dict[str, Any] = (
        {"doses": {}, "arms": {f"dose {rate:g}": {} for rate in RATES}} if arms == "unrelated" else {}
    )
    state, S, true = start(file_of_field(field, **unrelated)), len(seeds), margins(field)
    learner, policy, site = learner_of(state), state.policy, np.repeat(np.arange(len(field)), STRIPS)
    learned, each = policy.init(state.problem.shape, (S,)), offers(state, np.arange(len(field))).broadcast((S, 4))
    offer = offers(state, site).broadcast((S, len(site)))
    width, x, best = policy.draws_needed(state.problem.shape), RATES / 100, true.max(-1)
    lost, on_strips = np.zeros((S, seasons, 2)), np.zeros(S)
    for season in range(seasons):
        rngs = [streams.generator(seed, f"season {season}") for seed in seeds]
        level, at_site, slope, noise = (
            np.stack([rng.standard_normal(size) for rng in rngs]) for size in (1, len(field), 1, len(site))
        )
        learned = policy.begin_episode(learned, offer)
        draw = policy.decide(
            learned, offer, np.stack([streams.uniforms(seed, "policy", season, len(site), width) for seed in seeds])
        )
        if strips == "uniform":
            even = np.stack([spread_evenly(rng, range(len(RATES)), len(field), STRIPS) for rng in rngs])
            draw = replace(draw, action=even)
        learned = policy.commit(learned, offer, draw)
        arm = draw.action
        yields = SEASON * level + SEASON_SITE * at_site[:, site] + SEASON_SLOPE * slope * x[arm] + STRIP * noise
        y = (true[site, arm] + GRAIN * yields)[..., None]
        learned = policy.settle(policy.observe(learned, offer, arm, Outcome(y[..., 0], y)))
        on_strips += (best[site] - true[site, arm]).mean(-1)
        mean = learner.beliefs(learner.ready(learned.evidence), each).mean[..., 0]  # (S, G, K)
        recommended = mean.argmax(-1)
        lost[:, season, 0] = (best - true[np.arange(len(field)), recommended]).mean(-1)
        lost[:, season, 1] = on_strips / (season + 1)
    return lost


if __name__ == "__main__":
    main()
