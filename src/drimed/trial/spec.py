"""A trial file, from TOML, JSON or Python: its metrics, arms, users, control, tolerance, noise and policy.

`drimed.trial.spec_faults` finds all faults at once. Fields are explained in docs/trial_file.md and in the template.
"""

from __future__ import annotations

import codecs
import hashlib
import hmac
import json
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from math import inf, isclose
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from drimed.errors import InputError, SpecError
from drimed.evaluation.stopping_rules import OF_ALL_ARMS, Kind, Shape
from drimed.records import Fault, Path

# No unit of measurement makes a number larger or smaller than this; powers of it must stay within a double.
LARGEST, SMALLEST = 1e30, 1e-30
WRONG_UNIT = 300.0  # a declared spread so many times too small for what else is declared is in another unit
TOO_LARGE = f"is too large to compute with, correct it: must be a number of at most {LARGEST:g}"
LONGEST_LEVEL = 100  # characters of a category's level
MOST_DOSES = 50  # that are made by themselves
MOST_KEY_PARTS = 20  # of a TOML key with dots; tomllib takes time with the square of them
MOST_LINES = 1000  # of one value, up to which the lines of faults are found
PAPER = 'write [model] kind = "paper"'  # the remedy for a file that only the paper's model can follow
SEASONLESS = (
    "a model without seasons takes a shift from season to season for an effect of the arms that are given more and "
    'more; leave `seasons = false` out of [model], or use evidence = "propensities"'
)
ARM, SHARES = "<arm>", "<shares>"  # the two ways to write a control, in paths of pydantic; no part of the file
CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without those that are easily mistaken for each other
CODE_LENGTH = 4  # about a million codes
CONSONANTS = "BCDFGHJKLMNPQRSTVWXZ"  # of codes of decisions: no words, dates or numbers that a spreadsheet would read

# Columns that sheets have of their own, whatever the trial; where it uses the word for nothing else; and those for
# people, which are never recorded. A column of a trial is called `metric.yield`, or `yield` in short.
OWN_COLUMNS = ("decision", "episode", "user", "plot", "block", "cohort", "group", "arm", "propensity", "reason")
CODE = "code"
GIVEN, GIVEN_REASON = "given", "given reason"
FREE_COLUMNS = ("season", "date", CODE, GIVEN, GIVEN_REASON)
NOTE_COLUMNS = ("note", "notes", "comment", "comments", "remark", "remarks")
METRIC, CONTROL, CONTEXT, ATTRIBUTE = COLUMN_PARTS = ("metric", "control", "context", "attribute")

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")


# Printable characters of Unicode without a shape of their own.
_SHAPELESS = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800}
    | {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
)


def tidy(name: str) -> str:
    """A name in Unicode's form NFKC without spaces around it: full width or decomposed letters make no twins.

    >>> tidy(" ｎorth "), tidy("Mu\N{COMBINING DIAERESIS}ller") == "Müller"
    ('north', True)
    """
    return (name if name.isascii() else unicodedata.normalize("NFKC", name)).strip(" ")


def folded(name: str) -> str:
    """The same without the difference between capital and small letters: for the names of columns."""
    return unicodedata.normalize("NFKC", tidy(name).casefold())


def hidden(name: str) -> str | None:
    """The first character that is invisible, or that changes how the others are shown; None: there is none.

    >>> hidden("nor\N{ZERO WIDTH SPACE}th"), hidden("north")
    ('U+200B', None)
    """
    return next((f"U+{ord(c):04X}" for c in name if not c.isprintable() or ord(c) in _SHAPELESS), None)


def is_whole(text: str) -> bool:
    """True if a text has no lone surrogate, which no file can hold."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def first_twice(names: Iterable[T]) -> T | None:
    """A name or number that comes again."""
    return next((name for name, n in Counter(names).items() if n > 1), None)


def short(value: object) -> str:
    """A value as a message shows it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of lists in lists
        return "something too long to show"
    return text if len(text) <= 60 else text[:57] + "..."


def control_plot(metric: str) -> str:
    """The name of the control plot's value of a metric."""
    return f"{CONTROL}.{metric}"


