"""The sentences of a report: nouns that fit a trial, the summary, undecided users, and the next decisions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from drimed.formatting import amount, counted, listed, measured, percent, short, span
from drimed.models.mixed import summaries
from drimed.models.mixed.effects import FittedModel
from drimed.models.mixed.summaries import RESIDUAL
from drimed.numerics.arrays import FloatArray
from drimed.records import Decision, Effect
from drimed.reports import effects as estimation
from drimed.reports.analysis import Analysis
from drimed.reports.effects import EVERYBODY, LIKELY, MODEL, SEASON, EvidenceSource, Recommendation
from drimed.reports.svg import Table
from drimed.trial import estimates
from drimed.trial.estimates import REWARD
from drimed.trial.look_history import better_direction
from drimed.trial.queries import STANDS, ways_off_the_control
from drimed.trial.seasons import calendar
from drimed.trial.spec import Metric
from drimed.trial.state import TrialState

MOST_NAMED = 8  # arms or users in one sentence
MOST_LISTED = 12  # arms in the table of outcomes
MOST_COLUMNS = 40  # seasons of the table of users
MOST_COVARIATES = 4  # in one sentence
KEPT = 0.5  # mean share of the policy's proposals: where the guard keeps more, the policy wants the control itself
SELDOM = 0.1  # plays in the next season, all users together: one in ten seasons answers nothing
MOST_NEEDED = 10  # times the decisions so far: needing more outcomes than that is not worth a number
LEAST_SHARE = 0.005  # of the decisions, for an arm to be named; of the probability, for it to have a column
EXPLAIN = {"level", "effects"}  # roles of covariates that explain outcomes
NOTHING_YET = "There is nothing to recommend yet: of the arms that can be given, only the control has outcomes."
HOW_FAR = "How far is it?"


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

        >>> Words(users="sites").source(EvidenceSource(2, 7))
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
            family = family.replace(f"category {i}", category)
            if family == category:
                return f"levels of {category} differ by"
            if family == f"{category} x arm":
                return f"an arm's effect differs between levels of {category} by"
        each = "people" if self.people else f"users of one {self.group}"
        residual = "outcomes of one person" if self.people else f"{'plot' if self.plots else 'outcome'}s side by side"
        nouns = {"group": f"{self.group}s", "user": each, "season": "seasons"}
        texts = {factor: f"{noun} differ by" for factor, noun in nouns.items()}
        texts |= {f"{factor} x arm": f"an arm's effect differs between {noun} by" for factor, noun in nouns.items()}
        texts |= {f"{factor} x dose": f"responses to a dose differ between {noun} by" for factor, noun in nouns.items()}
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
    seasonal = fit.learner.seasons and not (people and state.episode.number <= 1)  # people need no seasons
    explain = f"{listed(names, MOST_COVARIATES)} {'explains' if len(names) == 1 else 'explain'}"
    return Words(
        user=user,
        users="people" if people else f"{user}s",
        group="group" if people or grouped else "site",
        count=len(profiles),
        seasons=seasons if seasonal else None,
        people=people,
        plots=any(p.definition.block_of() for p in profiles),
        categories=tuple(c.name for c in categories),
        covariates=tuple(names),
        scope=" in an average season" if seasonal else "",
        typical_context=f" with {listed(typical)}" if contexts else "",
        own_context=f" with its own {listed([c.name for c in contexts])}" if contexts else "",
        explained=f"what {explain}" if names else "",
    )


def units(state: TrialState) -> dict[str, str]:
    """The units of the reward and of each metric; empty: none is given."""
    return {name: metric.unit for name, metric in state.spec.metrics.items()} | {REWARD: state.spec.reward.unit}


def answers(a: Analysis, words: Words) -> dict[str, list[str]]:
    """The first screen of a report: questions, in the order in which they are asked, with sentences."""
    s = a.status
    if not s.decisions:
        size = f"The trial has {counted(s.users, 'user')} and {counted(len(s.arms), 'arm')}."
        return {HOW_FAR: [size, *filter(None, [s.history]), "No decisions yet. Ask for the first users."]}
    told, called = a.data.has_outcome.any(), calendar(a.data.state)
    since = f" (the oldest from {called.said(a.oldest_pending)})" if a.oldest_pending and s.episode > 1 else ""
    now = [a.checks.withdrawn] if a.checks.withdrawn else []
    now += [f"The trial is {s.status}{f': {s.halted}' if s.halted else ''}."] if s.status != "running" else []
    now += [f"Stopping rules that are met: {listed(s.rules_met, MOST_NAMED)}."] if s.rules_met else []
    now += [*_advice(a, words), *_doubtful(a), *standing(a, words)[:1]] if told else []
    now += [f"Tell {counted(s.pending, 'pending outcome')}{since}."] if s.pending else []
    return {
        "Is the policy better than the control?": _holdout(a, words),
        "What to do now": now,
        "How sure is that?": [*_best_arms(a, words), *_better(a, words)] if told else [],
        "How much longer?": [a.forecast] if a.forecast else [],
        "Was anybody harmed?": [*_harms(a), *describe_benefit(a, words)[:1], _gain(a, words)] if told else [],
        HOW_FAR: [*_progress(a), *_left_out(a), *_deviated(a)],
    }


def _holdout(a: Analysis, words: Words) -> list[str]:
    """The policy against the control, by the users who are held out."""
    h = a.holdout
    if h is None:
        return []
    sizes = f"{h.deciding:,} {words.users} decided for by the policy, {h.held:,} held out on the control"
    if h.low is None or h.high is None:
        return [f"Not known yet: it takes two on each side with outcomes, and there are {sizes}."]
    shown = "Not shown: " if h.low <= 0 <= h.high else ""
    more = f"{amount(abs(h.estimate), a.data.state.spec.reward.unit)} {'more' if h.estimate >= 0 else 'less'}"
    what = f"{shown}{'on' if shown else 'On'} average the policy's {words.users} earned {more} than those held out"
    return [f"{what} (95 % range at this look {span(h.low, h.high)}; {sizes}). This rests on randomisation alone."]


def _advice(a: Analysis, words: Words) -> list[str]:
    """The arms that are known to be best, by those for whom they are, or to go on."""
    best, n = defaultdict[str, list[str]](list), len(a.recommendations)
    if a.checks.withdrawn or not n:
        return []
    for r in a.recommendations:
        if r.p_best >= LIKELY and r.effect.confirmed:
            best[r.effect.arm].append(r.user)
    open_ = n - sum(map(len, best.values()))
    others = ": no arm is known to be the best yet" if open_ == n else " for the others"
    text = []
    for arm, users in sorted(best.items(), key=lambda one: -len(one[1])):
        few = len(users) < n and len(users) <= MOST_NAMED and a.own_rows.keys() >= {*users}
        some = f"{len(users):,} of {n:,} {words.users}" if len(users) < n else f"all {n:,} {words.users}"
        whom = users[0] if n == 1 else some + f" ({listed(users, MOST_NAMED)})" * few
        text.append(f"Best for {whom}: {a.label(arm)}.")
    return [*text, f"Go on asking and telling{others}."] if open_ and a.status.status == "running" else text


def _doubtful(a: Analysis) -> list[str]:
    """Arms that are still given, and certainly worse than the control on a metric, with a decision to be taken."""
    plays: dict[str, float] = defaultdict(float)
    for d in a.next:
        for arm in d.probabilities or a.given:
            plays[arm] += d.probabilities.get(arm, 1.0)
    on = defaultdict[str, dict[str, None]](dict)  # arm -> metrics
    for x in _harmful(a):
        if x.certain and x.on != REWARD and plays[x.arm] >= SELDOM and x.arm not in a.data.state.retired:
            on[x.arm][x.on] = None
    return [
        f"Decide whether {arm} may still be given: it is certainly worse than the control on {listed(list(metrics))}."
        for arm, metrics in on.items()
    ]


def _harmful(a: Analysis) -> Iterator[Effect]:
    """Effects that are worse than the control: of an arm on a measure for all users, or for groups or single users."""
    state, harmed = a.data.state, set[tuple[str, str]]()  # (arm, measure)
    users = {user: state.profile(user).definition for user in state.users}
    for x in sorted(a.effects, key=lambda x: x.who != EVERYBODY):
        up = x.on == REWARD or better_direction(state.spec, users, x.on) == "higher"
        by_model = x.source == MODEL
        way = x.certain or x.likely * by_model
        if x.source == estimates.AS_GIVEN:  # which shows nothing: who was given another arm may differ in more
            continue
        judged = not by_model or (a.checks.withdrawn is None and a.can_be_judged(x))
        if not judged or way != (-1 if up else 1) or x.arm not in a.given or (x.arm, x.on) in harmed:
            continue
        harmed |= {(x.arm, x.on)} if x.who == EVERYBODY else set()
        yield x


def _harms(a: Analysis) -> list[str]:
    """Arms that are worse than the control on any measure, for all users, a group, or single users."""
    text, members = list[str](), estimation.groups(a.data.state)
    single = defaultdict[tuple[str, str], list[str]](list)  # (arm, confidence) -> users, on the reward
    for x in _harmful(a):
        sure = "certainly" if x.certain else "likely"
        if x.who not in members:
            single[x.arm, sure].append(x.who)
            continue
        more, ends = _difference(a, x)
        whom = "" if x.who == EVERYBODY else f" for {x.who}"
        text.append(f"{a.label(x.arm)} is {sure} worse than the control on {x.on}{whom}: {more} ({ends}).")
    for (arm, sure), some in single.items():
        whom = listed(some, MOST_NAMED) if a.own_rows.keys() >= {*some} else f"{len(some):,} people"
        text.append(f"{a.label(arm)} is {sure} worse than the control for {whom}.")
    if not text:
        return [] if a.checks.withdrawn else ["No arm is shown to be worse than the control on any measure."]
    return text if len(text) <= MOST_NAMED else [*text[:MOST_NAMED], f"And {len(text) - MOST_NAMED} more: see effects."]


def _progress(a: Analysis) -> list[str]:
    """Decisions and outcomes so far."""
    s, called = a.status, calendar(a.data.state)
    states = [(s.complete, "complete"), (s.partial, "partial"), (s.pending, "pending"), (s.missing, "missing")]
    outcomes = ", ".join(f"{n:,} {state}" for n, state in states if n)
    dated, began = [called.dated(n) for n in sorted(called.dates) if n <= s.episode], ""
    if dated:
        began = f", from {dated[0]} to {dated[-1]}" if dated[0] != dated[-1] else f", {called.word} {dated[0]}"
    during = "" if a.data.state.spec.kind == "people" and s.episode == 1 else f" in {counted(s.episode, called.word)}"
    where = f"{counted(s.decisions, 'decision')} for {counted(s.users, 'user')}{during}"
    text = [f"{where}{began}; outcomes: {outcomes}.", *filter(None, [s.history])]
    return text if a.checks.alarms else [*text, "No check of the assumptions has raised an alarm."]


def recorded_by_arm(a: Analysis) -> Table | None:
    """Decisions and outcomes of each arm as recorded, before any model; of many arms, those given most."""
    metrics, arms = a.data.state.spec.metrics, a.data.state.problem.arms
    most = sorted((arm for arm in arms if arm in a.given), key=lambda arm: -a.times[arm])[:MOST_LISTED]
    if not most:
        return None
    rows, total = [], sum(a.times.values())
    for arm in (arm for arm in arms if arm in most):
        share = f"{a.times[arm]:,} ({percent(a.times[arm] / total)})"
        rows.append([a.label(arm), share, *(_recorded(a, m, arm) for m in range(len(metrics)))])
    left_out = f" ({len(most)} of {counted(len(a.given), 'arm')}, those given most)" if len(most) < len(a.given) else ""
    how_often = "drawn" if a.deviations else "given"
    columns = ["arm", how_often, *(measured(name, metric.unit) for name, metric in metrics.items())]
    return Table(f"Outcomes by arm as recorded, before any model{left_out}", columns, rows)


def adherence_by_arm(a: Analysis) -> Table | None:
    """How often each arm that was drawn was given, or something else; None: what was drawn was always given."""
    if not a.deviations:
        return None
    arms, counts, rows = a.data.state.problem.arms, estimates.adherence(a.data), list[list[str]]()
    for k, arm in enumerate(arms):
        total = int(counts[k].sum())
        others = [f"{n:,} {(*arms, 'something else')[j]}" for j, n in enumerate(counts[k].tolist()) if n and j != k]
        if total:
            share = f"{counts[k, k]:,} of {total:,} ({percent(counts[k, k] / total)})"
            rows.append([a.label(arm), share, ", ".join(others)])
    return Table("Adherence: was the arm given that was drawn?", ["drawn", "given as drawn", "given instead"], rows)


def _deviated(a: Analysis) -> list[str]:
    """How often another arm was given, and on what effects rest then."""
    if not a.deviations:
        return []
    some = f"In {a.deviations:,} of {counted(len(a.data.arm), 'decision')} something else was given than was drawn"
    learns = a.data.state.spec.learns
    observed = " and its effects are observational too" if learns == "given" else ""
    model = f"the model learns from the arm {learns},{observed}".removesuffix(",")
    return [f"{some}. Effects without the model are by assignment; those as given are observational: {model}."]


def _left_out(a: Analysis) -> list[str]:
    """Values below a limit of detection: estimates leave them out."""
    text = []
    for m, (name, metric) in enumerate(a.data.state.spec.metrics.items()):
        n = 0 if a.data.below is None else int(a.data.below[:, m].sum())
        if n and metric.detection is not None:
            limit, whole = amount(metric.detection, metric.unit), n + int(a.data.observed[:, m].sum())
            lie, are = ("lies", "is") if n == 1 else ("lie", "are")
            some = (
                f"{n:,} of {counted(whole, 'outcome')} of {name} {lie} below the limit of detection, {limit}, and {are}"
            )
            biased = "its means come out too high, and its effects are biased where arms differ in how many there are"
            text.append(f"{some} left out: {biased}.")
    return text


def _best_arms(a: Analysis, words: Words) -> list[str]:
    """The best arm for all users together by a mixed model; where it is retired, also the best of the others."""
    of_all = [x for x in a.effects if (x.who, x.on, x.source) == (EVERYBODY, REWARD, MODEL)]
    arms = [x for x in of_all if a.can_be_judged(x) and not x.is_control]
    if a.variation is None or not arms:
        return []
    x = max(arms, key=lambda x: x.estimate)
    offered = [x for x in arms if x.arm not in a.data.state.retired]
    return [_best_arm(a, words, one) for one in dict.fromkeys([x, max(offered, key=lambda x: x.estimate, default=x)])]


def _best_arm(a: Analysis, words: Words, x: Effect) -> str:
    more, likely = _difference(a, x)
    clear = bool(x.certain or x.likely)
    earns = "earns" if clear else "is estimated to earn"
    chance = "which may be chance among so many comparisons" if x.by_chance else "which is still open"
    but = "" if clear else f", {chance if x.confirmed else 'which another season must confirm'}"
    if x.seasons is not None:
        likely += f"; compared in {counted(x.seasons, 'season')}"
    elif words.seasons is not None:
        likely += f"; {counted(words.seasons, 'season')} with outcomes"
    return f"{words.whole_scope}, {a.label(x.arm)} {earns} {more} than the control{but} ({likely})."


def _difference(a: Analysis, x: Effect) -> tuple[str, str]:
    """An effect, and its likely range, in words."""
    more = f"{amount(abs(x.estimate), units(a.data.state)[x.on])} {'more' if x.estimate >= 0 else 'less'}"
    ends = x.likely_ends if x.source == MODEL else x.ends
    if is_rate(a, x.on):
        return f"{_in_100(x.estimate)} in 100", f"likely {' to '.join(map(_in_100, ends))}"
    return more, f"likely {span(*((-ends[1], -ends[0]) if ends[1] < 0 else ends))}"  # as much less


def is_rate(a: Analysis, on: str) -> bool:
    """True if effects on a measure are differences of rates: on a yes-or-no metric, or a reward that is one."""
    metrics = a.data.state.spec.metrics
    rates = np.array([metric.kind == "yes/no" for metric in metrics.values()])
    if on in metrics:
        return metrics[on].kind == "yes/no"
    return all(np.count_nonzero(p) == 1 and (p[rates] == 1).any() for p in _preferences(a))


def largest_effect(a: Analysis, on: str) -> float:
    """The largest effect on a measure that is possible."""
    names = np.array(a.data.state.problem.metrics)
    weights = [(names == on).astype(np.float64)] if on in names else list(_preferences(a))
    return max(map(a.data.state.problem.largest_effect, weights))


def _preferences(a: Analysis) -> FloatArray:
    """The weights of all users, each once."""
    weights = [p.preference for p in a.data.state.profiles.values()]
    return np.unique(weights or [np.zeros(len(a.data.state.problem.metrics))], axis=0)


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
    single = f" for a single {words.user}" if count > 1 and a.variation is not None and a.own_rows else ""
    text = text or [f"No arm is shown to be better than the control{single} yet."]
    chance = [x for x in own if x.by_chance and x.estimate > 0]
    if chance:
        names, n = listed(sorted({a.label(x.arm) for x in chance}), MOST_NAMED), len({x.who for x in chance})
        some = f" for {n:,} of {count:,} {words.users}" if count > 1 else ""
        adjusted = "inconclusive after adjusting for multiple comparisons"
        text.append(f"By the likely range alone, {names} would be called better{some}; {adjusted}.")
    return text


def _gain(a: Analysis, words: Words) -> str:
    """The mean benefit of a decision so far, and whether the agreed limit was kept."""
    each = [float(part[-1]) / len(a.data.arm) for part in (a.benefit.gain, a.benefit.gain_low, a.benefit.gain_high)]
    gain, low, high = each
    if low == high == 0:
        return "Only the control was given, so nothing was gained or lost against it."
    noun = "plot" if words.plots else "person" if words.people and a.status.decisions == words.count else "decision"
    more = f"{amount(abs(gain), a.data.state.spec.reward.unit)} {'more' if gain >= 0 else 'less'}"
    what, ends = f"On average a {noun} earned about {more}", [f"{'+' * (v > 0)}{short(v)}" for v in (low, high)]
    if is_rate(a, REWARD):
        weighed = [a.data.state.problem.metrics[m] for m in np.flatnonzero(_preferences(a).any(0))]
        what, ends = f"{listed(weighed)}: about {_in_100(gain)} in 100", list(map(_in_100, (low, high)))
    could = "" if a.checks.withdrawn else f" (could be {' to '.join(ends)}); {a.benefit.verdict}"
    return f"{what} than under the control{could}."


def standing(a: Analysis, words: Words) -> list[str]:
    """What would free a trial whose guard lets hardly anything but the control through."""
    state = a.data.state
    arms, known = state.problem.arms, [d for d in a.next if d.probabilities]
    controls = [dict(zip(arms, state.profile(d.user).control.tolist(), strict=False)) for d in known]
    shares = [sum(p for arm, p in d.probabilities.items() if c[arm] > 0) for d, c in zip(known, controls, strict=True)]
    kept = [1.0 if d.share is None else d.share for d in known]
    if not known or np.mean(shares) <= STANDS or np.mean(kept) > KEPT:
        return []
    ways = ways_off_the_control(state.spec, state.policy, seasons=words.seasons)
    text = f"The trial stands on its control, which gets {percent(float(np.mean(shares)))} of the next decisions: the "
    text += "guard is not sure yet of other arms."
    return [text, f"A new trial would be freed by {ways}."]


def describe_benefit(a: Analysis, words: Words) -> list[str]:
    """Sentences on users who are worse off; empty before there are outcomes."""
    if not a.data.has_outcome.any():
        return []
    effects = [abs(x.estimate) for x in a.own_effects if x.arm in a.given and x.available]
    unit, withdrawn = a.data.state.spec.reward.unit, a.checks.withdrawn is not None
    largest, named = max(effects, default=0.0), bool(a.own_rows)
    return a.benefit.describe(unit, users=words.users, largest=largest, withdrawn=withdrawn, named=named)


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
    named = [r for r in waiting if r.user in a.own_rows]
    rivals = [f"{r.user}: {r.effect.arm} or {'an arm without outcomes' if r.alone else r.runner_up}" for r in named]
    more = f"; and {len(named) - MOST_NAMED:,} more" if len(named) > MOST_NAMED else ""
    which = f" ({'; '.join(rivals[:MOST_NAMED])}{more})" if named else ""
    some = f"{len(waiting):,} of {n:,} {words.users} {'is' if len(waiting) == 1 else 'are'} undecided"
    some = some if n > 1 else f"This {words.user} is undecided"
    return f"{some}: no arm has {least}{which}."


def better_than_control(a: Analysis, r: Recommendation) -> str:
    """How sure it is that a user's best arm is better than the control."""
    x = r.effect
    if x.arm == r.control:
        return "it is the control"
    if a.checks.withdrawn or (a.variation is not None and x.arm not in a.given):
        return "not judged"
    return x.unconfirmed or ("certainly" if x.certain > 0 else "likely" if x.likely > 0 else x.why_open or "open")


