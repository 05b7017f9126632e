"""Scenarios: what a rehearsal assumes about the world, as a person writes it in `[scenarios.NAME]`.

Whatever a scenario leaves out is made from the trial file: a range of plausible values is taken for three standard
deviations of single outcomes to either side, which sites, seasons, blocks and single plots share as they do in public
field trials; a difference that matters is the loss that the tolerance allows. Without any scenario, five are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from drimed.errors import DrimedError, InputError, SpecError, UnknownNameError
from drimed.records import Fault
from drimed.trial import lines
from drimed.trial.parts import Cohort, Finite, Name, NotNegative, Part, Share, Text, User
from drimed.trial.sentences import readable
from drimed.trial.spec import TrialSpec
from drimed.trial.tables.decoding import decode_utf

SEASONS = 6  # where nothing says how many
PEOPLE = 20  # who come in each season, where people join and nothing says how many
DEVIATIONS = 6.0  # standard deviations of single outcomes in a range of plausible values
# Shares of the kinds of variation, relative to that of single plots: the middle of public variety trials.
SITE, SEASON, BLOCK, SITE_ARM, SEASON_ARM, COVARIATES = 0.6, 0.6, 0.8, 0.25, 0.25, 0.3
TREND = 0.5  # by which a level rises from season to season in the scenario of a trend, relative to single plots
HARM = 2.0  # differences that matter by which a harmful arm is worse
NOISY = 2.0  # times the usual variation in the scenario of pessimistic noise
KINDS = ("noise", "site", "season", "block", "site_arm", "season_arm")
NAME = "scenarios"  # of the table in a file

ByMetric = dict[Name, Finite]
Deviations = dict[Name, NotNegative]


class Scenario(Part):
    """One world; everything is in the units of the metrics, and anything may be left out."""

    about: Text = ""
    seasons: Annotated[int, Field(ge=1, le=1000)] | None = None
    users: Annotated[int, Field(ge=1, le=100_000)] | None = None  # who come in each season, where people join
    level: ByMetric | None = None  # of the control in the first season
    effects: dict[Name, ByMetric] = Field(default_factory=dict)  # of arms, added to the control's level
    spread: Deviations = Field(default_factory=dict)  # of arms' effects around those, drawn for each trial
    noise: Deviations | None = None  # standard deviation of single plots
    correlation: Annotated[float, Field(ge=0, lt=1)] = 0.3  # between the noise of any two metrics of a plot
    site: Deviations | None = None
    season: Deviations | None = None
    block: Deviations | None = None
    site_arm: Deviations | None = None
    season_arm: Deviations | None = None
    covariates: Deviations | None = None  # of what one spread of a covariate does to the level
    covariate_effects: Deviations = Field(default_factory=dict)  # and to the effect of each arm
    trend: ByMetric = Field(default_factory=dict)  # of the level, for each season
    fading: dict[Name, ByMetric] = Field(default_factory=dict)  # what arms' effects gain or lose with each season
    drift: Finite = 0.0  # of contexts, for each season, in spreads
    delay: Annotated[int, Field(ge=0, le=100)] = 0  # seasons until outcomes are told
    dropout: Share = 0.0  # of outcomes that never come
    history: bool = False  # outcomes as in the past that the rehearsal is given


def load(path: Path) -> tuple[TrialSpec, dict[str, Scenario]]:
    """A trial file with the scenarios that are in it."""
    try:
        spec = TrialSpec.load(path)
    except SpecError as error:
        raise SpecError([*error.faults, *_unreadable(path)]) from None
    text, data = _parsed(path)
    return spec, read(spec, data.get(NAME, {}), text, (NAME,))


def _unreadable(path: Path) -> Sequence[Fault]:
    """What is wrong with scenarios whatever the trial is, where the file can be read at all."""
    try:
        text, data = _parsed(path)
    except DrimedError:
        return ()
    try:
        read(None, data.get(NAME, {}), text, (NAME,))
    except SpecError as error:
        return error.faults
    return ()


def load_scenarios(spec: TrialSpec, path: Path) -> dict[str, Scenario]:
    """Scenarios of a trial from a file of their own, under [scenarios.NAME]."""
    text, data = _parsed(path)
    if set(data) != {NAME}:
        raise InputError(f"{path.name} must have tables [scenarios.NAME] and nothing else, got {', '.join(data)}")
    return read(spec, data[NAME], text, (NAME,))


def read(spec: TrialSpec | None, data: Any, text: str = "", at: tuple[str, ...] = ()) -> dict[str, Scenario]:
    """Scenarios from plain data, checked against the trial if that is known; faults have the lines of `text`."""
    if not isinstance(data, Mapping):
        raise SpecError([Fault(at, "must be tables, one for each scenario: [scenarios.NAME]")])
    found, faults = {}, []
    for name, given in data.items():
        try:
            found[name] = Scenario.model_validate(given)
        except ValidationError as error:
            faults += [Fault((*at, name, *f.path), f.message) for f in readable(error, Scenario)]
            continue
        if spec is not None:
            faults += [Fault((*at, name, *f.path), f.message) for f in contradictions(spec, found[name])]
    if faults:
        places = lines.lines_of(text, [f.path for f in faults]) if text else [None] * len(faults)
        raise SpecError([Fault(f.path, f.message, line) for f, line in zip(faults, places, strict=True)])
    return found


def contradictions(spec: TrialSpec, scenario: Scenario) -> Iterator[Fault]:
    """Where a scenario speaks of what the trial does not have."""
    metrics, arms, controls = list(spec.metrics), list(spec.arms), control_arms(spec)
    tables: dict[tuple[str, ...], Mapping[str, float] | None] = {
        (name,): getattr(scenario, name)
        for name in (*KINDS, "level", "spread", "covariates", "covariate_effects", "trend")
    }
    for field in ("effects", "fading"):
        for arm, own in getattr(scenario, field).items():
            tables[field, arm] = own
            if arm not in arms:
                yield Fault((field, arm), str(UnknownNameError("arm", arm, arms)))
            elif arm in controls and any(own.values()):
                yield Fault(
                    (field, arm), f"{arm!r} is the control, which effects are against: give its `level` instead"
                )
    for path, table in tables.items():
        for metric in table or ():
            if metric not in metrics:
                yield Fault((*path, metric), str(UnknownNameError("metric", metric, metrics)))
    if scenario.users is not None and not spec.enrols:
        yield Fault(("users",), "the trial has its users in its file, and nobody joins; leave this out")
    if not spec.users and not spec.enrols:
        yield Fault((), "the trial file has no users: a rehearsal needs those that the trial will have")
    if scenario.dropout and spec.kind == "paper":
        yield Fault(("dropout",), "outcomes that never come can be rehearsed with the field model only; leave this out")
    if scenario.drift and not spec.context:
        yield Fault(("drift",), "the trial has no context that could drift")


def usual(spec: TrialSpec, seasons: int | None = None) -> dict[str, Scenario]:
    """The scenarios that are made where none are given."""
    sizes, pull = residuals(spec, Scenario()), difference(spec)
    arms = [a for a in spec.arms if a not in control_arms(spec)]
    if not arms:
        raise InputError("every arm of the trial is somebody's control: give scenarios with the effects of arms")
    matters = {arms[0]: pull}
    more = {m: NOISY * sd for m, sd in sizes.items()}
    worse = {arms[-1]: {m: -HARM * e for m, e in pull.items()}}
    none = dict.fromkeys(spec.metrics, 0.0)

    def made(about: str, **given: Any) -> Scenario:
        return Scenario(about=about, seasons=seasons, **given)

    return {
        "no difference": made("all arms do the same", site_arm=none),
        "a difference that matters": made(
            f"{arms[0]} is better by as much as the tolerance lets a decision lose", effects=matters
        ),
        "a harmful arm": made(f"{arms[-1]} is worse by twice what the tolerance lets a decision lose", effects=worse),
        "a trend": made(
            f"{arms[0]} is better as before, and everything rises from season to season",
            effects=matters,
            trend={m: TREND * sd for m, sd in sizes.items()},
        ),
        "pessimistic noise": made(
            f"{arms[0]} is better as before, and outcomes scatter twice as much", effects=matters, noise=more
        ),
    }


def residuals(spec: TrialSpec, scenario: Scenario) -> dict[str, float]:
    """The standard deviation of single plots, by metric."""
    parts = (1.0, SITE, SEASON, BLOCK, SITE_ARM, SEASON_ARM)
    share = 1 / float(np.linalg.norm(parts))
    found = {}
    for name, metric in spec.metrics.items():
        known = (scenario.noise or {}).get(name) or (spec.noise.sd or {}).get(name)
        if known is None and metric.range is None:
            raise InputError(
                f"metric {name!r} has no range, and nothing says how much it scatters: give it a range in the trial "
                "file, or scenarios with `noise`"
            )
        found[name] = known or share * float(np.ptp(metric.range or 0.0)) / DEVIATIONS
    return found


def levels(spec: TrialSpec, scenario: Scenario) -> dict[str, float]:
    """Of the control, by metric: the middle of the range."""
    given = scenario.level or {}
    return {m: given.get(m, float(np.mean(part.range)) if part.range else 0.0) for m, part in spec.metrics.items()}


def difference(spec: TrialSpec) -> dict[str, float]:
    """The smallest effect that matters, by metric: what the tolerance lets the reward of a typical user lose.

    Each metric moves the way that is good by the same share of how much it scatters.
    """
    sizes, level = residuals(spec, Scenario()), levels(spec, Scenario())
    p = preference(spec)
    reach = sum(abs(p[m]) * sizes[m] for m in spec.metrics)
    earns = abs(sum(p[m] * level[m] for m in spec.metrics))
    loses = spec.tolerance.relative * earns + spec.tolerance.absolute
    share = loses / reach if loses > 0 and reach > 0 else 0.5
    return {m: share * sizes[m] * float(np.sign(p[m])) for m in spec.metrics}


def preference(spec: TrialSpec) -> dict[str, float]:
    """The mean over the users of the file, or of its cohorts, or the trial's own."""
    who: list[Cohort] = [*spec.users.values()] or [*spec.cohorts.values()]
    known = [spec.resolved(u if isinstance(u, User) else User(**u.model_dump())).preference for u in who]
    given = [k for k in known if k is not None] or [spec.preference or {}]
    return {m: float(np.mean([k.get(m, 0.0) for k in given])) for m in spec.metrics}


def control_arms(spec: TrialSpec) -> set[str]:
    """Arms that are somebody's whole control."""
    who = [*spec.users.values(), *spec.cohorts.values(), Cohort(control=spec.control)]
    return {c.control for c in who if isinstance(c.control, str)}


def _parsed(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = decode_utf(path.read_bytes(), str(path)).removeprefix("\ufeff")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    if path.suffix.lower() != ".json":
        return text, lines.parse(text)
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path.name} is not JSON: {error}") from None
    return "", data if isinstance(data, dict) else {}
