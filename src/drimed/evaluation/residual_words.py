"""What a check of residuals has found, in words, and what to do about it, by what the trial file says of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from drimed.errors import ConfigError

KINDS = ("paper", "field", "people")
SHIFTS = {
    "season": "outcomes shift between seasons",
    "group": "outcomes differ between groups",
    "user": "outcomes differ between users",
    "arm": "arms differ from what the model says of them",
    "season x arm": "arms do better in some seasons than in others",
    "group x arm": "arms do better in some groups than in others",
    "user x arm": "arms do better for some users than for others",
    "season x group": "groups shift against each other from season to season",
    "trend": "outcomes follow a trend over time",
}
LEVELS = {
    "season": "season level",
    "group": "group level",
    "user": "user level",
    "season x arm": "effects that vary by season",
    "group x arm": "effects that vary by group",
    "user x arm": "effects that vary by user",
    "season x group": "level for each group and season (a block)",
    "trend": "season level",
}
NEEDS = {"trend": "season"}  # the family that answers a finding of another name
MOVING = ("arm", "trend", "season x arm", "serial")  # what a discount is for: with one, these are not looked for
CONTROL_PLOTS = {"season", "group", "user", "season x group", "trend"}  # a control plot shares these levels
FORMS = {  # of checks of covariates
    "line": "outcomes follow {}",
    "curve": "outcomes follow {} along a curve",
    "levels": "outcomes differ by {}",
    "arms": "what an arm does depends on {}",
}
OUTLIER = "outlier"
NOT_SERIOUS = ("spread by ", OUTLIER, "tails", "two values", "small counts")
SCATTERS = {
    "arm": "outcomes scatter more under some arms than under others",
    "season": "outcomes scatter more in some seasons than in others",
    "group": "outcomes scatter more in some groups than in others",
    "user": "outcomes scatter more for some users than for others",
    "fitted mean": "the larger outcomes are, the more (or the less) they scatter",
}


class Covariate(NamedTuple):
    """Where a trial file declares it, such as context.rain, and what it affects there: level, effects, noise."""

    table: str
    affects: frozenset[str]


@final
@dataclass(frozen=True, kw_only=True)
class Described:
    """What a trial file says of its model, as far as checks and advice depend on it."""

    kind: str = "paper"
    terms: frozenset[str] = frozenset()  # families that the model has: "season", "group x arm", ...
    covariates: Mapping[str, Covariate] = field(default_factory=dict)
    seasons: bool = True  # false: the file says `seasons = false`
    arm_noise: bool = False  # whether each arm has its own noise
    arm_attributes: bool = False
    difference: bool = False  # there are control plots
    discount: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind must be one of {KINDS}, got {self.kind!r}")

    def family(self, name: str) -> str:
        """The family that answers a finding. Where no groups are named, every user is one."""
        found = NEEDS.get(name, name)
        alone = "group" in self.terms and "user" not in self.terms
        return found.replace("user", "group") if alone and found.startswith("user") else found


def serious(name: str) -> bool:
    """Whether ranges and promise rest on what failed."""
    return not name.startswith(NOT_SERIOUS)


def found(name: str, metric: str, size: float, place: str = "") -> str:
    """One sentence without a full stop; `size` is what the check measures, `place` names the outcome that it found."""
    if name in SHIFTS:
        return f"{metric}: {SHIFTS[name]}, by about {size:.1f} times what single outcomes scatter by"
    if name.startswith("spread by "):
        by = name.removeprefix("spread by ")
        return f"{metric}: {SCATTERS.get(by, f'how much outcomes scatter depends on {by}')}"
    if name == "serial":
        return f"{metric}: an outcome of a user resembles the one before (correlation {size:.2f})"
    if name == OUTLIER:
        return f"{metric}: one outcome lies far from all others ({place})"
    if name == "tails":
        return f"{metric}: more outcomes lie far off than a normal distribution has"
    if name == "two values":
        return f"{metric}: outcomes take two values only"
    if name == "small counts":
        return f"{metric}: outcomes are small whole numbers"
    covariate, form = name.rsplit(": ", 1)
    return f"{metric}: {FORMS[form].format(covariate)}"


def advice(name: str, model: Described) -> str:
    """What to do, without a capital or a full stop."""
    if name in LEVELS:
        return _level(name, model)
    if name == "arm":
        return _arm(model)
    if name.startswith("spread by "):
        return _spread(name.removeprefix("spread by "), model)
    if name == "serial":
        return _serial(model)
    if name == OUTLIER:
        return "check whether it was typed and measured correctly, and amend it if not"
    if name == "tails":
        return "look for outcomes of another kind among them; ranges hold in large samples only"
    if name == "two values":
        return "effects are differences of shares; ranges hold in large samples only"
    if name == "small counts":
        return "the noise grows with the mean: use the square root or a rate, or read ranges as approximate"
    covariate, form = name.rsplit(": ", 1)
    return _covariate(covariate, form, model)


def _level(name: str, model: Described) -> str:
    family, what = model.family(name), LEVELS[name]
    if family in model.terms:
        if name == "trend":
            return (
                "the model takes it for chance which season comes first: look at recent seasons alone, or add time as "
                "a covariate"
            )
        if family.startswith(("user", "group")):
            stay = "stay" if what.startswith("effects") else "stays"
            return f"the model has {_a(what)} that {stay} the same in all seasons: look for one that has changed"
        return f"the model has {_a(what)}, and it does not cover this: look at the outcomes first"
    ways = [_missing(family, model)]
    if name in CONTROL_PLOTS and model.kind != "people" and not model.difference:
        ways.append("use control plots")
    return f"the model has no {what}: {', or '.join(ways)}"


def _missing(family: str, model: Described) -> str:
    """How a model gets a family of levels or effects that it does not have."""
    if model.kind == "paper":
        return 'use [model] kind = "field"'
    if not model.seasons and family.startswith("season"):
        return "remove seasons = false from [model]"
    if model.kind == "people" and family == "season":
        return "begin a new episode from time to time, and each will have one"
    if model.kind == "people" and family.startswith("season"):
        return 'that of people has none; [model] kind = "field" has'
    return "look at the outcomes behind it"


def _arm(model: Described) -> str:
    if model.arm_attributes and "arm" not in model.terms:
        return "give the arms effects of their own instead of attributes, or add the attribute that is missing"
    return "look for an arm that has changed in the course of the trial, or that was noted for another"


def _spread(by: str, model: Described) -> str:
    declare = 'declare what scales it as a context field with affects = ["noise"]'
    if by == "arm" and not model.arm_noise:
        own = "have the noise learned for each arm" if model.kind == "paper" else 'set noise = "arm" in [model]'
        return f"{own}, or use the logarithm"
    return f"{declare}, or use the logarithm"


def _serial(model: Described) -> str:
    narrow = "outcomes of a user are not independent and ranges are too narrow"
    if model.family("user") in model.terms:
        return (
            f"{narrow}: the model has a user level that stays the same, so ask less often, or look for one that drifts"
        )
    return f'{narrow}: use [model] kind = "field", where users have levels, or ask less often'


def _covariate(covariate: str, form: str, model: Described) -> str:
    declared = model.covariates.get(covariate)
    role = "effects" if form == "arms" else "level"
    if declared is not None and role in declared.affects and model.kind != "paper":
        if form == "curve":
            return f"the model has a straight line in {covariate}: add its square or logarithm as a field of its own"
        if "effects" not in declared.affects:
            return f'the model has {covariate} for all arms alike: add "effects" to affects under [{declared.table}]'
        return f"the model has {covariate}, and it does not cover this: look at the outcomes behind it"
    if declared is None:
        return f"the model leaves it out: declare {covariate} as a context field that affects the {role}"
    how = 'use [model] kind = "field", with' if model.kind == "paper" else "add"
    end = "in" if model.kind == "paper" else "to"
    return f'the model leaves it out: {how} "{role}" {end} affects under [{declared.table}]'


def _a(what: str) -> str:
    return what if what.startswith("effects") else f"a {what}"