def best_by_kind(a: Analysis) -> Table | None:
    """The best arms of people who may never return, by what they are."""
    whom, kinds = defaultdict[tuple[str, str], list[Recommendation]](list), people_alike(a)
    for r in a.recommendations:
        if r.user in kinds:
            whom[kinds[r.user], r.effect.arm].append(r)
    rows = []
    for (kind, arm), some in sorted(whom.items(), key=lambda one: -len(one[1]))[:MOST_LISTED]:
        sure = Counter(better_than_control(a, r) for r in some)
        better = ", ".join(text + f" for {n:,}" * (len(sure) > 1) for text, n in sure.most_common())
        chances = dict.fromkeys(percent(p) for p in (min(r.p_best for r in some), max(r.p_best for r in some)))
        rows.append([_people(kind, len(some)), arm, " to ".join(chances), better])
    columns = ["people", "best so far", "chance of being best", "better than the control?"]
    return Table("The best arms so far of people alike", columns, rows) if rows else None


def people_alike(a: Analysis) -> dict[str, str]:
    """People without rows of their own, and what they are: their group, and attributes that are categories."""
    kinds = {}
    for user in a.data.state.users:
        if user not in a.own_rows:
            profile = a.data.state.profile(user)
            levels = (v for v in (profile.definition.attributes or {}).values() if isinstance(v, str))
            kinds[user] = ", ".join(filter(None, [profile.group, *levels]))
    return kinds