def _must(what: str, holds: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(f"must {what}")
        return value

    return check


def _tidied(value: Any) -> Any:
    return tidy(value) if isinstance(value, str) else value


def _visible(name: str) -> str:
    if (character := hidden(name)) is not None:
        raise ValueError(f"must not have a character that cannot be seen or acts on others ({character})")
    return name


def _unlike(values: Any) -> Any:
    """A list, or a table of lists, without repeated values."""
    every = [v for part in values.values() for v in part] if isinstance(values, dict) else values
    if (twice := first_twice(every)) is not None:
        raise ValueError(f"must differ from each other; {twice!r} comes twice")
    return values


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _attribute_value(value: Any) -> Any:
    if isinstance(value, str) and 0 < len(value) <= LONGEST_LEVEL:
        return _visible(tidy(value))
    if not _is_number(value):
        raise ValueError(f"must be a number, or a text of at most {LONGEST_LEVEL} characters for a category")
    if not abs(value) <= LARGEST:
        raise ValueError(TOO_LARGE if value - value == 0 else "must be a finite number, or left out if it is not known")
    return float(value)


_TIDY, _VISIBLE = BeforeValidator(_tidied), AfterValidator(_visible)
# Sheets take names from here: what begins like a formula would be run by a spreadsheet.
_NAME = Field(min_length=1, max_length=100, pattern=r"^[^\s/,;\"'=+@-][^/,;\"'\x00-\x1f]*$")
Name = Annotated[str, _NAME, _TIDY, _VISIBLE]
_differ = _must("have names that differ", lambda t: not isinstance(t, dict) or first_twice(map(_tidied, t)) is None)
Named = Annotated[dict[Name, V], BeforeValidator(_differ)]  # a table with names that the file chooses
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
_large_enough = _must(f"be at least {SMALLEST:g}", lambda value: value >= SMALLEST)
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_large_enough)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Matrix = list[list[Finite]]
Text = Annotated[str, AfterValidator(_must("be text of whole characters, without lone surrogates", is_whole))]
Label = Annotated[str, _TIDY, _VISIBLE]
Level = Annotated[str, Field(min_length=1, max_length=LONGEST_LEVEL), _TIDY, _VISIBLE]
Value = Annotated[float | str, BeforeValidator(_attribute_value)]
Role = Literal["level", "effects", "noise"]
Some = Annotated[list[V], Field(min_length=1)]
Unlike = AfterValidator(_unlike)
_confidence = _must(
    "be a level between 0.5 and 1, such as 0.99, or 'anytime'",
    lambda value: value == "anytime" or (_is_number(value) and 0.5 < value < 1),
)
Confidence = Annotated[float | Literal["anytime"], BeforeValidator(_confidence)]
Control = Annotated[
    Annotated[Name, Tag(ARM)] | Annotated[Named[NotNegative], Tag(SHARES)],
    Discriminator(lambda value: ARM if isinstance(value, str) else SHARES if isinstance(value, dict) else None),
]
Count = Annotated[int, Field(ge=1)]
_looks = _must(
    "be 'season', 'by hand', or a number of decisions",
    lambda value: value in ("season", "by hand") or (_is_number(value) and isinstance(value, int) and value >= 1),
)
Looks = Annotated[Literal["season", "by hand"] | Count, BeforeValidator(_looks)]
_ordered = _must("go from low to high", lambda ends: ends[0] < ends[1] and max(map(abs, ends)) >= SMALLEST)
Range = Annotated[tuple[Finite, Finite], AfterValidator(_ordered)]


