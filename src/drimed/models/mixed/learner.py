"""The mixed-model learner: outcomes that differ between sites, seasons, blocks and people (docs/model.md).

An episode is a season. A decision's place is in the offer's unit; a user without one is a group of its own. Rules
compare arms, so they see features relative to the control's: uncertainty about a site's level must not drive
exploration. Guards see the features themselves.

Shapes: leading `...` is any batch; n users, K arms, F factors, c covariates, those of the unit before the attributes of
the arm, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, final

import numpy as np
from scipy.special import chdtri

from drimed.errors import ConfigError, InputError
from drimed.models.linear_regression import LOST_SHARE
from drimed.models.mixed import posterior_draws, variance_components
from drimed.models.mixed.generalised import COUNT, KINDS, NUMBER, SCORE, YES_NO, on_link_scale
from drimed.models.mixed.observations import Cells, Rows, add_binary_pseudo_outcomes, make_design, make_rows, measure
from drimed.models.mixed.prediction import Belief, as_fit, belief, columns_of_fit, kalman_update
from drimed.models.mixed.terms import (
    FACTORS,
    FIXED,
    PAST,
    Range,
    Structure,
    Terms,
    factors_of,
    field_families,
    past_families,
    people_families,
)
from drimed.models.mixed.variance_components import IntegratedPosterior
from drimed.models.offer import Fit, Offer, Outcome, Seen, Shape, Unit, quadratic
from drimed.numerics import arrays
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

ROLES = ("level", "effects", "noise")
PLACES = ("block", "group", "member", "user")  # factors that a unit has
MOST_UPDATES = 64  # integrating anew costs an outcome's update for every so many cells
SLOWER = 4000  # with so many outcomes variances are fitted again at half of the way to twice as many
MOST_NOISE = 3  # covariates that scale the noise
FEW_COLUMNS = 128  # of sites: with more of them than seasons have, sites are eliminated instead of seasons

Roles = tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class FieldEvidence:
    """The outcomes, and the fit to those of them that are in it."""

    cells: Cells
    fitted: IntegratedPosterior
    sizes: IntArray  # (F + 1,), values of each factor that have columns in the fit; last 1 if some are in no group
    seen: IntArray  # (F + 1,), the same of all outcomes
    fitted_count: int  # outcomes when the variances were last fitted, of the member that had most
    included: int  # cells that are in the fit; -1: it must be computed again
    season: int  # of the present episode, from 0; -1 before the first
    drawn: posterior_draws.Drawn | None = None  # of metrics that are not numbers
    drawn_count: int = 0  # outcomes that are in it, of the member that had most
    drawn_season: int = -1  # in which it was made
    repeats: int = 0  # 1 where some user has several outcomes in it


@final
@dataclass(frozen=True, kw_only=True)
class Field:
    """Levels and effects by site and season, or by person, with every variance learned.

    >>> Field(covariates=2).about
    'field model, 2 covariates'
    """

    kind: str = "field"  # field: sites season after season; people: many users, who come once or a few times
    # Roles of each covariate, in words of ROLES; a number stands for so many that shift levels and change effects.
    covariates: tuple[str, ...] | int = ()
    categories: tuple[str, ...] | int = ()  # the same for each category
    attributes: int = 0  # numbers that describe an arm
    doses: tuple[int, ...] = ()  # the last of them are columns of doses (terms.dose_columns): so many of each
    promise: str = "each"  # each: to this unit; alike: to units like it, with the same attributes, group and history
    seasons: bool = True  # outcomes shift from season to season
    noise: str = "common"  # common: one residual covariance; arm: each arm scales it
    discount: float = 1.0  # weight of an outcome for each season that has passed since
    reference: int | None = None  # an arm that the effects of the others are measured against; None: all alike
    ranges: tuple[Range, ...] = ()  # ends of each metric's range, infinite: none; (): of no metric
    kinds: tuple[str, ...] = ()  # of each metric: number, yes/no, count, score; (): numbers
    spreads: tuple[float, ...] = ()  # deviation of two outcomes alike in each metric, as declared; 0: unknown
    # Decisions of one request have their arms spread evenly over sites and blocks, and keep their probabilities.
    # None: where sites decide season after season; people are drawn for one by one.
    balanced: bool | None = None
    # Seasons before the first one, and arms that were given in them and are not offered: numbered after those that are.
    past: tuple[int, int] = (0, 0)
    growth: float = 1.1  # variances are fitted again when there are this many times as many outcomes
    delta: float = 0.01  # the radius at all times may fail with this probability

    feedback: ClassVar[str] = "vector"
    weighting: ClassVar[str] = "learned"
    noise_bound: ClassVar[float] = 1.0
    keeps_features: ClassVar[bool] = False

    def __post_init__(self) -> None:
        words = {"kind": ("field", "people"), "noise": ("common", "arm"), "promise": ("each", "alike")}
        arrays.check_settings(self, words, discount=("discount",), share=("delta",))
        features = self.features
        kinds = ("number", features.covariates, ROLES), ("category", features.categories, ROLES[:2])
        for kind, declared, allowed in kinds:
            wrong = frozenset[str]().union(*declared) - set(allowed)
            if wrong:
                raise ConfigError(f"a {kind} affects {' or '.join(allowed)}, got {min(wrong)!r}")
        for m, kind in enumerate(self.kinds):
            if kind not in KINDS:
                raise ConfigError(f"a kind of metric is {', '.join(KINDS)}, got {kind!r}")
            if kind == SCORE and not (self.ranges and np.isfinite(self.ranges[m]).all()):
                raise ConfigError("a score needs a range with two ends")
        if len(features.noisy) > MOST_NOISE:
            raise ConfigError(f"at most {MOST_NOISE} covariates can scale the noise, got {len(features.noisy)}")

    @property
    def about(self) -> str:
        counts = (len(self.features.covariates), "covariates"), (len(self.features.categories), "categories")
        more = [f"{n} {word}" for n, word in counts if n]
        aged = [f"discount {self.discount:g}"] if self.discount < 1 else []
        return ", ".join([f"{self.kind} model", *more, *aged])

    @cached_property
    def balances(self) -> bool:
        """Whether decisions of one request are spread evenly."""
        return self.kind == "field" if self.balanced is None else self.balanced

    @cached_property
    def features(self) -> Features:
        """Roles of covariates and categories."""

        def parse(roles: tuple[str, ...] | int) -> tuple[frozenset[str], ...]:
            words = ("level effects",) * roles if isinstance(roles, int) else roles
            return tuple(frozenset(text.split()) for text in words)

        sizes = tuple(m for m, kind in enumerate(self.kinds) if kind in (YES_NO, COUNT))
        roles = parse(self.covariates), parse(self.categories)
        return Features(*roles, self.attributes, self.past[1] > 0, sizes, self.doses)

    @cached_property
    def has_draws(self) -> bool:
        """Whether some metric is not a plain number, so that beliefs are draws."""
        return any(kind != NUMBER for kind in self.kinds)

    @cached_property
    def has_numbers(self) -> bool:
        """Whether some metric is a plain number, so that decisions need the Gaussian model."""
        return not self.kinds or NUMBER in self.kinds

    @cached_property
    def sizes(self) -> dict[int, int]:
        """The column of its size, before that of the size times the outcome, of each metric with sizes."""
        return {m: self.features.described + 2 * i for i, m in enumerate(self.features.sizes)}

    @cached_property
    def exact(self) -> int:
        """Numbers that outcomes in one cell have in common: on a logit scale those of the unit and the arm."""
        return self.features.described if self.has_draws else 0

    # The learner's protocol

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> FieldEvidence:
        """No outcomes, after so many seasons."""
        sizes = np.ones(len(self.features.factors) + 1, np.intp)
        sizes[FACTORS.index("arm")] = shape.K
        if self.features.past:
            sizes[self.features.factors.index(PAST)] = self.past[1]
        sizes[FACTORS.index("group")] = sizes[-1] = 0  # no user was seen, in a group or in none
        structure = _structure_of(self, tuple(sizes.tolist()), shape.M)
        cells = Cells.empty(structure.covariates + shape.M, batch, factors=len(structure.factors))
        _, fitted = self._fit(structure, cells)
        evidence = FieldEvidence(cells, fitted, sizes, sizes, 0, 0, self.past[0] + episodes - 1)
        return self._drawn(evidence) if self.has_draws else evidence

    def age(self, evidence: FieldEvidence) -> FieldEvidence:
        """A new season."""
        included = -1 if self.discount < 1 else evidence.included
        return replace(evidence, season=evidence.season + 1, included=included)

    def add(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0,
        weight: float = 1.0,
    ) -> FieldEvidence:  # fmt: skip
        """Count outcomes in, `weight` times each, of any season and in any order."""
        for rows in self._outcome_rows(evidence, offer, action, outcome, late):
            keys = rows.keys.reshape(-1, rows.keys.shape[-1])
            most, ungrouped = 1 + keys.max(0), keys[:, FACTORS.index("group")].min() < 0
            seen = np.maximum(evidence.seen, np.append(most, ungrouped))
            evidence = replace(evidence, cells=evidence.cells.add(rows, weight), seen=seen)
        return evidence

    def remove(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldEvidence:
        """Take outcomes out again, as if they had never come."""
        for rows in self._outcome_rows(evidence, offer, action, outcome, late):
            evidence = replace(evidence, cells=evidence.cells.remove(rows, self.exact), included=-1, drawn_count=-1)
        return evidence

    def ready(self, evidence: FieldEvidence, *, variances: bool | None = None, complete: bool = False) -> FieldEvidence:
        """All outcomes so far in the fit, with variances fitted again when they are due (or as `variances` says).

        Where beliefs are draws, outcomes wait until there are enough of them, a new season, or a place that none came
        from before; with `complete` none waits, and the Gaussian model is fitted too, even if no metric is a number.
        """
        if not self.has_draws:
            return self._gaussian(evidence, variances)
        count, least = int(evidence.cells.count.max(initial=0)), 0 if complete else evidence.drawn_count
        due = evidence.drawn_count < 0 or count - evidence.drawn_count > least * posterior_draws.SHARE_OF_NEW
        due |= evidence.season != evidence.drawn_season and count != evidence.drawn_count
        due |= self.structure(evidence, evidence.seen) != self.structure(evidence)
        if complete or (due and self.has_numbers):
            evidence = self._gaussian(evidence, variances)
        elif due:
            evidence = self._measured(evidence)
        return self._drawn(evidence) if due else evidence

    def _gaussian(self, evidence: FieldEvidence, variances: bool | None) -> FieldEvidence:
        """The Gaussian model of all metrics."""
        waiting = evidence.cells.used - evidence.included
        if waiting == 0 and not variances:
            return evidence
        most, before = int(evidence.cells.count.max(initial=0)), evidence.fitted
        now, then = (self.structure(evidence, sizes) for sizes in (evidence.seen, evidence.sizes))
        if variances is None:
            slower = most / (most + SLOWER)
            variances = most >= (self.growth + (2 - self.growth) * slower) * evidence.fitted_count
        few = waiting <= max(1, evidence.cells.used // MOST_UPDATES)
        # While the noise is unknown there is nothing to keep; other families have other variances.
        if variances or not before.scale.known.all() or now.parameters != then.parameters:
            cells, fitted = self._fit(now, evidence.cells)
            evidence = replace(evidence, fitted_count=most)
        elif evidence.included >= 0 and few and now is then and _has_no_new_columns(evidence, now):
            cells, fitted = evidence.cells, before
            for at in range(evidence.included, cells.used):
                fitted = kalman_update(fitted, cells, at, then)
            every = max(MOST_UPDATES, evidence.fitted_count // MOST_UPDATES)
            if most // every > (most - waiting) // every:  # outcomes are cells of their own until they are merged
                cells = self._compact(cells, now)
        else:
            cells = self._compact(evidence.cells, now)
            design = make_design(now, cells, before.scale, self.discount).on_columns_in_use()
            laplace = before.mode, before.deviation, before.nodes
            fitted = variance_components.integrate(now, design, before.scale, laplace)
        return replace(evidence, cells=cells, fitted=fitted, sizes=evidence.seen, included=cells.used)

    def see(self, evidence: FieldEvidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """A table of the arms' mean outcomes for each user."""
        evidence = self.ready(evidence)
        if self.has_draws:
            fit, noise = self._fit_of_draws(evidence, offer, pulls, round)
        else:
            now = self.beliefs(evidence, offer)
            fit, noise = as_fit(now, pulls[..., None, :], round, self.delta), now.residual
        K, M = noise.shape[-3:-1]
        if offer.preference is None and M > 1:
            raise InputError(f"an offer with {M} metrics needs a preference")
        preference = np.ones(M) if offer.preference is None else offer.preference
        maps = np.eye(K * M).reshape(K, M, K * M)  # that pick arm and metric
        features = np.einsum("...m,kmd->...kd", preference, maps)
        lead = np.broadcast_shapes(features.shape[:-2], noise.shape[:-3])
        view = replace(
            offer,
            features=np.broadcast_to(features, (*lead, K, K * M)),
            sigma=np.sqrt(quadratic(noise, preference)),
            maps=maps,
            whitening=None,
            scale=None,
            unit=None,
            attributes=None,
        )
        compared = replace(view, features=view.features - view.control_features[..., None, :])
        return Seen(fit, view, compared)

    def _fit_of_draws(
        self, evidence: FieldEvidence, offer: Offer, pulls: FloatArray, round: int
    ) -> tuple[Fit, FloatArray]:
        """The belief as draws, and the covariance of one outcome around its mean: (..., n, K, M, M)."""
        belief = self.beliefs(evidence, offer) if self.has_numbers else None
        means = self.means(evidence, offer, belief)
        K, M = means.draws.shape[-2:]
        few = posterior_draws.unproven(evidence.cells, K, M, offer.control)
        flat = means.draws.reshape(*means.draws.shape[:-2], K * M)
        theta = flat.mean(-2)
        centred = flat - theta[..., None, :]
        fit = Fit(
            theta,
            np.matmul(np.swapaxes(centred, -1, -2), centred) / (flat.shape[-2] - 1),
            np.full(theta.shape[:-1], np.sqrt(chdtri(K * M, self.delta))),
            None,
            pulls[..., None, :],
            round,
            1.0,
            draws=flat,
            unproven=few.reshape(*few.shape[:-2], K * M),
            bounds=np.tile(np.stack([means.low, means.high]), K),
        )
        variance = posterior_draws.variances(self.kinds, means, theta.reshape(*theta.shape[:-1], K, M))
        noise = variance[..., None] * np.eye(M)
        return fit, noise if belief is None else np.where(noise > 0, noise, belief.residual)

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """One metric is enough."""
        del preference
        return np.asarray(observed.any(-1))

    def lost_digits(self, before: FieldEvidence, after: FieldEvidence) -> bool:
        """Of the sums of squares."""
        some = after.cells.count[..., None] > 0
        return bool((some & (after.cells.squares < LOST_SHARE * before.cells.squares)).any())

    def theta(self, evidence: FieldEvidence) -> FloatArray:
        """The coefficients that all users share, in standardised units: (..., M P)."""
        theta = self.ready(evidence).fitted.theta
        return theta.reshape(*theta.shape[:-2], -1)

    def coefficients(self, shape: Shape) -> int:
        """Of the table of means."""
        return shape.K * shape.M

    # For inference

    def structure(self, evidence: FieldEvidence, sizes: IntArray | None = None) -> Structure:
        """The model as it was last fitted, or with so many values of the factors."""
        values = (evidence.sizes if sizes is None else sizes).tolist()
        return _structure_of(self, tuple(values), evidence.cells.mean.shape[-1] - self.features.width)

    def beliefs(self, evidence: FieldEvidence, offer: Offer) -> Belief:
        """Mean outcomes for the users of an offer: (..., n, K, M)."""
        rows = self.features.prediction_rows(offer, evidence.season)
        return belief(self.structure(evidence), evidence.fitted, evidence.cells, *rows, alike=self.promise == "alike")

    def means(
        self,
        evidence: FieldEvidence,
        offer: Offer,
        gaussian: Belief | None = None,
        *,
        alike: bool | None = None,
        season: int | None = None,
    ) -> posterior_draws.Means:
        """Draws of mean outcomes for the users of an offer, or users alike, in an average season or this one.

        Without `alike` as the learner promises: (..., n, S, K, M).
        """
        if evidence.drawn is None:
            raise InputError("there are draws only where some metric is not a plain number")
        alike = self.promise == "alike" if alike is None else alike
        structure = self.link_structure(evidence)
        averaged = [] if season is not None else ["season"]
        if alike and structure.cluster not in averaged:
            averaged.append(structure.cluster)
        return posterior_draws.means(
            structure,
            evidence.drawn,
            self.kinds,
            self.sizes,
            evidence.cells,
            evidence.fitted.scale,
            self.features.prediction_rows(offer, evidence.season if season is None else season),
            gaussian or (self.beliefs(evidence, offer) if self.has_numbers else None),
            tuple(averaged),
        )

    def link_structure(self, evidence: FieldEvidence) -> Structure:
        """The model of metrics that are not numbers: the same terms, with priors for a logit or log scale."""
        return _on_link_scale(self.structure(evidence), repeats=bool(evidence.repeats))

    # Parts

    def _measured(self, evidence: FieldEvidence) -> FieldEvidence:
        """The scale of all outcomes, without the Gaussian model: it is fitted when a report asks for it."""
        structure = self.structure(evidence, evidence.seen)
        cells = self._compact(evidence.cells, structure)
        scale = measure(cells, structure)
        fitted = replace(evidence.fitted, scale=scale)
        return replace(evidence, cells=cells, fitted=fitted, sizes=evidence.seen, fitted_count=0, included=-1)

    def _drawn(self, evidence: FieldEvidence) -> FieldEvidence:
        """The metrics that are not numbers fitted to all outcomes."""
        cells, before = evidence.cells, evidence.drawn
        if self.kind == "people":
            user = FACTORS.index("user")
            most = [np.bincount(np.maximum(k, 0), n).max(initial=0) for k, n in _by_member(cells, user)]
            evidence = replace(evidence, repeats=int(max(most, default=0) > 1))
        structure = self.link_structure(evidence)
        families = (structure.families[k] for layout in (structure.common, structure.own) for k in layout.members)
        by = {name for f in families for name in f.by}
        cells = replace(cells, keys=cells.keys * [name in by for name in structure.factors])  # all others share cells
        cells = self._compact(cells, structure)
        made = posterior_draws.fit(structure, cells, evidence.fitted.scale, self.kinds, self.sizes, before)
        count = int(evidence.cells.count.max(initial=0))
        return replace(evidence, drawn=made, drawn_count=count, drawn_season=evidence.season)

    def _compact(self, cells: Cells, structure: Structure) -> Cells:
        """Sorted and merged."""
        return cells.compact(structure.cluster_place, self.exact)

    def _fit(self, structure: Structure, cells: Cells) -> tuple[Cells, IntegratedPosterior]:
        """Variances and everything else from these outcomes, which are sorted."""
        cells = self._compact(cells, structure)
        scale = measure(cells, structure)
        if not cells.used:
            return cells, variance_components.fit(structure, None, scale, cells.batch)
        design = make_design(structure, cells, scale, self.discount).on_columns_in_use()
        pair = add_binary_pseudo_outcomes(cells, scale, structure.covariates, structure.ranges)
        return cells, variance_components.fit(structure, design, scale, cells.batch, pair)

    def _outcome_rows(
        self, evidence: FieldEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int
    ) -> list[Rows]:
        season = max(evidence.season, 0) - late
        if not self.seasons and self.discount == 1:  # all seasons share a cell where none differs from another
            season = self.past[0] if season >= self.past[0] else 0
        return self.features.outcome_rows(offer, action, outcome, season, self.structure(evidence).metrics)