def _people(kind: str, n: int) -> str:
    return f"{n:,} {'person' if n == 1 else 'people'}" + f" ({kind})" * bool(kind)


def set_aside(a: Analysis) -> list[str]:
    """Arms that are not decided for all users together and have hardly a chance any more, with a way to an answer."""
    chances = [d.probabilities for d in a.next]
    if a.variation is None or a.checks.withdrawn or not chances or not all(chances):
        return []
    text = []
    for x in a.effects:
        plays = sum(p.get(x.arm, 0.0) for p in chances)
        undecided = not (x.is_control or x.certain or x.likely) and x.available and a.can_be_judged(x)
        if (x.who, x.on, x.source) != (EVERYBODY, REWARD, MODEL) or not undecided or plays >= SELDOM:
            continue
        low, high = x.likely_ends
        short_of = ((high - low) / 2 / abs(x.estimate)) ** 2 - 1 if x.estimate else np.inf  # widths fall by the root
        takes = "outcomes of it and of the control in another season"
        if not x.unconfirmed:
            takes = f"more than {MOST_NEEDED} times the outcomes so far, for its effect is close to 0"
            if x.decisions * short_of <= MOST_NEEDED * a.status.decisions:
                more = round(x.decisions * short_of)  # below 1: its range is short enough, but not for so many arms
                some = f"about {counted(more, 'more outcome')}" if more > 0 else "some more outcomes"
                takes = f"{some} of it"
        text.append(
            f"{x.arm} is set aside without an answer: of the next {counted(len(chances), 'decision')} it is expected "
            f"to get {plays:.2g}. To decide about it would take {takes}: give arms a floor ([floors] arms = 0.05) or "
            'goal = "find" in the file of a new trial; or retire it.'
        )
    return text


