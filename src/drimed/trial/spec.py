"""What a trial is: its metrics, arms, users, control, tolerance, noise and policy, as one readable file.

The same model is read from TOML, from JSON and from Python. Everything that is wrong is found at once, each fault with
its place. Fields are explained in docs/trial.md and in the template (`drimed trial template`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
)

from drimed.errors import InputError, SpecError
from drimed.evaluation.stopping_rules import Kind
from drimed.records import Fault
from drimed.trial import lines
from drimed.trial.decoding import decode_utf

# The parts of a trial file: metrics, arms, users, noise, the model and the policy, each checked by itself.


def _not_tiny(value: float) -> float:
    if value < SMALLEST:
        raise ValueError(f"must be at least {SMALLEST:g}")
    return value


def is_whole(text: str) -> bool:
    """Whether a text holds no half of a character (a lone surrogate), which no file can."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _whole(value: str) -> str:
    if not is_whole(value):
        raise ValueError("must be text of whole characters, without lone surrogates")
    return value


# Sheets take names from here: what begins like a formula would be run by a spreadsheet.
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\s/,;\"'=+@-][^/,;\"'\x00-\x1f]*$")]
# No unit of measurement makes a number larger or smaller than this; powers of it must stay within a double.
LARGEST, SMALLEST = 1e30, 1e-30
TOO_LARGE = f"is too large to compute with, correct it: must be a number of at most {LARGEST:g}"
LONGEST_LEVEL = 100  # characters of a category's level
PAPER = 'write [model] kind = "paper"'  # what to do about a file that only the paper's model can follow
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_tiny)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Matrix = list[list[Finite]]
Text = Annotated[str, AfterValidator(_whole)]


def _level(value: object) -> object:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value != "anytime" and not (number and 0.5 < value < 1):  # type: ignore[operator]  # a number by then
        raise ValueError("must be a level between 0.5 and 1, such as 0.99, or 'anytime'")
    return value


def _looks(value: object) -> object:
    number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value not in ("season", "by hand") and not number:
        raise ValueError("must be 'season', 'by hand', or a number of decisions")
    return value


