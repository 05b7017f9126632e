"""A field trial in a few plain sentences, each saying for whom and when it holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from drimed.findings.effects import EVERYBODY, MODEL
from drimed.findings.varying import Varies, Varying
from drimed.formatting import amount, listed, marked, short, span
from drimed.records import Effect
from drimed.trial.model_free import REWARD

CATEGORY = "category "  # how the names of families begin that tell levels of a category apart
SAID = ("season", "group", "user", "group x arm", "user x arm", "season x arm")  # what a reader should know first


def field_sentences(
    found: Varying | None,
    effects: Sequence[Effect],
    units: Mapping[str, str],
    retired: Collection[str] = (),
) -> list[str]:
    """The best arm for all users together, and what varies most.

    `effects` are those of which something may be said, and `units` those of the reward and the metrics.
    """
    if found is None:
        return []
    return [*_best(found, effects, units[REWARD], retired), *_varies(found, units)]


def _best(found: Varying, effects: Sequence[Effect], unit: str, retired: Collection[str]) -> list[str]:
    """Of all arms; where that one is retired, also the best of those that are not."""
    arms = [x for x in effects if (x.who, x.on, x.source) == (EVERYBODY, REWARD, MODEL) and not x.is_control]
    if not arms:
        return []
    best = max(arms, key=lambda x: x.estimate)
    offered = [x for x in arms if x.arm not in retired]
    said = [_earns(found, best, unit, marked(best.arm, retired))]
    if best.arm in retired and offered:
        best = max(offered, key=lambda x: x.estimate)
        said.append(_earns(found, best, unit, best.arm))
    return said


def _earns(found: Varying, best: Effect, unit: str, name: str) -> str:
    seen = found.words.seen(best.seasons)
    more = "more" if best.estimate >= 0 else "less"
    clear = bool(best.certain or best.likely)
    earns = "earns" if clear else "is estimated to earn"
    still = "" if clear else ", which is still open" if best.confirmed else ", which another season must confirm"
    return (
        f"{found.words.whole_scope}, {name} {earns} {amount(abs(best.estimate), unit)} {more} than the control"
        f"{still} (likely {span(best.likely_low, best.likely_high)}{f'; {seen}' if seen else ''})."
    )


def _varies(found: Varying, units: Mapping[str, str]) -> list[str]:
    """What covariates do comes first, where it is clear; all else is what they leave."""
    said = []
    beyond = f"beyond {found.words.explained}, " if found.words.explained else ""
    for metric in dict.fromkeys(v.metric for v in found.varies):
        known = {v.family: v for v in found.varies if v.metric == metric}
        mine = [known[f] for f in SAID if f in known]
        clear = [
            about(v, units[metric]) for v in known.values() if v.family.startswith(CATEGORY) and v.told and v.low > 0
        ]
        levels = [about(v, units[metric]) for v in mine if v.told and " x " not in v.family]
        effects = [about(v, units[metric]) for v in mine if v.told and " x " in v.family]
        left = beyond + "; ".join(", ".join(p) for p in (levels, effects) if p) if levels or effects else ""
        parts = [*([", ".join(clear)] if clear else []), *([left] if left else []), *untold(mine)]
        if parts:
            told = ", as standard deviations" if clear or left else ""
            said.append(f"{metric[:1].upper()}{metric[1:]}{told}: {'; '.join(parts)}.")
    return said


def about(v: Varies, unit: str) -> str:
    """How much something varies; where it may be nothing, how much at most."""
    if v.low == 0:
        return f"{v.says} at most {amount(float(f'{v.high:.2g}'), unit)}"
    return f"{v.says} about {amount(float(f'{v.deviation:.2g}'), unit)} ({_rough(v.low)} to {_rough(v.high)})"


def untold(some: Sequence[Varies]) -> list[str]:
    """What the outcomes cannot tell from what else varies, in one part of a sentence, or none."""
    parts = [f"how much {v.says.removesuffix(' by')}" for v in some if not v.told]
    return [f"it cannot be told yet {listed(parts)}"] if parts else []


def _rough(value: float) -> str:
    """Two figures."""
    return short(float(f"{value:.2g}"))