class Part(BaseModel):
    """A section of the file: an unknown field is an error, and so is a number in quotes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, serialize_by_alias=True)


class Metric(Part):
    """A measurement that every decision gets."""

    unit: Text = ""
    # A number; yes or no; a count; or a score, which lies in its range. Other models than the paper's.
    kind: Literal["number", "yes/no", "count", "score"] = "number"
    # What outcomes are counted out of: plants (7 of 20 have it), or the exposure of a count (12 in 3.5 ha).
    of: Text | None = None
    # Plausible values: others must be confirmed. In the paper's model they also tell the learner what is large.
    range: Range | None = Field(None, strict=False)
    # Deviation of two outcomes of one unit under one arm: a prior, so that a trial may explore from its first decision.
    spread: Positive | None = None
    better: Literal["higher", "lower"] = "higher"  # the direction that a guardrail protects
    typical: Finite | None = None  # under the control: a rate, a count or a score that rehearsals assume
    detection: Positive | None = None  # a limit below which a number is only known to lie: "<0.5"

    @property
    def ends(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.kind == "yes/no" else self.range

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest possible value: a number's range is of plausible ones only."""
        return {"number": (-inf, inf), "count": (0.0, inf)}.get(self.kind, self.ends or (-inf, inf))


class Reward(Part):
    """The weighted sum of the metrics, by the weights of each user."""

    unit: Text = ""  # such as EUR/ha; weights turn a metric's unit into it


class Arm(Part):
    """A treatment with its own effects, described by attributes, or by an explicit Phi(a)."""

    about: Text = ""
    attributes: Annotated[Named[Finite], Field(min_length=1)] | None = None
    map: Matrix | None = None  # M rows of d numbers

    @property
    def kind(self) -> str:
        """The way its effects are described."""
        return "attributes" if self.attributes is not None else "map" if self.map is not None else "own effects"


class Dose(Part):
    """An attribute of the arms to which outcomes respond smoothly; with three numbers it makes the arms itself."""

    unit: Text = ""
    lowest: Finite | None = Field(None, alias="from")
    to: Finite | None = None
    step: Positive | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Dose:
        if len({end is None for end in (self.lowest, self.to, self.step)}) > 1:
            raise ValueError("needs from, to and step together: the lowest dose, the highest, and from one to the next")
        steps = 2.0 if self.steps is None else self.steps
        if not (2 <= round(steps) < MOST_DOSES and isclose(steps, round(steps))):
            text = f"must go from `from` to `to` in 2 to {MOST_DOSES - 1} whole steps"
            raise ValueError(f"{text}; these numbers make {steps:.6g}")
        return self

    @property
    def steps(self) -> float | None:
        """From the lowest dose to the highest; None: it makes no arms."""
        if self.lowest is None or self.to is None or self.step is None:
            return None
        return (self.to - self.lowest) / self.step

    def arms(self, name: str) -> dict[str, Any]:
        """The arms that it makes.

        >>> [*Dose.model_validate({"from": 0.0, "to": 0.3, "step": 0.1}).arms("lime")]
        ['lime 0', 'lime 0.1', 'lime 0.2', 'lime 0.3']
        """
        lowest, step = self.lowest or 0.0, self.step or 0.0
        values = [] if self.steps is None else [lowest + i * step for i in range(round(self.steps) + 1)]
        texts = [f"{value:.12g}" for value in values]
        return {f"{name} {text}": {"attributes": {name: float(text)}} for text in texts}


class Cohort(Part):
    """Defaults of users that join."""

    preference: Named[Finite] | None = None  # weights of metrics in the reward; negative ones are costs
    control: Control | None = None
    arms: list[Name] | None = None  # where not all arms are possible
    group: Label | None = None  # a site, farm or clinic: its users have something in common
    metrics: Annotated[list[Name], Field(min_length=1)] | None = None  # where not all of them are measured


class User(Cohort):
    """A person or a place that decisions are made for."""

    cohort: Name | None = None  # whose defaults it takes
    attributes: Named[Value] | None = None  # numbers, or texts for categories
    # Block -> its plots, each of which gets a decision of its own; or plots without blocks.
    blocks: Annotated[Named[Some[Name]], Field(min_length=1), Unlike] | None = None
    plots: Annotated[Some[Name], Unlike] | None = None

    def block_of(self) -> dict[str, str | None]:
        """Its plots, each with its block; empty where there is one decision for all of it."""
        if self.blocks is not None:
            return {plot: block for block, plots in self.blocks.items() for plot in plots}
        return dict.fromkeys(self.plots or ())


