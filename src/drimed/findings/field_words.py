"""What a model of the field is about, in the words of a trialist."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.formatting import counted, listed
from drimed.learning.field.cells import FACTORS
from drimed.learning.field.contrasts import Known
from drimed.learning.field.report import RESIDUAL
from drimed.trial.covariates import Covariate
from drimed.trial.state import TrialState

MOST_NAMED = 4  # covariates
SHIFTS = {"level", "effects"}  # roles of covariates that explain outcomes


@dataclass(frozen=True)
class Words:
    """How sites, people and outcomes are called, and for which of them findings hold."""

    people: bool
    grouped: bool  # users belong to groups
    plots: bool  # an outcome is one of a plot
    users: int
    groups: int
    seasons: int | None  # with outcomes; None: the model has none
    categories: tuple[str, ...]
    covariates: tuple[str, ...] = ()  # all that shift outcomes or change effects
    contexts: tuple[tuple[str, str], ...] = ()  # those of them that are not a user's own, and what is typical of each

    @property
    def user(self) -> str:
        """One user: where nobody is in a group, a field trial's users are its sites."""
        return "person" if self.people else "user" if self.grouped else "site"

    @property
    def users_noun(self) -> str:
        """Several."""
        return "people" if self.people else f"{self.user}s"

    @property
    def group(self) -> str:
        """One group: where nobody is in one, each user of a field trial is a site."""
        return "group" if self.people or self.grouped else "site"

    @property
    def other_users(self) -> str:
        """Where else an effect may be known from."""
        return f"other {self.users_noun}"

    @property
    def other_groups(self) -> str:
        """The same for a group."""
        return f"other {self.group}s"

    @property
    def outcome(self) -> str:
        """What is counted: a plot has one in each season, so there may be more of them than plots."""
        return "outcome"

    @property
    def season(self) -> str:
        """An episode: what belongs to it alone is averaged out of all effects."""
        return "season"

    @property
    def scope(self) -> str:
        """For whom and when statements hold, at the end of a sentence."""
        return f" in an average {self.season}" if self.seasons is not None else ""

    @property
    def typical_context(self) -> str:
        """What levels of sites are shown at, after `scope`."""
        return f" with {listed([typical for _, typical in self.contexts])}" if self.contexts else ""

    @property
    def own_context(self) -> str:
        """What levels of seasons are shown at, after `season`."""
        return f" with its own {listed([name for name, _ in self.contexts])}" if self.contexts else ""

    @property
    def explained(self) -> str:
        """What is not counted in how much something varies.

        >>> Words(False, False, True, 6, 6, 3, (), ("ph", "rain")).explained
        'what ph and rain explain'
        """
        explain = "explains" if len(self.covariates) == 1 else "explain"
        return f"what {listed(self.covariates, MOST_NAMED)} {explain}" if self.covariates else ""

    @property
    def whole_scope(self) -> str:
        """For all users together, at the beginning of a sentence."""
        n = f"{self.users:,} {self.user if self.users == 1 else self.users_noun}"
        who = f"For the average of these {n}" if self.users > 1 else f"For this {self.user}"
        return f"{who}{self.scope}"

    def seen(self, compared: int | None) -> str:
        """How many seasons an effect rests on: in which its arm was compared, or (None: that does not matter) all.

        >>> words = Words(False, False, True, 6, 6, 3, ())
        >>> words.seen(1), words.seen(None)
        ('compared in 1 season', '3 seasons with outcomes')
        """
        if compared is not None:
            return f"compared in {counted(compared, self.season)}"
        return "" if self.seasons is None else f"{counted(self.seasons, self.season)} with outcomes"

    def rests(self, here: int, anywhere: int, others: str) -> str:
        """Outcomes that an effect rests on, here and elsewhere.

        >>> words = Words(False, False, True, 6, 6, 3, ())
        >>> words.rests(2, 9, words.other_users)
        '2 outcomes here, 7 from other sites'
        """
        if not anywhere:
            return "never given"
        return f"{counted(here, self.outcome)} here, {anywhere - here:,} from {others}"

    def family(self, name: str) -> str:
        """What varies in a family, up to the number."""
        for i, category in enumerate(self.categories):
            name = name.replace(f"category {i}", category)
            if name == category:
                return f"levels of {category} differ by"
            if name == f"{category} x arm":
                return f"an arm's effect differs between levels of {category} by"
        sites = f"{self.group}s"
        each = "people" if self.people else f"users of one {self.group}"
        said = {
            "arm": "arms differ by",
            "group": f"{sites} differ by",
            "group x arm": f"an arm's effect differs between {sites} by",
            "user": f"{each} differ by",
            "user x arm": f"an arm's effect differs between {each} by",
            "season": f"{self.season}s differ by",
            "season x group": f"a {self.season} differs between {sites} by",
            "block": f"blocks of one {self.season} differ by",
            "season x arm": f"an arm's effect differs between {self.season}s by",
            RESIDUAL: "outcomes of one person differ by"
            if self.people
            else f"{'plot' if self.plots else 'outcome'}s side by side differ by",
        }
        return said.get(name, f"{name} differ by")


def words_of(state: TrialState, known: Known) -> Words:
    """The words that fit a trial."""
    profiles = [state.profile(user) for user in state.users]
    numbers, categories = state.problem.covariates.counted
    explaining = [c for c in (*numbers, *categories) if SHIFTS & set(c.roles.split())]
    cells = known.evidence.cells.live()
    seasons = len(np.unique(cells.keys[cells.n > 0, FACTORS.index("season")]))
    return Words(
        people=state.spec.kind == "people",
        grouped=any(p.group is not None for p in profiles),
        plots=any(p.definition.block_of() for p in profiles),
        users=len(profiles),
        groups=state.numbers.places,
        seasons=seasons if known.learner.seasons else None,
        categories=tuple(c.name for c in categories),
        covariates=tuple(c.name for c in explaining),
        contexts=tuple((c.name, _typical(c)) for c in explaining if c.name in state.spec.context),
    )


def _typical(c: Covariate) -> str:
    """Of a category its first level, which stands for it where none is given."""
    return f"typical {c.name}" if c.levels is None else f"{c.name} {c.recorded(c.typical)!r}"