def _value(value: object) -> object:
    if isinstance(value, str) and 0 < len(value) <= LONGEST_LEVEL:
        return _whole(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if abs(value) <= LARGEST:
            return float(value)
        raise ValueError(TOO_LARGE if value - value == 0 else "must be a finite number, or left out if it is not known")
    raise ValueError(f"must be a number, or a text of at most {LONGEST_LEVEL} characters for a category")


def _control_kind(value: object) -> str | None:
    return ARM if isinstance(value, str) else SHARES if isinstance(value, dict) else None


# In the paths of errors these stand for the two ways to write a control; they are no part of the file.
ARM, SHARES = "<arm>", "<shares>"

Level = Annotated[str, Field(min_length=1, max_length=LONGEST_LEVEL), AfterValidator(_whole)]
Value = Annotated[float | str, BeforeValidator(_value)]
Role = Literal["level", "effects", "noise"]
Confidence = Annotated[float | Literal["anytime"], BeforeValidator(_level)]
Control = Annotated[
    Annotated[Name, Tag(ARM)] | Annotated[dict[Name, NotNegative], Tag(SHARES)], Discriminator(_control_kind)
]


class Part(BaseModel):
    """Nothing is guessed: an unknown field is an error, and a number in quotes is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Metric(Part):
    """Something that is measured of every decision."""

    unit: Text = ""
    # Plausible values: others are asked about. In the paper's model they also tell the learner what is large.
    range: tuple[Finite, Finite] | None = Field(None, strict=False)
    better: Literal["higher", "lower"] = "higher"  # which direction a guardrail protects

    @field_validator("range")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not value[0] < value[1]:
            raise ValueError("must go from low to high")
        if value is not None and max(map(abs, value)) < SMALLEST:
            raise ValueError(f"must reach {SMALLEST:g} at least")
        return value


class Reward(Part):
    """What a user gains: the weighted sum of the metrics."""

    unit: Text = ""  # such as EUR/ha; weights turn a metric's unit into it


class Arm(Part):
    """Something that can be done: with its own effects, described by attributes, or by an explicit Phi(a)."""

    about: Text = ""
    attributes: dict[Name, Finite] | None = None
    map: Matrix | None = None  # M rows of d numbers

    @property
    def kind(self) -> str:
        """How its effects are described."""
        return "attributes" if self.attributes is not None else "map" if self.map is not None else "own effects"


class Cohort(Part):
    """What those who join have in common, where they say nothing else."""

    preference: dict[Name, Finite] | None = None  # weights of metrics in the reward; negative ones are costs
    control: Control | None = None
    arms: list[Name] | None = None  # where not all arms are possible
    group: Text | None = None  # a site, farm or clinic: its users have something in common


class User(Cohort):
    """Somebody, or some place, that a decision is made for."""

    cohort: Name | None = None  # whose defaults it takes
    attributes: dict[Name, Value] | None = None  # what is known about it: numbers, or texts for categories
    blocks: dict[Name, list[Name]] | None = None  # block -> its plots; each plot gets a decision of its own
    plots: list[Name] | None = None  # the same without blocks

    def block_of(self) -> dict[str, str | None]:
        """Its plots, each with its block; none where there is one decision for all of it."""
        if self.blocks is not None:
            return {plot: block for block, plots in self.blocks.items() for plot in plots}
        return dict.fromkeys(self.plots or ())


class Tolerance(Part):
    """How far below the control a decision may fall: relative |control| + absolute, in the user's reward unit."""

    relative: Share = 0.1
    absolute: NotNegative = 0.0


class Guardrail(Part):
    """A metric that must stay near the control's, whatever the preferences."""

    metric: Name
    relative: Share = 0.05
    absolute: NotNegative = 0.0


class Floors(Part):
    """Least probabilities, so that effects can be told without a model."""

    control: Share = 0.0  # of each user's control
    arms: Share = 0.0  # of every arm that the user can get
    shrink: Share = 0.0  # after n decisions a floor is its height times (n + 1) ** -shrink; 0: constant
    count: Literal["all", "user"] = "all"  # which decisions count: all of the trial's, or those of this user
    until: Name | None = None  # a stopping rule: once it is met there is no floor any more, for whom it is met

    def heights(self) -> dict[str, Any]:
        """How high they are and how they shrink, but not when they end."""
        return self.model_dump(exclude={"until"})


class StoppingRule(Part):
    """A question about the arms, when it counts as answered, and what happens then."""

    kind: Kind
    arm: Name | None = None  # None: each arm but the control
    group: Text | None = None  # at most one of group, user and each; none: all users together
    user: Name | None = None
    each: Literal["group", "user"] | None = None  # every group, or every user, is a question of its own
    metric: Name | None = None  # None: the reward
    margin: NotNegative = 0.0  # in the unit of what is measured
    # What the ranges rest on: the propensities, in large samples; these and the metrics' ranges, exactly; the model.
    evidence: Literal["propensities", "exact", "model"] = "propensities"
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95  # one minus the false-claim rate of the rule
    then: Literal["advise", "pause", "stop"] = "advise"


class Stopping(Part):
    """When a trial ends: rules, and the largest numbers of seasons and decisions."""

    rules: dict[Name, StoppingRule] = Field(default_factory=dict)
    seasons: Annotated[int, Field(ge=1)] | None = None
    decisions: Annotated[int, Field(ge=1)] | None = None
    # When the rules are looked at by themselves: before each season, after so many decisions, or never.
    looks: Annotated[Literal["season", "by hand"] | Annotated[int, Field(ge=1)], BeforeValidator(_looks)] = "season"

    def plain(self) -> dict[str, Any]:
        """As JSON data, without what was left to its default."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Blinding(Part):
    """Codes in place of arms, for people who must not know them."""

    codes: dict[Name, Name] | None = None  # arm -> code; None: they are drawn
    show_codes: bool = False  # whether blinded people see the code of each decision, as on coded packages


class Model(Part):
    """What differs besides the arms, and how it is learned."""

    kind: Literal["field", "people", "paper"] = "field"
    seasons: bool = True  # outcomes shift from season to season
    noise: Literal["common", "arm"] = "common"  # whether all arms scatter alike
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0  # per season; 1 keeps everything
    # Whether the arms of a season are spread evenly over sites and blocks; None: in fields, but not with an exact rule.
    balanced: bool | None = None


class Attribute(Part):
    """Something that is known about a user: a number, or a category."""

    unit: Text = ""
    levels: list[Level] | None = None  # of a category; others may come later
    typical: Finite | None = None  # None: the mean of the file's users
    spread: Positive | None = None  # None: their standard deviation
    affects: list[Role] | None = None  # None: level and effects


class ContextField(Part):
    """Something that is known before a decision: a number, of which (value - typical) / spread counts, or a level."""

    unit: Text = ""
    levels: list[Level] | None = None  # of a category
    typical: Finite = 0.0
    spread: Positive = 1.0
    affects: list[Role] | None = None  # None: level and effects; in the paper's model the noise, and nothing else


class ArmNoise(Part):
    """The noise of one arm, in the units of the metrics."""

    sd: dict[Name, Positive] | None = None
    covariance: Matrix | None = None


class Noise(ArmNoise):
    """How outcomes scatter: learned from the data, or known."""

    kind: Literal["learned", "known"] = "learned"
    arms: dict[Name, ArmNoise] = Field(default_factory=dict)  # where an arm differs from the others
    # The covariance is multiplied by: 1, 1 + |context|, or a context field's own (unscaled) value.
    scale: Text = "constant"
    level: Positive = 1.0  # and by this


class PolicyPart(BaseModel):
    """The policy and its settings, as `drimed policies` lists them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "dri_med"

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class Resolved(NamedTuple):
    """What holds for one user."""

    preference: dict[str, float] | None
    control: str | dict[str, float] | None
    arms: list[str] | None


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
    metrics: Annotated[dict[Name, Metric], Field(min_length=1)]
    reward: Reward = Field(default_factory=Reward)
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    users: dict[Name, User] = Field(default_factory=dict)
    cohorts: dict[Name, Cohort] = Field(default_factory=dict)
    enrolment: Literal["open", "closed"] | None = None  # None: open for people, closed otherwise
    attributes: dict[Name, Attribute] = Field(default_factory=dict)
    preference: dict[Name, Finite] | None = None  # of users that give none
    control: Control | None = None  # of users that give none
    tolerance: Tolerance = Field(default_factory=Tolerance)
    guardrails: list[Guardrail] = Field(default_factory=list)
    floors: Floors | None = None
    blinding: Blinding | None = None  # None: there are no codes
    stopping: Stopping | None = None
    confidence: Confidence = 0.99
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.01  # for confidence "anytime": the promise fails at most so often
    context: dict[Name, ContextField] = Field(default_factory=dict)
    model: Model = Field(default_factory=Model)
    noise: Noise = Field(default_factory=Noise)
    policy: PolicyPart = Field(default_factory=PolicyPart)

    @property
    def has_exact_rule(self) -> bool:
        """Whether a stopping rule rests on exact ranges."""
        return self.stopping is not None and any(rule.evidence == "exact" for rule in self.stopping.rules.values())

    @property
    def blames_arms(self) -> bool:
        """Whether its model takes what a season did for effects of the arms that were given more often in it."""
        if self.kind == "paper" or self.model.seasons:
            return False
        return self.stopping is None or self.stopping.seasons != 1

    @property
    def kind(self) -> str:
        """Of the model: field, people or paper."""
        return self.model.kind

    @property
    def enrols(self) -> bool:
        """Whether asking for somebody unknown enrols them."""
        return self.enrolment == "open" or (self.enrolment is None and self.kind == "people")

    def size(self, metric: str) -> float:
        """What one of the learner's units is worth: only the paper's model must be told."""
        reach = self.metrics[metric].range
        return 1.0 if reach is None or self.kind != "paper" else max(map(abs, reach))

    def resolved(self, user: User) -> Resolved:
        """What holds for a user: what it says itself, its cohort's defaults, and the trial's own."""
        cohort = _NONE if user.cohort is None else self.cohorts.get(user.cohort, _NONE)
        return Resolved(
            _first(user.preference, cohort.preference, self.preference),
            _first(user.control, cohort.control, self.control),
            _first(user.arms, cohort.arms),
        )

    def group_of(self, user: User) -> str | None:
        """The group of a user, or else of its cohort."""
        if user.group is not None or user.cohort is None:
            return user.group
        return self.cohorts.get(user.cohort, _NONE).group

    @staticmethod
    def read(data: object) -> TrialSpec:
        """A spec from plain data; SpecError lists every fault."""
        # Here and not above: the checks know the arrays and the policies, and those know specs.
        from drimed.trial.sentences import readable
        from drimed.trial.validation import cross_faults, first_faults, tidied

        if isinstance(data, Mapping):  # what a rehearsal assumes of the world is in the file, but not of the trial
            data = {name: part for name, part in data.items() if name != "scenarios"}
        data, twins = tidied(data)
        if twins:
            raise SpecError(twins)
        try:
            spec = TrialSpec.model_validate(data)
        except ValidationError as error:
            raise SpecError(readable(error)) from None
        faults = [*first_faults(spec), *cross_faults(spec)]
        if faults:
            raise SpecError(faults)
        return spec

    @staticmethod
    def stored(data: Mapping[str, Any]) -> TrialSpec:
        """The spec that a log has."""
        return TrialSpec.model_validate(data)

    @staticmethod
    def load(path: Path | str) -> TrialSpec:
        """A spec from a .toml or .json file."""
        path = Path(path)
        try:
            text = decode_utf(path.read_bytes(), str(path))
        except OSError as error:
            raise SpecError([Fault((), f"cannot read {path}: {error.strerror or error}")]) from None
        except InputError as error:
            raise SpecError([Fault((), str(error))]) from None
        return TrialSpec.parse(text, "json" if path.suffix.lower() == ".json" else "toml")

    @staticmethod
    def parse(text: str, form: Literal["toml", "json"] = "toml") -> TrialSpec:
        """A spec from the text of a file; the faults of TOML have lines."""
        text = text.removeprefix("\ufeff")
        if form == "json":
            try:
                return TrialSpec.read(json.loads(text))
            except json.JSONDecodeError as error:
                raise SpecError([Fault((), f"not JSON: {error.msg}", error.lineno)]) from None
            except SpecError:
                raise
            except (ValueError, RecursionError):
                raise SpecError([Fault((), "not JSON: a number is too long, or lists are nested too deeply")]) from None
        data = lines.parse(text)
        try:
            return TrialSpec.read(data)
        except SpecError as error:
            found = lines.lines_of(text, [f.path for f in error.faults])
            raise SpecError(
                [Fault(f.path, f.message, line) for f, line in zip(error.faults, found, strict=True)]
            ) from None

    def plain(self) -> dict[str, Any]:
        """As JSON data, without what was left to its default; the model is always named."""
        named = {"kind": self.model.kind} | self.model.model_dump(mode="json", exclude_defaults=True)
        return self.model_dump(mode="json", exclude_defaults=True) | {"model": named}


_NONE = Cohort()


def _first(*values: Any) -> Any:
    """The first that is given."""
    for value in values:
        if value is not None:
            return value
    return None