class Tolerance(Part):
    """The allowed shortfall against the control: relative |control| + absolute, in the user's reward unit."""

    relative: Share = 0.1
    absolute: NotNegative = 0.0
    # To units like this one, with the same attributes, group and history, or to each itself; None: alike for people.
    promise: Literal["alike", "each"] | None = Field(None, alias="for")


class Guardrail(Part):
    """A metric that must stay near the control's, whatever the preferences."""

    metric: Name
    relative: Share = 0.05
    absolute: NotNegative = 0.0


class Floors(Part):
    """Least probabilities, so that effects can be estimated without a model."""

    control: Share = 0.0  # of each user's control
    arms: Share = 0.0  # of every arm that the user can get
    # A user with as many plots as arms has its control on one of them, as long as it may be its best arm.
    plot: Literal["open", "always", "never"] = "open"
    shrink: Share = 0.0  # after n decisions a floor is its height times (n + 1) ** -shrink; 0: constant
    count: Literal["all", "user"] = "all"  # n counts all decisions of the trial, or those of this user
    until: Name | None = None  # a stopping rule: once it is met the floor ends, for those for whom it is met

    def heights(self) -> dict[str, Any]:
        """All but when they end."""
        return self.model_dump(exclude={"until"})


class StoppingRule(Part):
    """A question about the arms, when it counts as answered, and what happens then."""

    kind: Kind
    arm: Name | None = None  # None: each arm but the control
    group: Label | None = None  # at most one of group, user and each; none: all users together
    user: Name | None = None
    each: Literal["group", "user"] | None = None  # every group, or every user, is a question of its own
    metric: Name | None = None  # None: the reward
    margin: NotNegative = 0.0  # in the unit of what is measured
    # Ranges from the propensities in large samples; from these and the metrics' ranges, exactly; from the model, at all
    # times; or from the model at planned looks only, by a bound from rehearsals of the trial or from theory.
    evidence: Literal["propensities", "exact", "model", "calibrated", "spending"] = "propensities"
    shape: Shape | None = None  # of that bound over the looks; None: it stays as it is
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95  # one minus the false-claim rate of the rule
    then: Literal["advise", "pause", "stop", "drop"] = "advise"  # drop: the arm is retired

    @property
    def on_model(self) -> bool:
        return self.evidence in ("model", "calibrated", "spending")

    @property
    def is_planned(self) -> bool:
        """Whether it may be met at planned looks only."""
        return self.evidence in ("calibrated", "spending")

    @property
    def of_all_arms(self) -> bool:
        """Whether it claims something of all arms at once: not where each arm is dropped by itself."""
        return self.kind in OF_ALL_ARMS and self.then != "drop"