def outcomes_by_arm(a: Analysis) -> list[Table]:
    """The outcomes of each arm on metrics that are not plain numbers: as recorded, and what the model makes of them."""
    state, arms = a.data.state, _arms_with_outcomes(a)
    metrics, tables = state.spec.metrics, list[Table]()
    if arms and isinstance(a.fit, FittedModel) and a.fit.learner.has_draws:
        offers = estimates.offers_now(state)
        draws = summaries.mean_draws_of_arms(a.fit, offers)  # (S, K, M)
        control = np.einsum("k,skm->sm", offers.control.mean(0), draws)
        for m, (name, metric) in enumerate(metrics.items()):
            rows = [] if metric.kind == "number" else [(arm, draws[:, state.problem.arm(arm), m]) for arm in arms]
            cells = [[a.label(arm), _recorded(a, m, arm), *_estimated(metric, own, control[:, m])] for arm, own in rows]
            if cells:
                title = f"{measured(name, metric.unit)}, with likely ranges (95 %)"
                columns = ["arm", "recorded", "estimate", "against the control", "ratio"]
                tables.append(Table(title, columns[: len(cells[0])], cells))
    return tables


def arms_by_user(a: Analysis, users: Sequence[str]) -> Table | None:
    """The arms of each of these users in each of the last seasons."""
    data, L, called = a.data, a.data.state.episode.number, calendar(a.data.state)
    seasons = range(max(1, L - MOST_COLUMNS + 1), L + 1)
    given: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    for i in np.flatnonzero(np.isin(data.user, [data.state.users[name] for name in users])):
        given[int(data.user[i]), int(data.episode[i])][data.state.problem.arms[data.arm[i]]] += 1
    if not given:
        return None
    rows = [
        [
            user,
            *(", ".join(f"{arm}\u00a0×\u00a0{n}" if n > 1 else arm for arm, n in given[h, e].items()) for e in seasons),
        ]
        for user, h in ((user, data.state.users[user]) for user in users)
    ]
    title = f"Arms of each user, by {called.word}" + f" (the last {MOST_COLUMNS})" * (L > MOST_COLUMNS)
    return Table(title, ["user", *map(called.label, seasons)], rows)