def _has_no_new_columns(evidence: FieldEvidence, structure: Structure) -> bool:
    """Whether outcomes that wait have only columns that the fit has."""
    fitted = evidence.fitted.theta.shape[-1]
    return len(columns_of_fit(structure, evidence.cells)) == fitted


def _by_member(cells: Cells, factor: int) -> list[tuple[IntArray, FloatArray]]:
    own = cells.live()
    return [(own.keys[(*member, ..., factor)], own.n[member]) for member in np.ndindex(*own.batch)]


@lru_cache(maxsize=1024)
def _on_link_scale(structure: Structure, *, repeats: bool) -> Structure:
    families = on_link_scale(structure.families)
    if not repeats:
        families = tuple(f for f in families if "user" not in f.by)
    return replace(structure, families=families)


@lru_cache(maxsize=4096)
def _structure_of(learner: Field, sizes: tuple[int, ...], metrics: int) -> Structure:
    """The structure for so many values of each factor; last 1 if some users are in no group."""
    *counts, ungrouped = sizes
    named = dict(zip(learner.features.factors, counts, strict=True))
    people, grouped = learner.kind == "people", named["group"] > 0
    named["group"] = max(named["group"], 1)
    if not learner.seasons:
        named["season"] = 1
    # The number of clusters does not matter, so that it must not make a new structure.
    if people:
        cluster, named["member"] = "user", 1
        named["user"] = min(named["user"], named["group"] + 1)
        if named["user"] <= named["group"] or not grouped:  # each user is a group: none has columns
            named["user"] = named["group"] = 1
    else:
        named["user"], each = 1, 1 + named["arm"] + sum(learner.doses)
        few = named["group"] * named["member"] * each <= max(FEW_COLUMNS, named["season"] * each)
        cluster = "season" if few and learner.promise == "each" else "group"
        named[cluster] = 1
    return _made(learner, tuple(named.values()), metrics, cluster, ungrouped=bool(people and grouped and ungrouped))


