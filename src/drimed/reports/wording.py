"""The sentences of a report: nouns that fit a trial, the summary, undecided users, and the next decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from drimed.formatting import amount, counted, listed, percent, span
from drimed.models.mixed.effects import FittedModel
from drimed.models.mixed.summaries import RESIDUAL
from drimed.records import Decision
from drimed.reports.analysis import Analysis
from drimed.reports.effects import EVERYBODY, LIKELY, MODEL, SEASON, Component, EvidenceSource
from drimed.reports.svg import Table
from drimed.trial.estimates import REWARD
from drimed.trial.seasons import calendar
from drimed.trial.state import TrialState

MOST_NAMED = 8  # arms or users in one sentence
MOST_COVARIATES = 4  # in one sentence
LEAST_SHARE = 0.005  # of the decisions, for an arm to be named; of the probability, for it to have a column
MOST_ARMS = 10  # columns of the table of the next decisions; other arms are added up
EXPLAIN = {"level", "effects"}  # roles of covariates that explain outcomes
CATEGORY = "category "  # the beginning of the names of families that belong to a category
SUMMARISED = ("season", "group", "user", "group x arm", "user x arm", "season x arm")  # components in the summary
NOTHING_YET = "There is nothing to recommend yet: of the arms that can be given, only the control has outcomes."


@dataclass(frozen=True)
class Words:
    """Nouns of a trial, and the scope of its statements."""

    user: str = "user"
    users: str = "users"
    group: str = "group"
    count: int = 0  # users
    seasons: int | None = None  # with outcomes; None: the model has none
    people: bool = False
    plots: bool = False  # an outcome is one of a plot
    categories: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()  # that shift outcomes or change effects
    scope: str = ""  # the end of a sentence: the season of its statement
    typical_context: str = ""  # of the levels of sites, after `scope`
    own_context: str = ""  # of the levels of seasons
    explained: str = ""  # the covariates' part, which variance components leave out

    @property
    def whole_scope(self) -> str:
        """The beginning of a sentence about all users together."""
        all_users = f"this {self.user}" if self.count == 1 else f"the average of these {self.count:,} {self.users}"
        return f"For {all_users}{self.scope}"

    def source(self, source: EvidenceSource | None) -> str:
        """Outcomes that an effect rests on.

        >>> Words(users="sites").source(EvidenceSource(2, 7, group=False))
        '2 outcomes here, 7 from other sites'
        """
        if source is None:
            return ""
        if not source.here + source.elsewhere:
            return "never given"
        others = f"{self.group}s" if source.group else self.users
        return f"{counted(source.here, 'outcome')} here, {source.elsewhere:,} from other {others}"

    def component(self, family: str) -> str:
        """A variance component, up to its number."""
        for i, category in enumerate(self.categories):
            family = family.replace(f"{CATEGORY}{i}", category)
            if family == category:
                return f"levels of {category} differ by"
            if family == f"{category} x arm":
                return f"an arm's effect differs between levels of {category} by"
        each = "people" if self.people else f"users of one {self.group}"
        residual = "outcomes of one person" if self.people else f"{'plot' if self.plots else 'outcome'}s side by side"
        nouns = {"group": f"{self.group}s", "user": each, "season": "seasons"}
        texts = {factor: f"{noun} differ by" for factor, noun in nouns.items()}
        texts |= {f"{factor} x arm": f"an arm's effect differs between {noun} by" for factor, noun in nouns.items()}
        texts |= {
            "arm": "arms differ by",
            "season x group": f"a season differs between {self.group}s by",
            "block": "blocks of one season differ by",
            RESIDUAL: f"{residual} differ by",
        }
        return texts.get(family, f"{family} differ by")


def words_of(a: Analysis) -> Words:
    """The nouns of a trial; without groups, the users of a field trial are its sites."""
    state, fit = a.data.state, a.fit
    if not isinstance(fit, FittedModel):
        return Words(count=len(state.users))
    profiles = [state.profile(user) for user in state.users]
    people, grouped = state.spec.kind == "people", any(p.group is not None for p in profiles)
    user = "person" if people else "user" if grouped else "site"
    numbers, categories = state.problem.covariates.counted
    explaining = [c for c in (*numbers, *categories) if EXPLAIN & set(c.roles.split())]
    names = [c.name for c in explaining]
    contexts = [c for c in explaining if c.name in state.spec.context]
    typical = [f"typical {c.name}" if c.levels is None else f"{c.name} {c.recorded(c.typical)!r}" for c in contexts]
    cells = fit.evidence.cells.live()
    seasons = len(np.unique(cells.keys[cells.n > 0, SEASON]))
    explain = f"{listed(names, MOST_COVARIATES)} {'explains' if len(names) == 1 else 'explain'}"
    return Words(
        user=user,
        users="people" if people else f"{user}s",
        group="group" if people or grouped else "site",
        count=len(profiles),
        seasons=seasons if fit.learner.seasons else None,
        people=people,
        plots=any(p.definition.block_of() for p in profiles),
        categories=tuple(c.name for c in categories),
        covariates=tuple(names),
        scope=" in an average season" if fit.learner.seasons else "",
        typical_context=f" with {listed(typical)}" if contexts else "",
        own_context=f" with its own {listed([c.name for c in contexts])}" if contexts else "",
        explained=f"what {explain}" if names else "",
    )


def units(state: TrialState) -> dict[str, str]:
    """The units of the reward and of each metric; empty: none is given."""
    return {name: metric.unit for name, metric in state.spec.metrics.items()} | {REWARD: state.spec.reward.unit}


def summary(a: Analysis) -> list[str]:
    """The first sentences of a report."""
    s, called = a.status, calendar(a.data.state)
    if not s.decisions:
        size = f"The trial has {counted(s.users, 'user')} and {counted(len(s.arms), 'arm')}."
        return [size, *filter(None, [s.history]), "No decisions yet."]
    states = [(s.complete, "complete"), (s.partial, "partial"), (s.pending, "pending"), (s.missing, "missing")]
    outcomes = ", ".join(f"{n:,} {state}" for n, state in states if n)
    dated, began = [called.dated(n) for n in sorted(called.dates) if n <= s.episode], ""
    if dated:
        began = f", from {dated[0]} to {dated[-1]}" if dated[0] != dated[-1] else f", {called.word} {dated[0]}"
    where = f"{counted(s.decisions, 'decision')} for {counted(s.users, 'user')} in {counted(s.episode, called.word)}"
    text = [a.checks.withdrawn] if a.checks.withdrawn else []
    text += [f"{where}{began}; outcomes: {outcomes}.", f"Arms given so far: {_shares(a)}.", *filter(None, [s.history])]
    if a.data.has_outcome.any():
        words = words_of(a)
        text += [*_best_arms(a, words), *_better(a, words), _gain(a)]
    return text if a.checks.alarms else [*text, "No check of the assumptions has raised an alarm."]


def _shares(a: Analysis) -> str:
    """The shares of the arms; of many, those given most."""
    most = sorted(a.times, key=lambda arm: -a.times[arm])[:MOST_NAMED]
    shares = {arm: n / sum(a.times.values()) for arm, n in a.times.items() if n and arm in most}
    named = [f"{arm} {100 * share:.0f} %" for arm, share in shares.items() if share >= LEAST_SHARE]
    others = len(a.given) - len(shares)
    named += [f"{counted(others, 'other arm')} {100 * (1 - sum(shares.values())):.0f} %"] if others else []
    return ", ".join(named)


def _best_arms(a: Analysis, words: Words) -> list[str]:
    """The best arm for all users together by a mixed model; where it is retired, also the best of the others."""
    of_all = [x for x in a.effects if (x.who, x.on, x.source) == (EVERYBODY, REWARD, MODEL)]
    arms = [x for x in of_all if a.can_be_judged(x) and not x.is_control]
    if a.variation is None or not arms:
        return []
    retired = a.data.state.retired
    best = [max(arms, key=lambda x: x.estimate)]
    offered = [x for x in arms if x.arm not in retired]
    best += [max(offered, key=lambda x: x.estimate)] if best[0].arm in retired and offered else []
    text = []
    for x in best:
        more = f"{amount(abs(x.estimate), a.data.state.spec.reward.unit)} {'more' if x.estimate >= 0 else 'less'}"
        clear = bool(x.certain or x.likely)
        earns = "earns" if clear else "is estimated to earn"
        but = "" if clear else ", which is still open" if x.confirmed else ", which another season must confirm"
        likely = f"likely {span(*x.likely_ends)}"
        if x.seasons is not None:
            likely += f"; compared in {counted(x.seasons, 'season')}"
        elif words.seasons is not None:
            likely += f"; {counted(words.seasons, 'season')} with outcomes"
        text.append(f"{words.whole_scope}, {a.label(x.arm)} {earns} {more} than the control{but} ({likely}).")
    return text


def describe_components(components: Sequence[Component], words: Words, unit: str) -> str:
    """The end of a sentence on a metric: clear effects of covariates, and then what covariates leave."""
    of = {c.family: c for c in components}
    some = [of[family] for family in SUMMARISED if family in of]
    clear = [c for c in components if c.family.startswith(CATEGORY) and c.identifiable and c.low > 0]
    levels, effects = ([c for c in some if c.identifiable and (" x " in c.family) is own] for own in (False, True))
    first, *others = (", ".join(_describe_component(c, words, unit) for c in part) for part in (clear, levels, effects))
    rest = "; ".join(filter(None, others))
    beyond = f"beyond {words.explained}, " if words.explained and rest else ""
    unknown = [f"how much {words.component(c.family).removesuffix(' by')}" for c in some if not c.identifiable]
    parts = [first, beyond + rest, f"it cannot be told yet {listed(unknown)}" if unknown else ""]
    numbers = ", as standard deviations" if first or rest else ""
    return f"{numbers}: {'; '.join(filter(None, parts))}" if any(parts) else ""


def _describe_component(c: Component, words: Words, unit: str) -> str:
    """With its range, or with its upper end alone where it may be nothing."""
    deviation, low, high = (float(f"{value:.2g}") for value in (c.deviation, c.low, c.high))
    size = f"about {amount(deviation, unit)} ({span(low, high)})" if c.low else f"at most {amount(high, unit)}"
    return f"{words.component(c.family)} {size}"


def _better(a: Analysis, words: Words) -> list[str]:
    """The number of users with a better arm than the control."""
    if a.checks.withdrawn:
        return ["Which arm is better is not judged while the model is wrong: the estimates below are descriptions."]
    retired, count = a.data.state.retired, a.status.users
    own = [x for x in a.own_effects if a.can_be_judged(x)]
    certain = [x for x in own if x.certain > 0]
    decided = {x.who for x in certain if x.arm not in retired}
    likely = [x for x in own if x.likely > 0 and x.who not in decided]
    users = counted(count, "user") if a.variation is None else f"{count:,} {words.users}"
    text = []
    for effects, word in ((certain, "certainly"), (likely, "likely")):
        if effects:
            arms, n = sorted({a.label(x.arm) for x in effects}), len({x.who for x in effects})
            which = arms[0] if len(arms) == 1 else f"at least one arm ({', '.join(arms)})"
            text.append(f"For {n:,} of {users}, {which} is {word} better than the control{words.scope}.")
    waiting: dict[str, dict[str, None]] = {}
    for x in own:
        if x.unconfirmed and x.arm not in retired and not x.is_control:
            waiting.setdefault(x.unconfirmed, {})[x.arm] = None
    text += [f"Not judged yet: {listed(list(arms), MOST_NAMED)} ({why})." for why, arms in waiting.items()]
    text = text or [f"No arm is likely to be better than the control for any {words.user} so far."]
    chance = [x for x in own if x.by_chance and x.estimate > 0]
    if chance:
        names, n = listed(sorted({a.label(x.arm) for x in chance}), MOST_NAMED), len({x.who for x in chance})
        some = f" for {n:,} of {count:,} {words.users}" if count > 1 else ""
        adjusted = "inconclusive after adjusting for multiple comparisons"
        text.append(f"By the likely range alone, {names} would be called better{some}; {adjusted}.")
    return text


def _gain(a: Analysis) -> str:
    gain, low, high = (float(part[-1]) for part in (a.benefit.gain, a.benefit.gain_low, a.benefit.gain_high))
    unit, n = a.data.state.spec.reward.unit, len(a.data.arm)
    if low == high == 0:
        return "Only the control was given, so nothing was gained or lost against it."
    worth = (
        f"Added up over {counted(n, 'decision')}, the arms given are estimated to be worth {amount(abs(gain), unit)} "
        f"{'more' if gain >= 0 else 'less'} than giving everybody the control"
    )
    if a.checks.withdrawn:
        return f"{worth}, without a guarantee."
    each = f"{amount(abs(gain) / n, unit)} for each"
    return f"{worth} ({a.promise_of_sums}: {span(low, high)}), {each}; {a.benefit.verdict}."


def describe_benefit(a: Analysis, words: Words) -> list[str]:
    """Sentences on users who are worse off; empty before there are outcomes."""
    if not a.data.has_outcome.any():
        return []
    effects = [abs(x.estimate) for x in a.own_effects if x.arm in a.given and x.available]
    unit, noun = a.data.state.spec.reward.unit, (words.user, words.users)
    largest, withdrawn = max(effects, default=0.0), a.checks.withdrawn is not None
    return a.benefit.describe(unit, noun=noun, largest=largest, withdrawn=withdrawn)


def undecided(a: Analysis, words: Words) -> str | None:
    """Users without a clearly best arm; None where that is not judged."""
    if not a.recommendations or a.checks.withdrawn:
        return None
    waiting = [r for r in a.recommendations if r.p_best < LIKELY or not r.effect.confirmed]
    n, least = len(a.recommendations), f"a chance of {percent(LIKELY)} or more of being the best"
    if any(r.p_best >= LIKELY for r in waiting):
        least += " and is known from more than one season"
    if not waiting:
        return f"No {words.user} is undecided: for each one arm has {least}."
    rivals = [f"{r.user}: {r.effect.arm} or {'an arm without outcomes' if r.alone else r.runner_up}" for r in waiting]
    more = f"; and {len(waiting) - MOST_NAMED:,} more" if len(waiting) > MOST_NAMED else ""
    some = f"{len(waiting):,} of {n:,} {words.users} {'is' if len(waiting) == 1 else 'are'} undecided"
    some = some if n > 1 else f"This {words.user} is undecided"
    return f"{some}: no arm has {least} ({'; '.join(rivals[:MOST_NAMED])}{more})."


def upcoming(decisions: Sequence[Decision], arms: Sequence[str], word: str) -> Table:
    """The next decisions: the arms that matter, and identical decisions of a user's plots in one row."""
    shown = list(arms)
    if len(arms) > MOST_ARMS:
        most = {arm: max((d.probabilities.get(arm, 0.0) for d in decisions), default=0.0) for arm in arms}
        ranked = sorted(arms, key=lambda arm: -most[arm])[:MOST_ARMS]
        shown = [arm for arm in arms if arm in ranked and most[arm] >= LEAST_SHARE]
    others = len(arms) - len(shown)
    rows = []
    for _, run in groupby(decisions, lambda d: (d.user, d.probabilities, d.reason)):
        first, *more = run
        plots = [d.plot for d in (first, *more) if d.plot is not None]
        where = f", {counted(len(plots), 'plot')} alike" if len(plots) > 1 else f", plot {plots[0]}" if plots else ""
        shares = [first.probabilities.get(arm, 0.0) for arm in shown]
        shares += [max(0.0, sum(first.probabilities.values()) - sum(shares))] if others else []
        cells = [percent(p) for p in shares] if first.probabilities else ["not known before the draw"] * len(shares)
        rows.append([first.user + where, *cells, first.reason])
    caption = (
        f"If every user were asked now, in its context of this {word} or a typical one. This is a preview: nothing was "
        "decided, and no arm was drawn. A number is the probability of a draw, not of being the best."
    )
    return Table(caption, ["user", *shown, *([counted(others, "other arm")] if others else []), "why"], rows)