def _arms_with_outcomes(a: Analysis) -> list[str]:
    return [a.data.state.problem.arms[k] for k in np.unique(a.data.learned[a.data.teaches])]


def _recorded(a: Analysis, m: int, arm: str) -> str:
    """The outcomes of an arm on a metric, before any model: a count, or a mean."""
    metric, data = list(a.data.state.spec.metrics.values())[m], a.data
    at = (data.arm == data.state.problem.arm(arm)) & data.observed[:, m]
    y, sizes = data.vector[at, m], np.ones(at.sum()) if data.sizes is None else data.sizes[at, m]
    if not len(y):
        return "none"
    total, size = float(y @ sizes), float(sizes.sum())
    if metric.kind == "yes/no":
        return f"{total:,.0f} of {size:,.0f}{f' {metric.of}' if metric.of else ''} ({percent(total / size)})"
    text = short(total / size)
    return f"{text} (n = {len(y):,})" if metric.of is None else f"{text} ({total:,.0f} in {short(size)} {metric.of})"


def _estimated(metric: Metric, own: FloatArray, control: FloatArray) -> list[str]:
    """An arm's mean, and against the control its difference and its ratio; draws of both."""
    text, rate = _number_of(metric), metric.kind == "yes/no"
    mean = _in_words(text, float(own.mean()), own)
    if np.allclose(own, control):
        return [mean, "", ""][: 2 if metric.kind == "score" else 3]
    apart = own - control
    less = _in_words(_in_100 if rate else short, float(apart.mean()), apart, " in 100" * rate)
    if metric.kind == "score":  # where its zero lies is a convention
        return [mean, less]
    return [mean, less, _in_words(short, float(np.median(own / control)), own / control)]


