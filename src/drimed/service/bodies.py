"""What may be sent, field by field; anything else is refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from drimed.trial.spec import ArmNoise, Control, Finite

MOST = 10_000  # users or outcomes in one request

Text = Annotated[str, Field(min_length=1, max_length=2000)]
Label = Annotated[str, Field(min_length=1, max_length=100)]
Reason = Annotated[str, Field(max_length=2000, description="Why; it is kept in the log.")]
Context = dict[str, Finite]
Values = dict[str, Finite | None]
Number = Annotated[int, Field(ge=1, le=2**31 - 1)]
DryRun = Annotated[bool, Field(description="Answer what would happen, and write nothing.")]


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [fields]})


class Body(BaseModel):
    """Nothing is guessed: an unknown field is an error, and a number in quotes is not a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class EpisodeBody(Body):
    """The next episode, with what is known of its users."""

    model_config = _example(number=4, contexts={"north": {"rain": 410}, "hill": {"rain": 520}})

    number: Number | None = Field(None, description="Its number. Opening the episode that is open does nothing.")
    contexts: dict[str, Context] = Field(default_factory=dict, max_length=MOST, description="user → field → value")
    unavailable: dict[str, list[Label]] = Field(
        default_factory=dict, description='user (or "" for all) → arms that they cannot get in this episode'
    )


class AskBody(Body):
    """Who gets an arm: `user` for one, `users` for some, neither for everybody."""

    model_config = _example(user="north", context={"rain": 410})

    user: Label | None = None
    users: Annotated[list[Label], Field(min_length=1, max_length=MOST)] | None = None
    context: Context | None = Field(None, description="Of `user`, unless it was given when the episode was opened.")
    contexts: dict[str, Context] = Field(
        default_factory=dict, max_length=MOST, description="Of several: user → field → value"
    )
    unavailable: list[Label] = Field(default_factory=list, description="Arms that cannot be given now.")
    dry_run: DryRun = False

    @model_validator(mode="after")
    def _one_way(self) -> AskBody:
        if self.user is not None and (self.users is not None or self.contexts):
            raise ValueError("give `user` and `context`, or `users` and `contexts`, not both")
        if self.user is None and self.context is not None:
            raise ValueError("`context` belongs to `user`; for several give `contexts`")
        return self

    @property
    def wanted(self) -> list[str] | None:
        """The users; None: all."""
        return [self.user] if self.user is not None else self.users

    @property
    def known(self) -> dict[str, Context]:
        """Contexts by user."""
        return {self.user: self.context} if self.user is not None and self.context is not None else self.contexts


class OutcomeBody(Body):
    """What came of one decision. Metrics that are still to come may be left out."""

    model_config = _example(outcome={"yield": 8.4, "leaching": 21})

    outcome: Values = Field(description="metric → value")
    control: Values | None = Field(None, description="The same of the control plot, where feedback is `difference`.")


class ReportBody(OutcomeBody):
    """What came of a decision."""

    model_config = _example(decision=17, outcome={"yield": 8.4, "leaching": 21})

    decision: Number


class TellBody(Body):
    """Outcomes, all or none of which are recorded."""

    model_config = _example(reports=[{"decision": 17, "outcome": {"yield": 8.4, "leaching": 21}}])

    reports: Annotated[list[ReportBody], Field(min_length=1, max_length=MOST)]
    dry_run: DryRun = False


class AmendBody(OutcomeBody):
    """A correction; null takes a value back. The old values stay in the log."""

    model_config = _example(outcome={"yield": 4.8}, reason="two digits were swapped")

    reason: Reason
    dry_run: DryRun = False


class MissingBody(Body):
    """An outcome that will not come."""

    model_config = _example(reason="hail")

    reason: Reason
    dry_run: DryRun = False


class ReasonBody(Body):
    """Why."""

    model_config = _example(reason="the harvest is late")

    reason: Reason


class MaybeReasonBody(Body):
    """Why, if there is something to say."""

    model_config = _example(reason="the harvest is in")

    reason: Reason = ""


class UserBody(Body):
    """Somebody who joins."""

    model_config = _example(name="dune", preference={"yield": 200, "leaching": -8}, group="sand")

    name: Label
    preference: Context | None = Field(None, description="metric → weight in the reward; left out: the trial's own")
    control: Control | None = Field(None, description="An arm, or arm → share; left out: the trial's own")
    arms: list[Label] | None = Field(None, description="Where not all arms are possible.")
    group: Annotated[str, Field(max_length=100)] | None = None

    def definition(self) -> dict[str, Any]:
        """As the trial takes it."""
        return self.model_dump(exclude={"name"}, exclude_none=True)


class ArmBody(Body):
    """An arm that is offered from now on, described as the others are."""

    model_config = _example(name="late", attributes={"nitrogen": 100, "irrigation": 1})

    name: Label
    about: Annotated[str, Field(max_length=2000)] = ""
    attributes: Context | None = None
    map: list[list[Finite]] | None = None
    noise: ArmNoise | None = Field(None, description="Its own noise, where noise is known.")

    def definition(self) -> dict[str, Any]:
        """As the trial takes it."""
        return self.model_dump(exclude={"name", "noise"}, exclude_none=True, exclude_defaults=True)


class RetireBody(Body):
    """An arm that is not given any more."""

    model_config = _example(arm="rich", reason="too much nitrate")

    arm: Label
    reason: Reason


class PreferenceBody(Body):
    """How a user weighs the metrics from now on."""

    model_config = _example(user="north", preference={"yield": 200, "leaching": -6}, reason="a well was dug")

    user: Label
    preference: Context
    reason: Reason


class ControlBody(Body):
    """What a user is compared with from now on."""

    model_config = _example(user="north", control="usual", reason="the farm changed its practice")

    user: Label
    control: Control = Field(description="An arm, or arm → share.")
    reason: Reason
