"""What a trial is: its metrics, arms, users, control, tolerance, noise and policy, as one readable file.

The same model is read from TOML, from JSON and from Python. Everything that is wrong is found at once, each fault with
its place. Fields are explained in docs/trial.md and in the template (`drimed trial template`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from drimed.errors import InputError, SpecError
from drimed.records import Fault
from drimed.trial import lines
from drimed.trial.parts import (
    Arm,
    Attribute,
    Blinding,
    Cohort,
    Confidence,
    ContextField,
    Control,
    Finite,
    Floors,
    Guardrail,
    Metric,
    Model,
    Name,
    Noise,
    Part,
    PolicyPart,
    Reward,
    Stopping,
    Text,
    Tolerance,
    User,
)
from drimed.trial.tables.decoding import decode_utf


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
        from drimed.trial.faults import cross_faults
        from drimed.trial.name_faults import first_faults, tidied
        from drimed.trial.sentences import readable

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
