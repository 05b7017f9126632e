"""The learner of the field: outcomes that differ between sites, seasons, blocks and people.

An episode is a season. Where a decision was taken is in the offer's unit; an offer without one is for a user who is a
group of its own. Rules compare arms, so they see features relative to the control's: how well the level of a site is
known is not exploration of its arms. Guards see the features themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError, InputError
from drimed.models.linear_regression import LOST_SHARE
from drimed.models.mixed import cells as field_cells
from drimed.models.mixed.cells import FACTORS, Cells, Rows
from drimed.models.mixed.features import Reading
from drimed.models.mixed.prediction import Belief, as_fit, learn, learn_again, make_rows, stepped
from drimed.models.mixed.prediction import belief_model as belief
from drimed.models.mixed.terms import NoiseGroups, Structure, field_families, people_families
from drimed.models.mixed.variance_components import Averaged
from drimed.models.offer import Offer, Outcome, Seen, Shape, quadratic
from drimed.numerics import arrays
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

KINDS = ("field", "people")
NOISES = ("common", "arm")
ROLES = ("level", "effects", "noise")
MOST_STEPS = 64  # more outcomes than this at a time, or this share of all, are faster added up anew
SLOWER = 4000  # with so many outcomes variances are fitted again at half of the way to twice as many
MOST_NOISE = 3  # covariates that scale the noise


@dataclass(frozen=True, slots=True)
class FieldEvidence:
    """The outcomes, and what was learned from them when the variances were last fitted."""

    cells: Cells
    learned: Averaged
    sizes: IntArray  # (F + 1,), how many values of each factor have columns in `learned`; 1 if some are in no group
    seen: IntArray  # (F + 1,), and how many were seen in outcomes
    fitted: int  # outcomes when the variances were last fitted, of the member that had most
    stepped: int  # how many of the cells are in `learned`; -1: it must be computed again
    season: int  # of the present episode, from 0; -1 before the first


@final
@dataclass(frozen=True, kw_only=True)
class Field:
    """Levels and effects by site and season, or by person, with every variance learned.

    >>> Field(covariates=2).about
    'field model, 2 covariates'
    """

    kind: str = "field"  # field: sites season after season; people: many users, who come once or a few times
    # What each covariate does, in words of ROLES; a number stands for so many that shift levels and change effects.
    covariates: tuple[str, ...] | int = ()
    categories: tuple[str, ...] | int = ()  # the same for each category
    attributes: int = 0  # how many numbers describe an arm
    seasons: bool = True  # outcomes shift from season to season
    noise: str = "common"  # common: one residual covariance; arm: each arm scales it
    discount: float = 1.0  # an outcome counts so much for each season that has passed since
    reference: int | None = None  # an arm that the effects of the others are measured against; None: all alike
    ranges: tuple[tuple[float, float], ...] = ()  # ends of each metric's range, infinite: none; (): of no metric
    integrated: bool = True  # estimates are averaged over uncertain variances, or at the most plausible ones alone
    # Decisions that are taken together have their arms spread evenly over sites and blocks, and keep their chances.
    # None: where sites decide season after season; people are drawn for one by one.
    balanced: bool | None = None
    growth: float = 1.1  # variances are fitted again when there are this many times as many outcomes
    delta: float = 0.01  # the radius at all times may fail with this probability

    feedback: ClassVar[str] = "vector"
    weighting: ClassVar[str] = "learned"
    noise_bound: ClassVar[float] = 1.0
    keeps_features: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, known in (("kind", KINDS), ("noise", NOISES)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        if not 0 < self.discount <= 1:
            raise ConfigError(f"discount must be in (0, 1], got {self.discount}")
        arrays.share("delta", self.delta)
        reading = self._reading
        for roles in (*reading.covariates, *reading.categories):
            wrong = roles - set(ROLES)
            if wrong:
                raise ConfigError(f"a covariate affects {', '.join(ROLES)}, got {min(wrong)!r}")
        if any("noise" in roles for roles in reading.categories):
            raise ConfigError("a category cannot scale the noise; numbers can")
        if len(reading.noisy) > MOST_NOISE:
            raise ConfigError(f"at most {MOST_NOISE} covariates can scale the noise, got {len(reading.noisy)}")

    @property
    def about(self) -> str:
        """In a few words."""
        counts = (len(self._reading.covariates), "covariates"), (len(self._reading.categories), "categories")
        more = [f"{n} {word}" for n, word in counts if n]
        aged = [f"discount {self.discount:g}"] if self.discount < 1 else []
        return ", ".join([f"{self.kind} model", *more, *aged])

    @property
    def balances(self) -> bool:
        """Whether decisions that are taken together are spread evenly."""
        return self.kind == "field" if self.balanced is None else self.balanced

    # As a learner like the others

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> FieldEvidence:
        """No outcomes, in a later season."""
        sizes = np.ones(len(self._reading.factors) + 1, np.intp)
        sizes[FACTORS.index("arm")] = shape.K
        sizes[FACTORS.index("group")] = sizes[-1] = 0  # nobody was seen, in a group or in none
        structure = self._structure(sizes, shape.M)
        cells = field_cells.init(structure.covariates + shape.M, batch, factors=len(structure.factors))
        _, learned = learn(structure, cells, integrated=self.integrated)
        return FieldEvidence(cells, learned, sizes, sizes, 0, 0, episodes - 1)

    def age(self, evidence: FieldEvidence) -> FieldEvidence:
        """A new season."""
        anew = -1 if self.discount < 1 else evidence.stepped
        return replace(evidence, season=evidence.season + 1, stepped=anew)

    def add(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldEvidence:
        """Count outcomes in, of any season and in any order."""
        for rows in self._rows(evidence, offer, action, outcome, late):
            keys = rows.keys.reshape(-1, rows.keys.shape[-1])
            most, alone = 1 + keys.max(0), keys[:, FACTORS.index("group")].min() < 0
            seen = np.maximum(evidence.seen, np.append(most, alone))
            evidence = replace(evidence, cells=field_cells.add(evidence.cells, rows), seen=seen)
        return evidence

    def remove(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldEvidence:
        """Take outcomes out again, as if they had never come."""
        for rows in self._rows(evidence, offer, action, outcome, late):
            evidence = replace(evidence, cells=field_cells.remove(evidence.cells, rows), stepped=-1)
        return evidence

    def ready(self, evidence: FieldEvidence, *, variances: bool | None = None) -> FieldEvidence:
        """All outcomes so far, with variances fitted again when they are due (or as told)."""
        waiting = evidence.cells.used - evidence.stepped
        if waiting == 0 and not variances:
            return evidence
        most, before = int(evidence.cells.count.max(initial=0)), evidence.learned
        now, then = (self._structure(sizes, self._metrics(evidence)) for sizes in (evidence.seen, evidence.sizes))
        due = self._due(most, evidence.fitted) if variances is None else variances
        # While the noise is unknown there is nothing to keep; other families have other variances.
        if due or not before.scale.known.all() or now.parameters != then.parameters:
            cells, learned = learn(now, evidence.cells, integrated=self.integrated, weight=self.discount)
            return replace(evidence, cells=cells, learned=learned, sizes=evidence.seen, fitted=most, stepped=cells.used)
        few = waiting <= max(MOST_STEPS, evidence.cells.used // MOST_STEPS)
        if evidence.stepped >= 0 and few and now is then:
            learned = stepped(then, evidence.cells, before, evidence.stepped)
            return replace(evidence, learned=learned, stepped=evidence.cells.used)
        cells, learned = learn_again(now, evidence.cells, before, self.discount)
        return replace(evidence, cells=cells, learned=learned, sizes=evidence.seen, stepped=cells.used)

    def see(self, evidence: FieldEvidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """A table of the arms' mean outcomes for each user."""
        evidence = self.ready(evidence)
        found = self.beliefs(evidence, offer)
        fit = as_fit(found, pulls[..., None, :], round, self.delta)
        view = _view(offer, found)
        return Seen(fit, view, replace(view, features=view.features - view.control_features[..., None, :]))

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """One metric is enough."""
        del preference
        return np.asarray(observed.any(-1))

    def lost_digits(self, before: FieldEvidence, after: FieldEvidence) -> bool:
        """Of the sums of squares."""
        there = after.cells.count[..., None] > 0
        return bool((there & (after.cells.squares < LOST_SHARE * before.cells.squares)).any())

    def theta(self, evidence: FieldEvidence) -> FloatArray:
        """What is common to all, in standardised units: (..., M P)."""
        theta = self.ready(evidence).learned.theta
        return theta.reshape(*theta.shape[:-2], -1)

    def coefficients(self, shape: Shape) -> int:
        """Of the table of means."""
        return shape.K * shape.M

    # What it knows, for inference

    def structure(self, evidence: FieldEvidence) -> Structure:
        """The model as it was last fitted."""
        return self._structure(evidence.sizes, self._metrics(evidence))

    def beliefs(self, evidence: FieldEvidence, offer: Offer) -> Belief:
        """Mean outcomes for the users of an offer: (..., n, K, M)."""
        structure = self.structure(evidence)
        keys, z = self._reading.asked(offer, max(evidence.season, 0), structure.arms)
        return belief(structure, evidence.learned, evidence.cells, keys, z)

    # Parts

    @cached_property
    def _reading(self) -> Reading:
        parsed = _parsed(self.covariates), _parsed(self.categories)
        return Reading(*parsed, self.attributes)

    def _structure(self, sizes: IntArray, metrics: int) -> Structure:
        *counts, alone = sizes.tolist()
        named = dict(zip(self._reading.factors, counts, strict=True))
        people, grouped = self.kind == "people", named["group"] > 0
        named["group"] = max(named["group"], 1)
        # How many clusters there are does not matter, so that it must not make a new structure.
        if not people or not self.seasons:
            named["season"] = 1
        if people:
            named["user"] = min(named["user"], named["group"] + 1)
            if named["user"] <= named["group"] or not grouped:  # each user is a group: none has columns
                named["user"] = named["group"] = 1
        return _made(self, tuple(named.values()), metrics, alone=bool(people and grouped and alone))

    def _metrics(self, evidence: FieldEvidence) -> int:
        return evidence.cells.mean.shape[-1] - self._reading.width

    def _due(self, most: int, fitted: int) -> bool:
        slower = most / (most + SLOWER)
        return most >= (self.growth + (2 - self.growth) * slower) * fitted

    def _rows(self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int) -> list[Rows]:
        structure = self._structure(evidence.seen, self._metrics(evidence))
        # Outcomes of all seasons share a cell where no season differs from another.
        season = max(evidence.season, 0) - late if self.seasons or self.discount < 1 else 0
        told = self._reading.told(offer, action, outcome, season)
        return [make_rows(structure, t.keys, t.y, t.covariates, t.observed) for t in told]


