"""Learners that only benchmarks use: what others would do with the same information, and what cannot be beaten.

    ALONE    the paper's model, as in a live trial of its own for each site
    SITES    one regression on arms, sites and arms at sites, told the noise that it does not model
    KNOWN    the field model, told every variance of the fields of `drimed bench field`
    LATER    the same, told after the first season: before it, nobody knows the scale of outcomes
    NAMES    the paper's model, told the arms' names instead of their maps, as in a live trial of that kind
    OWN      a regression of its own for each person ("Standard" of Huch et al. 2024)
    BUMPS    the model of people, with bumps as covariates of the level

All of them learn from the same offers and outcomes.
"""

from __future__ import annotations

from drimed.environments.field import Deviations
from drimed.experiments.rivals.apart import Apart
from drimed.experiments.rivals.described import GRID, Described, by_name, by_site, with_bumps
from drimed.experiments.rivals.known import Known
from drimed.learning.field.learner import Field
from drimed.learning.learner import Learner

PLOT_NOISE = 24.0  # of a plot around its site's mean: residual, block and season together, as the fields have it
LEVELS = 3.0  # bound on all coefficients together
PRIOR = 0.5  # deviation of a coefficient before any data, in units of the range: as in a live trial

SITES = Described(
    Learner(
        weighting="none", feedback="reward", noise_bound=PLOT_NOISE, regularisation=(PLOT_NOISE / PRIOR) ** 2
    ),
    by_site,
    lambda shape: (1 + shape.K) * (1 + shape.H),
    "by site",
)  # fmt: skip
ALONE = Apart(
    Learner(weighting="learned", norm_bound=LEVELS, regularisation=PRIOR**-2, refits="converged"), "each site alone"
)
NAMES = Described(
    Learner(weighting="learned", norm_bound=24**0.5, regularisation=PRIOR**-2),
    by_name,
    lambda shape: (1 + shape.K) * shape.M,
    "arms by name",
)
KNOWN = Known(Deviations(), 0.5)
LATER = Known(Deviations(), 0.5, from_start=False)
OWN = Apart(Learner(weighting="none", feedback="reward", noise_bound=1.0, regularisation=0.1), "each person alone")
BUMPS = Described(
    Field(kind="people", covariates=("level effects",) * 2 + ("level",) * GRID**2, seasons=False, reference=0),
    with_bumps,
    lambda shape: shape.d,
    "bumps",
)
