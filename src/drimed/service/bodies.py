"""The bodies of asking and telling, field by field; anything else is refused. Those of changes are with the changes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from drimed.records import Path, Report
from drimed.trial.changes import Body, Label, Reason
from drimed.trial.spec import Finite

MOST = 10_000  # users or outcomes in one request

Context = dict[str, Finite]
Values = dict[str, Finite | None]
Number = Annotated[int, Field(ge=1, le=2**31 - 1)]
DryRun = Annotated[bool, Field(description="Answer what would happen, and write nothing.")]
Confirm = Annotated[
    bool, Field(description="Record values outside the range of their metric too; without it they are refused.")
]


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [fields]})


class EpisodeBody(Body):
    """The next episode, with what is known of its users."""

    model_config = _example(number=4, contexts={"north": {"rain": 410}, "hill": {"rain": 520}})

    number: Number | None = Field(None, description="Its number. Opening the episode that is open does nothing.")
    contexts: dict[str, Context] = Field(default_factory=dict, max_length=MOST, description="user → field → value")
    unavailable: dict[str, list[Label]] = Field(
        default_factory=dict, description='user (or "" for all) → arms that they cannot get in this episode'
    )
    dry_run: DryRun = False


class AskBody(Body):
    """Who gets an arm: `user` for one, `users` for some, neither for all."""

    model_config = _example(user="north", context={"rain": 410})

    user: Label | None = None
    users: Annotated[list[Label], Field(min_length=1, max_length=MOST)] | None = None
    context: Context | None = Field(None, description="Of `user`, unless it was given when the episode was opened.")
    contexts: dict[str, Context] = Field(
        default_factory=dict, max_length=MOST, description="Of several: user → field → value"
    )
    unavailable: list[Label] = Field(default_factory=list, description="Arms that cannot be given now.")
    episode: Number | None = Field(
        None, description="The episode this is for. The next one is opened, with these contexts, in the same step."
    )
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

    def place(self, path: Path) -> Path:
        """Where a fault of the trial's `users` and `contexts` is in this body."""
        if self.user is None:
            return path
        return ("user",) if path[:1] == ("users",) else ("context", *path[2:]) if path[:1] == ("contexts",) else path


class OutcomeBody(Body):
    """The outcome of one decision. Metrics that are still to come may be left out."""

    model_config = _example(outcome={"yield": 8.4, "leaching": 21})

    outcome: Values = Field(description="metric → value")
    control: Values | None = Field(None, description="The same of the control plot, where feedback is `difference`.")
    confirm: Confirm = False
    dry_run: DryRun = False

    def report(self, decision: int) -> Report:
        """As the trial takes it."""
        return Report(decision, self.outcome, self.control)


class AmendBody(OutcomeBody):
    """A correction; null takes a value back. The old values stay in the log."""

    model_config = _example(outcome={"yield": 4.8}, reason="two digits were swapped")

    reason: Reason


class ReportBody(Body):
    """The outcome of a decision."""

    model_config = _example(decision=17, outcome={"yield": 8.4, "leaching": 21})

    decision: Number
    outcome: Values = Field(description="metric → value")
    control: Values | None = Field(None, description="The same of the control plot, where feedback is `difference`.")


class TellBody(Body):
    """Outcomes: all of them are recorded, or none."""

    model_config = _example(reports=[{"decision": 17, "outcome": {"yield": 8.4, "leaching": 21}}])

    reports: Annotated[list[ReportBody], Field(min_length=1, max_length=MOST)]
    confirm: Confirm = False
    dry_run: DryRun = False


class MissingBody(Body):
    """An outcome, or the rest of it, that will not come."""

    model_config = _example(reason="hail")

    reason: Reason
    dry_run: DryRun = False