class Stopping(Part):
    """The end of a trial: rules, and the largest numbers of seasons and decisions."""

    rules: Named[StoppingRule] = Field(default_factory=dict)
    seasons: Count | None = None
    decisions: Count | None = None
    # When the rules are evaluated by themselves: before each season, after so many decisions, or never.
    looks: Looks = "season"
    first: Count | None = None  # seasons or decisions before the first look; None: as many as between two looks

    def planned(self) -> tuple[int, ...]:
        """Seasons or decisions after which looks are planned; empty: nothing says how many there will be.

        >>> Stopping(looks=100, first=300, decisions=550).planned()
        (300, 400, 500, 550)
        """
        last = self.seasons if self.looks == "season" else self.decisions
        if last is None or self.looks == "by hand":
            return ()
        step = self.looks if isinstance(self.looks, int) else 1
        return (*range(self.first or step, last, step), last)

    def plain(self) -> dict[str, Any]:
        """As JSON data, without defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Blinding(Part):
    """Codes in place of arms, for people who must not know them."""

    # Of arms, arm -> code, or (None) drawn; or each decision has one of its own, which tells nothing of its arm.
    codes: Named[Name] | Literal["decision"] | None = None
    show_codes: bool = False  # whether blinded people see the code of each decision, as on coded packages

    def decision_code(self, seed: int, decision: int) -> str:
        """The code of a decision: its number behind letters that cannot be guessed, so that a mistyped one is found.

        >>> Blinding(codes="decision").decision_code(7, 12)
        'VNHG-12'
        """
        return f"{_coded(seed, f'code of decision {decision}', CONSONANTS)}-{decision}"

    def arm_codes(self, seed: int, arms: Sequence[str]) -> dict[str, str]:
        """The code of each arm: from the file, or drawn from the seed so that it tells nothing about arm or seed."""

        def drawn(arm: str) -> Iterator[str]:
            for attempt in count():
                yield _coded(seed, f"code of arm {attempt} {arm}", CODE_LETTERS)

        codes, declared = dict[str, str](), self.codes if isinstance(self.codes, dict) else {}
        taken = {folded(text) for text in (*arms, *declared.values())}
        for arm in arms:
            codes[arm] = declared.get(arm) or next(c for c in drawn(arm) if folded(c) not in taken)
            taken.add(folded(codes[arm]))
        return codes


def _coded(seed: int, message: str, letters: str) -> str:
    digest = hmac.new(seed.to_bytes(8, "big"), message.encode(), hashlib.sha256).digest()
    return "".join(letters[byte % len(letters)] for byte in digest[:CODE_LENGTH])


class Holdout(Part):
    """Users who stay on the control for the whole trial: chance alone tells them from those the policy decides for."""

    share: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]  # each user's chance to be one of them


class Model(Part):
    """Differences besides those between arms, and how they are learned."""

    kind: Literal["field", "people", "paper"] = "field"
    seasons: bool = True  # outcomes shift from season to season
    noise: Literal["common", "arm"] = "common"  # whether all arms scatter alike
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0  # per season; 1 keeps everything
    # Whether an outcome tells of the arm that was given or of the one that was drawn, where these differ. None: given,
    # but drawn for people, who may choose by what they expect: then only the arm drawn is not mixed up with that.
    learns: Literal["given", "drawn"] | None = None
    # Whether the arms of a season are spread evenly over sites and blocks; None: in fields, but not with an exact rule.
    balanced: bool | None = None


class History(Part):
    """Outcomes from before the trial, and what they may teach of effects; levels and variances they always teach."""

    file: Text | None = None  # beside the trial file
    sheet: Text | None = None  # or the sheet itself, where no file can come along: as text with separators
    arms: Literal["random", "chosen"] = "chosen"  # how arms were given then
    # Each row counts so many times, and tells of effects too; None: 1, and of effects only if arms were random.
    discount: Annotated[float, Field(gt=0, le=1)] | None = None

    @property
    def weight(self) -> float:
        return float(self.arms == "random") if self.discount is None else self.discount


class Attribute(Part):
    """A property of users: a number, or a category."""

    unit: Text = ""
    levels: Annotated[list[Level], Unlike] | None = None  # of a category; empty: whatever comes
    typical: Finite | None = None  # None: the mean of the file's users
    spread: Positive | None = None  # None: their standard deviation
    affects: Annotated[list[Role], Unlike] | None = None  # None: level and effects


class ContextField(Part):
    """A property of a decision: a number, of which (value - typical) / spread counts, or a level of a category."""

    unit: Text = ""
    levels: Annotated[Some[Level], Unlike] | None = None  # of a category
    typical: Finite = 0.0
    spread: Positive = 1.0
    # None: level and effects; in the paper's model the noise, and nothing else
    affects: Annotated[list[Role], Unlike] | None = None


class ArmNoise(Part):
    """The noise of one arm, in the units of the metrics."""

    sd: Named[Positive] | None = None
    covariance: Matrix | None = None


class Noise(ArmNoise):
    """The noise of outcomes: learned from the data, or known."""

    kind: Literal["learned", "known"] = "learned"
    arms: Named[ArmNoise] = Field(default_factory=dict)  # where an arm differs from the others
    # The covariance is multiplied by: 1, 1 + |context|, or a context field's own (unscaled) value.
    scale: Label = "constant"
    level: Positive = 1.0  # and by this


class PolicyPart(BaseModel):
    """The policy and its settings, as `drimed policies` lists them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "dri_med"

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TrialSpec(Part):
    """A whole trial.

    >>> spec = TrialSpec.read({"name": "t", "metrics": {"yield": {}}, "arms": {"old": {}, "new": {}}, "control": "old",
    ...                        "preference": {"yield": 1.0}, "users": {"north": {}}, "tolerance": {"absolute": 0.1}})
    >>> spec.policy.name
    'dri_med'
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    about: Text = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None  # of the policy's draws; None: drawn at creation
    feedback: Literal["absolute", "difference"] = "absolute"
    decisions: Literal["one per episode", "any number"] = "one per episode"
    metrics: Annotated[Named[Metric], Field(min_length=1)]
    reward: Reward = Field(default_factory=Reward)
    arms: Annotated[Named[Arm], Field(min_length=1)]
    doses: Named[Dose] = Field(default_factory=dict)
    users: Named[User] = Field(default_factory=dict)
    cohorts: Named[Cohort] = Field(default_factory=dict)
    enrolment: Literal["open", "closed"] | None = None  # None: open for people, closed otherwise
    attributes: Named[Attribute] = Field(default_factory=dict)
    preference: Named[Finite] | None = None  # of users that give none
    control: Control | None = None  # of users that give none
    # earn: as much as possible while learning; find: an answer about every arm, at the price of more regret.
    goal: Literal["earn", "find"] = "earn"
    tolerance: Tolerance = Field(default_factory=lambda: Tolerance.model_validate({}))
    guardrails: list[Guardrail] = Field(default_factory=list)
    floors: Floors | None = None
    blinding: Blinding | None = None  # None: there are no codes
    stopping: Stopping | None = None
    holdout: Holdout | None = None
    confidence: Confidence = 0.99
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.01  # for confidence "anytime": the promise fails at most so often
    context: Named[ContextField] = Field(default_factory=dict)
    model: Model = Field(default_factory=Model)
    history: History | None = None
    noise: Noise = Field(default_factory=Noise)
    policy: PolicyPart = Field(default_factory=PolicyPart)

    @property
    def rules(self) -> dict[str, StoppingRule]:
        return {} if self.stopping is None else self.stopping.rules

    @property
    def calibrated(self) -> dict[str, StoppingRule]:
        """Rules whose bound comes from rehearsals of the trial."""
        return {name: rule for name, rule in self.rules.items() if rule.evidence == "calibrated"}

    @property
    def has_exact_rule(self) -> bool:
        return any(rule.evidence == "exact" for rule in self.rules.values())

    @property
    def confounds_seasons_with_arms(self) -> bool:
        """True if its model takes the effect of a season for effects of the arms given more often in it."""
        one_season = self.stopping is not None and self.stopping.seasons == 1
        return self.kind != "paper" and not self.model.seasons and not one_season

    @property
    def has_one_season(self) -> bool:
        """True if all decisions of a field will be of one season, to which its model gives effects of its own."""
        one_season = self.stopping is not None and self.stopping.seasons == 1
        return one_season and self.kind == "field" and self.model.seasons

    @cached_property
    def kind(self) -> str:
        """Of the model: field, people or paper."""
        return self.model.kind

    @property
    def learns(self) -> str:
        """From the arm `given`, or the arm `drawn`."""
        return self.model.learns or ("drawn" if self.kind == "people" else "given")

    @property
    def past_weight(self) -> float:
        """The weight of each row of the history for effects of arms; 0: they tell of levels and variances alone."""
        return 0.0 if self.history is None else self.history.weight

    @property
    def promise(self) -> str:
        """To whom the tolerance holds: units `alike`, or `each` unit."""
        return self.tolerance.promise or ("alike" if self.kind == "people" else "each")

    @cached_property
    def enrols(self) -> bool:
        """True if asking for an unknown user enrols it."""
        return self.enrolment == "open" or (self.enrolment is None and self.kind == "people")

    def size(self, metric: str) -> float:
        """The worth of one of the learner's units: only the paper's model must be told."""
        reach = self.metrics[metric].range
        return 1.0 if reach is None or self.kind != "paper" else max(map(abs, reach))

    @property
    def has_kinds(self) -> bool:
        return any(metric.kind != "number" for metric in self.metrics.values())

    @property
    def cancels(self) -> bool:
        """True if only differences to control plots are learned from, so that the control's level is lost."""
        return self.feedback == "difference" and self.kind == "paper"

    def resolved(self, user: User) -> Cohort:
        """The user's own values, or its cohort's, or the trial's; a single metric needs no weight."""
        single = {m: 1.0 if part.better == "higher" else -1.0 for m, part in self.metrics.items()}
        preference = single if self.preference is None and len(single) == 1 else self.preference
        cohort, trial = self.cohorts.get(user.cohort or "", Cohort()), (preference, self.control, *[None] * 3)
        values: dict[str, Any] = {
            name: next((v for v in (getattr(user, name), getattr(cohort, name), default) if v is not None), None)
            for name, default in zip(Cohort.model_fields, trial, strict=True)
        }
        return Cohort.model_construct(**values)

    def plain(self) -> dict[str, Any]:
        """As JSON data, without defaults; the model is always named."""
        named = {"kind": self.model.kind} | self.model.model_dump(mode="json", exclude_defaults=True)
        return self.model_dump(mode="json", exclude_defaults=True) | {"model": named}

    @staticmethod
    def read(data: object, text: str = "") -> TrialSpec:
        """A spec from plain data; SpecError lists every fault, with its line if `text` is the TOML of the data."""
        from drimed.trial.spec_faults import pydantic_faults, rest_faults, spec_faults  # they know specs

        if _is_deeper(data, MOST_LEVELS):
            raise SpecError([Fault((), f"tables and lists are nested more than {MOST_LEVELS} levels deep")])
        if isinstance(data, Mapping):  # a rehearsal's assumptions are in the file, but not of the trial
            data = _with_arms_of_doses({name: part for name, part in data.items() if name != "scenarios"})
        try:
            spec = TrialSpec.model_validate(data)
            faults = spec_faults(spec)
        except ValidationError as error:
            unreadable = pydantic_faults(error)
            if any(f.path[:1] == ("doses",) for f in unreadable):  # they would make the arms
                unreadable = [f for f in unreadable if f.path != ("arms",)]
            faults = [*unreadable, *rest_faults(data, unreadable)]
        if faults:
            raise SpecError(with_lines(text, faults))
        return spec

    @staticmethod
    def load(path: FilePath | str) -> TrialSpec:
        text, data = read_file(FilePath(path))
        return TrialSpec.read(data, text)

    @staticmethod
    def parse(text: str, form: Literal["toml", "json"] = "toml") -> TrialSpec:
        """A spec from the text of a file; the faults of TOML have lines."""
        text = text.removeprefix("\ufeff")
        return TrialSpec.read(parse_json(text)) if form == "json" else TrialSpec.read(parse_toml(text), text)


