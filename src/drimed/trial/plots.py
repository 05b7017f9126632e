"""Where decisions are taken: for a user as a whole, or on each of its plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.records import Path, Plots
from drimed.trial import allowed
from drimed.trial.covariates import plot_key
from drimed.trial.names import first_twice, tidy
from drimed.trial.state import TrialState
from drimed.trial.validation import name_faults


@dataclass(frozen=True)
class Place:
    """A user, and where it has plots, one of them."""

    user: str
    plot: str | None = None
    block: str | None = None

    @property
    def key(self) -> str:
        """What tells it from the other places of the trial."""
        return plot_key(self.user, self.plot)


def places(state: TrialState, user: str, wanted: Plots | None = None) -> list[Place]:
    """Where to decide for a user: on the plots that are asked for, on all of its own, or once."""
    own = state.profile(user).definition.block_of()
    if wanted is None:
        return [Place(user, plot, block) for plot, block in own.items()] or [Place(user)]
    at: Path = ("plots", user)
    given: list[tuple[str, str | None]]
    if isinstance(wanted, Mapping):
        given = [(_own(p, own), _named(block, at)) for block, plots in wanted.items() for p in _listed(plots, at)]
    else:
        given = [(plot, own.get(plot)) for plot in (_own(p, own) for p in _listed(wanted, at))]
    if not given:
        raise InputError(f"no plots of user {user!r} are named; leave the user out, or name some", at)
    if (twice := first_twice([plot for plot, _ in given])) is not None:
        raise InputError(f"plot {twice!r} of user {user!r} is asked for twice in one call", (*at, twice))
    for plot, block in given:
        _named(plot, (*at, plot))
        allowed.own_block(user, plot, block, own)
        if own and plot not in own and (block is None or block in own.values()):
            unknown = UnknownNameError("plot", plot, own)
            raise ConflictError(f"user {user!r}: {unknown}; new plots need a new block", (*at, plot))
    return [Place(user, plot, block) for plot, block in given]


def _own(plot: str, own: Mapping[str, str | None]) -> str:
    return plot if plot in own else tidy(plot)


def _listed(plots: Sequence[str], at: Path) -> Sequence[str]:
    if isinstance(plots, str) or not all(isinstance(plot, str) for plot in plots):
        raise InputError(f"plots must be a list of names, or a table of blocks and their plots, got {plots!r}", at)
    return plots


def _named(name: str, at: Path) -> str:
    name = tidy(name)
    for fault in name_faults(name, at):
        raise InputError(fault.message, at)
    return name
