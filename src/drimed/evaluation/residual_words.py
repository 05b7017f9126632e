"""What a check of residuals has found, in words, and what to do about it, by what the model has."""

from __future__ import annotations

KINDS = ("paper", "field", "people")
SHIFTS = {
    "season": "outcomes shift between seasons",
    "group": "outcomes differ between groups",
    "user": "outcomes differ between users",
    "arm": "arms differ from what the model says of them",
    "season x arm": "arms do better in some seasons than in others",
    "group x arm": "arms do better in some groups than in others",
    "user x arm": "arms do better for some users than for others",
    "season x group": "groups shift against each other from season to season",
    "trend": "outcomes follow a trend over time",
}
LEVELS = {
    "season": "season level",
    "group": "group level",
    "user": "user level",
    "season x arm": "effects that vary by season",
    "group x arm": "effects that vary by group",
    "user x arm": "effects that vary by user",
    "season x group": "level for each group and season (a block)",
    "trend": "season level",
}
NEEDS = {"trend": "season"}  # the family that answers a finding of another name
CONTROL_PLOTS = {"season", "group", "user", "season x group", "trend"}  # a control plot shares these levels
OUTLIER = "outlier"
NOT_SERIOUS = ("spread by ", OUTLIER, "tails", "two values", "small counts")
SCATTERS = {
    "arm": "outcomes scatter more under some arms than under others",
    "season": "outcomes scatter more in some seasons than in others",
    "group": "outcomes scatter more in some groups than in others",
    "user": "outcomes scatter more for some users than for others",
    "fitted mean": "the larger outcomes are, the more (or the less) they scatter",
}


def serious(name: str) -> bool:
    """Whether ranges and promise rest on what failed."""
    return not name.startswith(NOT_SERIOUS)


def found(name: str, metric: str, size: float, place: str = "") -> str:
    """One sentence without a full stop; `size` is what the check measures, `place` names the outcome that it found."""
    if name in SHIFTS:
        return f"{metric}: {SHIFTS[name]}, by about {size:.1f} times what single outcomes scatter by"
    if name.startswith("spread by "):
        by = name.removeprefix("spread by ")
        return f"{metric}: {SCATTERS.get(by, f'how much outcomes scatter depends on {by}')}"
    if name == "serial":
        return f"{metric}: an outcome of a user resembles the one before (correlation {size:.2f})"
    if name == OUTLIER:
        return f"{metric}: one outcome lies far from all others ({place})"
    if name == "tails":
        return f"{metric}: more outcomes lie far off than a normal distribution has"
    if name == "two values":
        return f"{metric}: outcomes take two values only"
    if name == "small counts":
        return f"{metric}: outcomes are small whole numbers"
    if name.endswith(" x arm"):
        return f"{metric}: what an arm does depends on {name.removesuffix(' x arm')}"
    covariate, form = name.rsplit(": ", 1)
    return f"{metric}: outcomes follow {covariate}" + (" along a curve" if form == "curve" else "")


def advice(name: str, kind: str, terms: frozenset[str]) -> str:
    """What to do, without a capital or a full stop."""
    if name in LEVELS:
        return _level(name, kind, terms)
    if name == "arm":
        return "give the arms effects of their own instead of attributes, or add the attribute that is missing"
    if name.startswith("spread by "):
        return "have the noise learned for each arm, declare what scales it as a context field, or use the logarithm"
    if name == "serial":
        return "outcomes of a user are not independent and ranges are too narrow: add a user level, or ask less often"
    if name == OUTLIER:
        return "check whether it was typed and measured correctly, and amend it if not"
    if name == "tails":
        return "look for outcomes of another kind among them; ranges hold in large samples only"
    if name == "two values":
        return "effects are differences of shares; ranges hold in large samples only"
    if name == "small counts":
        return "the noise grows with the mean: use the square root or a rate, or read ranges as approximate"
    return _covariate(name, kind, terms)


def _level(name: str, kind: str, terms: frozenset[str]) -> str:
    family, what = NEEDS.get(name, name), LEVELS[name]
    if family in terms:
        if name == "trend":
            return (
                "the model takes it for chance which season comes first: look at recent seasons alone, or add time as "
                "a covariate"
            )
        return f"the model has {_a(what)}, and it does not cover this: look at the outcomes first"
    ways = ['use [model] kind = "field"' if kind == "paper" else "add it to [model]"]
    if name.startswith("user") and kind != "people":
        ways = ['use [model] kind = "people", or make users who belong together a group']
    if name in CONTROL_PLOTS:
        ways.append("use control plots")
    return f"the model has no {what}: {', or '.join(ways)}"


def _covariate(name: str, kind: str, terms: frozenset[str]) -> str:
    arms = name.endswith(" x arm")
    covariate = name.removesuffix(" x arm") if arms else name.rsplit(": ", 1)[0]
    if name.endswith(": curve") and "covariate" in terms:
        return f"the model has a straight line in {covariate}: add its square or logarithm as a field of its own"
    family = "covariate x arm" if arms else "covariate"
    if family in terms:
        return f"the model has {covariate}, and it does not cover this: look at the outcomes behind it"
    what = "change the arms' effects" if arms else "shift the mean"
    how = 'with [model] kind = "field", let' if kind == "paper" else "let"
    return f"the model leaves it out: {how} {covariate} {what}"


def _a(what: str) -> str:
    return what if what.startswith("effects") else f"a {what}"