@lru_cache(maxsize=1024)
def _made(learner: Field, sizes: tuple[int, ...], metrics: int, cluster: str, *, ungrouped: bool) -> Structure:
    features = learner.features
    named = dict(zip(features.factors, sizes, strict=True))
    arms = named["arm"]
    if learner.kind == "people":
        families = people_families(features.terms, named, seasons=learner.seasons, ungrouped=ungrouped)
    else:
        families = field_families(features.terms, named, seasons=learner.seasons)
    if features.past:
        families += past_families(field=learner.kind == "field", seasons=learner.seasons)
    return Structure(
        families=families,
        factors=features.factors,
        sizes=tuple(n if name in FIXED else n + 1 for name, n in named.items()),
        cluster=cluster,
        covariates=features.width,
        metrics=metrics,
        noise_groups=(arms + features.past if learner.noise == "arm" else 1, 1 << len(features.noisy)),
        ranges=learner.ranges or ((-np.inf, np.inf),) * metrics,
        spreads=learner.spreads,
        reference=learner.reference,
        ungrouped=ungrouped,
        unscaled=features.terms.doses,
    )


@final
@dataclass(frozen=True)
class Features:
    """Roles of the covariates and categories of a unit."""

    covariates: Roles
    categories: Roles
    attributes: int  # numbers that describe an arm
    past: bool = False  # whether there are outcomes of arms that are not offered
    sizes: tuple[int, ...] = ()  # metrics with sizes: two columns each behind the others, which no term uses
    doses: tuple[int, ...] = ()  # columns of each dose, behind the other attributes

    @cached_property
    def factors(self) -> tuple[str, ...]:
        return factors_of(len(self.categories), past=self.past)

    @cached_property
    def noisy(self) -> tuple[int, ...]:
        """The covariates that scale the noise: each splits it at its typical value."""
        return _with_role("noise", self.covariates)

    @cached_property
    def width(self) -> int:
        return self.described + 2 * len(self.sizes)

    @cached_property
    def described(self) -> int:
        """Numbers that describe the unit and the arm."""
        return len(self.covariates) + self.attributes

    @cached_property
    def terms(self) -> Terms:
        """By the numbers of covariates and categories."""
        first = self.described - sum(self.doses)
        lines = tuple(first + sum(self.doses[:i]) for i in range(len(self.doses)))
        doses = tuple(range(first, self.described))
        return Terms(
            level=_with_role("level", self.covariates),
            effects=_with_role("effects", self.covariates),
            attributes=(*range(len(self.covariates), first), *lines),
            bends=tuple(i for i in doses if i not in lines),
            doses=doses,
            categories=_with_role("level", self.categories),
            category_effects=_with_role("effects", self.categories),
        )

    def prediction_rows(self, offer: Offer, season: int) -> tuple[IntArray, FloatArray]:
        """The factors and covariates of all arms of each offer: (..., n, K, F) and (..., n, K, c)."""
        unit, arms = offer.unit or Unit(user=offer.user, group=offer.user), offer.control.shape[-1]
        parts = [a.shape[:-1] for a in (unit.levels, unit.covariates) if a is not None]
        if offer.attributes is not None:
            parts.append(offer.attributes.shape[:-2])
        lead = np.broadcast_shapes(*parts, *(np.shape(getattr(unit, name)) for name in PLACES))
        keys, z = self._of_unit(unit, max(season, 0), np.zeros(lead, np.intp), arms)
        keys, z = np.repeat(keys[..., None, :], arms, -2), np.repeat(z[..., None, :], arms, -2)
        keys[..., FACTORS.index("arm")] = np.arange(arms)
        if self.attributes:
            z[..., len(self.covariates) : self.described] = self._attributes(offer)
        return keys, z

    def outcome_rows(self, offer: Offer, action: IntArray, outcome: Outcome, season: int, metrics: int) -> list[Rows]:
        """The outcomes of decisions, and those of control plots as decisions for the control.

        An action beyond the arms of the offer is an arm of the past.
        """
        unit = offer.unit or Unit(user=offer.user, group=offer.user)
        y = outcome.vector if outcome.vector is not None else np.asarray(outcome.reward)[..., None]
        parts = [(action, y, outcome.observed)]
        if outcome.control is not None:
            plot = np.broadcast_to(offer.control.argmax(-1), action.shape)
            parts.append((plot, outcome.control, outcome.control_observed))
        rows = []
        for arm, values, observed in parts:
            if observed is not None and not observed.any():
                continue
            keys, z = self._of_unit(unit, season, arm, offer.control.shape[-1])
            if self.attributes:
                all_arms = self._attributes(offer)
                all_arms = np.broadcast_to(all_arms, (*arm.shape, *all_arms.shape[-2:]))
                offered = arm < all_arms.shape[-2]  # an arm of the past is taken as an average one
                own = np.take_along_axis(all_arms, np.where(offered, arm, 0)[..., None, None], -2)[..., 0, :]
                z[..., len(self.covariates) : self.described] = np.where(offered[..., None], own, 0.0)
            if self.sizes:
                size = np.ones(len(self.sizes)) if outcome.size is None else outcome.size
                own = values if observed is None else np.where(observed, values, 0.0)
                z[..., self.described :: 2], z[..., self.described + 1 :: 2] = size, size * own[..., self.sizes]
            rows.append(make_rows(keys, z, values, observed, (len(self.factors), self.width, metrics)))
        return rows

    def _of_unit(self, unit: Unit, season: int, arm: IntArray, arms: int) -> tuple[IntArray, FloatArray]:
        """Factors and covariates of decisions for these of so many arms (..., n); their attributes are left at 0."""
        needed = (
            ("categories", unit.levels, len(self.categories)),
            ("covariates", unit.covariates, len(self.covariates)),
        )
        for name, given, n in needed:
            if n and (given is None or given.shape[-1] != n):
                got = "none" if given is None else str(given.shape[-1])
                raise InputError(f"the model uses {n} {name}: give the offer a unit with them, got {got}")
        keys = np.zeros((*arm.shape, len(self.factors)), np.intp)
        z = np.zeros((*arm.shape, self.width))
        for name in PLACES:
            keys[..., FACTORS.index(name)] = getattr(unit, name)
        keys[..., FACTORS.index("season")], keys[..., FACTORS.index("arm")] = season, arm
        if self.categories:
            keys[..., len(FACTORS) : len(FACTORS) + len(self.categories)] = unit.levels
        if self.past:
            is_past = arm >= arms
            keys[..., FACTORS.index("arm")] = np.where(is_past, -1, arm)
            keys[..., -1] = np.where(is_past, arm - arms, -1)
        if self.covariates:
            z[..., : len(self.covariates)] = unit.covariates
            for bit, i in enumerate(self.noisy):
                keys[..., FACTORS.index("noise")] += (z[..., i] > 0).astype(np.intp) << bit
        return keys, z

    def _attributes(self, offer: Offer) -> FloatArray:
        if offer.attributes is None or offer.attributes.shape[-1] != self.attributes:
            got = "none" if offer.attributes is None else str(offer.attributes.shape[-1])
            raise InputError(
                f"the model describes arms by {self.attributes} numbers: give them as offer.attributes, got {got}"
            )
        return offer.attributes


def _with_role(role: str, roles: Roles) -> tuple[int, ...]:
    return tuple(i for i, words in enumerate(roles) if role in words)


PEOPLE = Field(kind="people", promise="alike")
