"""What the columns of a report's tables mean: the second sheet of its workbooks."""

from __future__ import annotations

from collections.abc import Iterable

from drimed.trial.export import MEANING

_SEASON = {name: MEANING[name] for name in ("episode", "season", "date")}
_LIKELY = {
    "likely_low": "lower end of the likely range (95 %, at one look); empty: nothing is known yet",
    "likely_high": "upper end of the likely range; empty: nothing is known yet",
}
_EFFECT = {
    "arm": "the arm that is compared with the control",
    "on": "what the effect is on: the reward or a metric, in its unit",
    "estimate": "how much more the arm is estimated to bring than the control; empty: nothing is known yet",
    **_LIKELY,
}
TABLES: dict[str, dict[str, str]] = {
    "effects": {
        "who": "for whom: all users, a group or a user",
        **_EFFECT,
        "low": "lower end of the range that holds at all times at once; empty: nothing is known yet",
        "high": "upper end of the range that holds at all times at once; empty: nothing is known yet",
        "source": "what it rests on: the model, or the propensities alone",
        "decisions": "how often the arm was given here",
        "available": "whether anybody here can get the arm now",
        "seasons": "how many have outcomes of the arm, or of the control if these are fewer; with fewer than 2 the arm "
        "is not judged; empty: it does not matter in this model, or for what rests on the propensities alone",
        "significant": "whether the likely range excludes 0 after adjusting for all arms and users; where it "
        "does not, it may be chance and the arm is open; empty: the paper's model or the propensities alone, where "
        "this is not asked",
        "retired": "whether the arm was retired: it is not given any more, and what was found about it stays",
        "own_outcomes": "how many outcomes of the arm there are here; empty: not worked out",
    },
    "recommendations": {
        "user": MEANING["user"],
        "arm": "the arm with the largest estimated reward for the user, of the control and the arms with outcomes",
        "control": "the user's control",
        "effect": "how much more the arm is estimated to bring than the control",
        "effect_low": "lower end of the range of that effect that holds at all times at once",
        "effect_high": "upper end of the range of that effect that holds at all times at once",
        **_LIKELY,
        "lead": "by how much the arm is estimated to be ahead of the next; empty: no other arm has outcomes",
        "runner_up": "the next best arm with outcomes; empty: there is none",
        "p_best": "chance that the arm is the best of all for the user, by the model",
    },
    "allocation": _SEASON,
    "over_time": {**_SEASON, **_EFFECT},
    "varies": {
        "metric": "the metric that varies, in its unit",
        "family": "what varies: the name of the term of the model",
        "says": "the same in words",
        "deviation": "how much it varies beyond what covariates explain, but for rows of a covariate itself: the "
        "standard deviation that fits the outcomes best",
        "low": "lower end of the likely range of that deviation; 0: it may be that nothing varies",
        "high": "upper end of the likely range of that deviation",
        "told": "whether the outcomes tell it from what else varies; where they do not, only `high` says something",
    },
    "levels": {
        "of": "whether the row is of a site or of a season",
        "metric": "the metric, in its unit",
        "name": "the site or season",
        "outcomes": "how many outcomes there are of it",
        "estimate": "what is expected there under the control: at a site with a typical context, in a "
        "season with its own",
        "low": "lower end of its likely range",
        "high": "upper end of its likely range",
    },
    "covariates": {
        "covariate": "what is known about users or before decisions",
        "value": "its value, in its unit, or its level",
        **_EFFECT,
        "estimate": "what the effect would be if all users had this value",
    },
}


def meanings(table: str, columns: Iterable[str]) -> dict[str, str]:
    """Of these columns of a table; those of the allocation are arms."""
    known = TABLES[table]
    return {name: known.get(name, "how often this arm was given in that season") for name in columns}