@lru_cache(maxsize=4096)
def _made(learner: Field, sizes: tuple[int, ...], metrics: int, *, alone: bool) -> Structure:
    """The structure for so many values of each factor."""
    reading = learner._reading
    named = dict(zip(reading.factors, sizes, strict=True))
    people, arms = learner.kind == "people", named["arm"]
    if people:
        families = people_families(reading.terms, named, seasons=learner.seasons, alone=alone)
    else:
        families = field_families(reading.terms, named, seasons=learner.seasons)
    return Structure(
        families=families,
        factors=reading.factors,
        sizes=sizes,
        cluster="user" if people else "season",
        covariates=reading.width,
        noise=NoiseGroups(metrics, arms if learner.noise == "arm" else 1, 1 << len(reading.noisy)),
        reference=learner.reference,
        ranges=learner.ranges or ((-np.inf, np.inf),) * metrics,
        alone=alone,
    )


def _view(offer: Offer, belief: Belief) -> Offer:
    """The offer on the table of means: maps that pick arm and metric."""
    K, M = belief.mean.shape[-2:]
    maps = np.eye(K * M).reshape(K, M, K * M)
    if offer.preference is None and M > 1:
        raise InputError(f"an offer with {M} metrics needs a preference")
    preference = np.ones(M) if offer.preference is None else offer.preference
    features = np.einsum("...m,kmd->...kd", preference, maps)
    features = np.broadcast_to(features, (*np.broadcast_shapes(features.shape[:-2], belief.mean.shape[:-2]), K, K * M))
    return Offer(
        features=features,
        control=offer.control,
        sigma=np.sqrt(quadratic(belief.residual, preference)),
        maps=maps,
        preference=offer.preference,
        context=offer.context,
        available=offer.available,
        user=offer.user,
        floor=offer.floor,
    )


def _parsed(roles: tuple[str, ...] | int) -> tuple[frozenset[str], ...]:
    words = ("level effects",) * roles if isinstance(roles, int) else roles
    return tuple(frozenset(text.split()) for text in words)


PEOPLE = Field(kind="people")