def _with_arms_of_doses(data: dict[str, Any]) -> dict[str, Any]:
    """A file with the arms that a dose makes, which is a dose like any other then."""
    doses = data.get("doses")
    if "arms" in data or not isinstance(doses, Mapping):
        return data
    for name, table in doses.items():
        try:
            dose = Dose.model_validate(table)
        except ValidationError:  # a fault of the file, which is found with the others
            continue
        if arms := dose.arms(name):
            return data | {"arms": arms, "doses": {**doses, name: {"unit": dose.unit}}}
    return data


def _is_deeper(data: object, levels: int) -> bool:
    inside = data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ()
    return any(levels == 0 or _is_deeper(part, levels - 1) for part in inside)


# Texts of files

MOST_LEVELS = 20  # of tables and lists in each other
SAVE = "save it as text in UTF-8 (in spreadsheet programs: “CSV UTF-8”)"
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "UTF-8", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_UNQUOTED = re.compile(r"\s*\[([^\[\]\"'#]+)\]")  # a heading
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:["']?[\w-]+["']?[ \t]*\.[ \t]*){{{MOST_KEY_PARTS},}}""")


def decode(data: bytes, name: str, *, assume: bool = True) -> tuple[str, str]:
    """The text of a file, and the encoding that was assumed: Windows-1252 for what is not UTF; empty: none was."""
    if data.startswith(b"%PDF"):  # others have characters that no text has
        raise InputError(f"{name} is a PDF and not a text; {SAVE}")
    marked = next((e for mark, e in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None)
    encoding, assumed = marked or "UTF-8", ""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if marked or not assume:
            raise InputError(f"{name} is not {encoding}: byte {error.start} cannot be read; save it as UTF-8") from None
        text, assumed = data.decode("cp1252", errors="replace"), "Windows-1252"
    if "\x00" in text if not assumed else any(c == "\ufffd" or (c < " " and c not in "\t\r\n") for c in text):
        raise InputError(f"{name} is not a text in UTF-8 or Windows-1252; {SAVE}")
    return text.removeprefix("\ufeff"), assumed


def read_file(path: FilePath) -> tuple[str, Any]:
    """The text of a TOML file (of JSON none, as its values have no lines), and its data."""
    try:
        text = decode(path.read_bytes(), str(path), assume=False)[0]
    except OSError as error:
        raise SpecError([Fault((), f"cannot read {path}: {error.strerror or error}")]) from None
    except InputError as error:
        raise SpecError([Fault((), str(error))]) from None
    return ("", parse_json(text)) if path.suffix.lower() == ".json" else (text, parse_toml(text))


def parse_json(text: str) -> Any:
    """The data, or a SpecError with the line at which the text is not JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError([Fault((), f"not JSON: {error.msg}", error.lineno)]) from None
    except (ValueError, RecursionError):
        raise SpecError([Fault((), "not JSON: a number is too long, or lists are nested too deeply")]) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The data, or a SpecError with the line at which the text is not TOML."""
    if (long := _LONG_KEY.search(text)) is not None:
        line = 1 + text.count("\n", 0, long.start())
        raise SpecError([Fault((), f"a key must have at most {MOST_KEY_PARTS} parts with dots between them", line)])
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _AT_LINE.search(str(error))
        number = int(place[1]) if place else None
        message = _AT_LINE.sub("", str(error)).strip()
        if message.startswith("Expected ']'") and number and _UNQUOTED.match(text.split("\n")[number - 1]):
            message += "; a name with spaces, or letters other than a to z, is written in quotes"
        raise SpecError([Fault((), f"not TOML: {message}", number)]) from None
    except (ValueError, RecursionError):
        raise SpecError([Fault((), "not TOML: a number has too many digits, or lists are nested too deeply")]) from None


def with_lines(text: str, faults: Iterable[Fault]) -> list[Fault]:
    """Faults with the lines on which their values, or the deepest parts of their paths, begin."""
    lines = _lines_of_values(text)
    return [
        replace(f, line=next((lines[f.path[:n]] for n in range(len(f.path), 0, -1) if f.path[:n] in lines), None))
        for f in faults
    ]


def _lines_of_values(text: str) -> dict[Path, int]:
    """The first line of every value. A statement is as many lines as are TOML by themselves."""
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}  # how many tables each [[list of tables]] has so far
    heading, statement, start = "", "", 1

    def note(path: Path, value: Any) -> None:
        lines.setdefault(path, start)
        if statement == heading and isinstance(value, list):
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path, value = (*path, counts[path] - 1), value[0] if isinstance(value, list) else value
            lines.setdefault(path, start)
        steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for step, part in steps:
            note((*path, tidy(step) if isinstance(step, str) else step), part)

    for number, line in enumerate(text.split("\n"), 1):
        start = start if statement else number
        statement += line + "\n"
        if number - start > MOST_LINES:
            break
        begins = statement.lstrip().startswith("[")
        try:
            data = tomllib.loads(statement if begins else heading + statement)
        except tomllib.TOMLDecodeError:
            continue  # it goes on
        heading = statement if begins else heading
        note((), data)
        statement = ""
    return lines