def _number_of(metric: Metric) -> Callable[[float], str]:
    return percent if metric.kind == "yes/no" else short


def _in_100(share: float) -> str:
    n = abs(100 * share)
    return f"{n:.{int(0.05 <= n < 0.95)}f} {'more' if share >= 0 else 'fewer'}"


def _in_words(text: Callable[[float], str], middle: float, draws: FloatArray, unit: str = "") -> str:
    """A number with its likely range."""
    low, high = map(float, np.quantile(draws, [0.025, 0.975]))
    return f"{text(middle)}{unit} ({text(low)} to {text(high)})"


def upcoming(decisions: Sequence[Decision], arms: Sequence[str], word: str, kinds: Mapping[str, str]) -> Table:
    """The next decisions: the arms that anybody may get; a user's identical plots, or people alike, in one row."""
    shown = [arm for arm in arms if any(d.probabilities.get(arm, 1.0) >= LEAST_SHARE for d in decisions)]
    own, rows = [d for d in decisions if d.user not in kinds], []

    def cells(d: Decision) -> list[str]:
        p, unknown = d.probabilities, "not known before the draw"
        return [*(percent(p.get(arm, 0.0)) if p else unknown for arm in shown), d.reason]

    for _, run in groupby(own, lambda d: (d.user, d.probabilities, d.reason)):
        first, *more = run
        plots = [d.plot for d in (first, *more) if d.plot is not None]
        where = f", {counted(len(plots), 'plot')} alike" if len(plots) > 1 else f", plot {plots[0]}" if plots else ""
        rows.append([first.user + where, *cells(first)])
    of_kinds = defaultdict[tuple[str, str], list[Decision]](list)  # by what people are, and the reason
    for d in decisions:
        if d.user in kinds:
            of_kinds[kinds[d.user], d.reason].append(d)
    for (kind, why), some in sorted(of_kinds.items(), key=lambda one: -len(one[1]))[:MOST_LISTED]:
        each = [[d.probabilities.get(arm, 0.0) for d in some] for arm in shown]
        ends = [" to ".join(dict.fromkeys([percent(min(p)), percent(max(p))])) for p in each]
        rows.append([_people(kind, len(some)), *(ends if some[0].probabilities else cells(some[0])[:-1]), why])
    caption = (
        f"If every user were asked now, in its context of this {word} or a typical one. This is a preview: nothing was "
        "decided, and no arm was drawn. A number is the probability of a draw, not of being the best."
    )
    return Table(caption, ["user", *shown, "why"], rows)
