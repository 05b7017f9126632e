"""What a trial is: its metrics, arms, users, control, tolerance, noise and policy, as one readable file.

The same model is read from TOML, from JSON and from Python. Everything that is wrong is found at once, each fault with
its place. Fields are explained in docs/trial.md and in the template (`drimed trial template`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

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

from drimed.errors import SpecError
from drimed.records import Fault
from drimed.trial import lines


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


def _control_kind(value: object) -> str | None:
    return ARM if isinstance(value, str) else SHARES if isinstance(value, dict) else None


# In the paths of errors these stand for the two ways to write a control; they are no part of the file.
ARM, SHARES = "<arm>", "<shares>"

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
    range: tuple[Finite, Finite] | None = Field(None, strict=False)  # plausible values: they scale the prior
    better: Literal["higher", "lower"] = "higher"  # which direction a guardrail protects

    @field_validator("range")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not value[0] < value[1]:
            raise ValueError("must go from low to high")
        if value is not None and max(map(abs, value)) < SMALLEST:
            raise ValueError(f"must reach {SMALLEST:g} at least")
        return value

    @property
    def size(self) -> float:
        """What one of the learner's units is worth."""
        return 1.0 if self.range is None else max(abs(self.range[0]), abs(self.range[1]))


class Arm(Part):
    """Something that can be done: with its own effects, described by attributes, or by an explicit Phi(a)."""

    about: Text = ""
    attributes: dict[Name, Finite] | None = None
    map: Matrix | None = None  # M rows of d numbers

    @property
    def kind(self) -> str:
        """How its effects are described."""
        return "attributes" if self.attributes is not None else "map" if self.map is not None else "own effects"


class User(Part):
    """Somebody, or some place, that a decision is made for."""

    preference: dict[Name, Finite] | None = None  # weights of metrics in the reward; negative ones are costs
    control: Control | None = None
    arms: list[Name] | None = None  # where not all arms are possible
    group: Text | None = None  # effects are also reported for groups


class Tolerance(Part):
    """How far below the control a decision may fall: relative |control| + absolute, in the user's reward unit."""

    relative: Share = 0.1
    absolute: NotNegative = 0.0


class Guardrail(Part):
    """A metric that must stay near the control's, whatever the preferences."""

    metric: Name
    relative: Share = 0.05
    absolute: NotNegative = 0.0


class ContextField(Part):
    """A number known before a decision. The policy sees (value - typical) / spread."""

    unit: Text = ""
    typical: Finite = 0.0
    spread: Positive = 1.0


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
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    users: dict[Name, User] = Field(default_factory=dict)
    preference: dict[Name, Finite] | None = None  # of users that give none
    control: Control | None = None  # of users that give none
    tolerance: Tolerance = Field(default_factory=Tolerance)
    guardrails: list[Guardrail] = Field(default_factory=list)
    confidence: Confidence = 0.99
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.01  # for confidence "anytime": the promise fails at most so often
    context: dict[Name, ContextField] = Field(default_factory=dict)
    noise: Noise = Field(default_factory=Noise)
    policy: PolicyPart = Field(default_factory=PolicyPart)

    @staticmethod
    def read(data: object) -> TrialSpec:
        """A spec from plain data; SpecError lists every fault."""
        # Here and not above: the checks know the arrays and the policies, and those know specs.
        from drimed.trial.faults import cross_faults
        from drimed.trial.sentences import readable

        try:
            spec = TrialSpec.model_validate(data)
        except ValidationError as error:
            raise SpecError(readable(error)) from None
        faults = cross_faults(spec)
        if faults:
            raise SpecError(faults)
        return spec

    @staticmethod
    def load(path: Path | str) -> TrialSpec:
        """A spec from a .toml or .json file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError([Fault((), f"cannot read {path}: {error}")]) from None
        return TrialSpec.parse(text, "json" if path.suffix.lower() == ".json" else "toml")

    @staticmethod
    def parse(text: str, form: Literal["toml", "json"] = "toml") -> TrialSpec:
        """A spec from the text of a file; the faults of TOML have lines."""
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
        """As JSON data, without what was left to its default."""
        return self.model_dump(mode="json", exclude_defaults=True)
