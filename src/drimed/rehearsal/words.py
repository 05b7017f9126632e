"""A rehearsal in words: what a person should know before the trial starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from drimed.formatting import percent, short
from drimed.rehearsal.designs import OWN
from drimed.rehearsal.measures import ALL_TIMES, CALLED, Measured, Number, first_claim

STANDS = 0.8  # share of the control beyond which a trial learns little about anything else
WEAK = 0.5  # power below which a trial more often finds nothing than something
OFTEN = 0.1  # false claims beyond which something is wrong with the design
FROZEN = "trials that stand on the control"
RULE_MET = re.compile("rule .+ met")
HARMED = 0.05  # share of users beyond which it is told first


@dataclass(frozen=True)
class Said:
    """A sentence, and whether it is a warning."""

    text: str
    warns: bool = False


def amount(number: Number | None, *, share: bool = True, unit: str = "") -> str:
    """A number with its error, and its unit where it has one.

    >>> amount(Number(0.4212, 0.0156)), amount(Number(-12.34, 0.5), share=False, unit="EUR")
    ('42 % (± 2)', '−12.3 (± 0.5) EUR')
    """
    if number is None:
        return "–"
    if share:
        return f"{percent(number.value)} (± {_rough(100 * number.error)})"
    return f"{short(number.value)} (± {_rough(number.error)}){f' {unit}' if unit else ''}"


def _rough(error: float) -> str:
    """One figure, without an exponent.

    >>> [_rough(e) for e in (0.0312, 1.6, 11.2)]
    ['0.03', '2', '10']
    """
    return f"{float(f'{error:.1g}'):,.10g}"


def known(m: Measured, name: str) -> Number:
    """A number that every scenario has."""
    return m[name] or Number(0.0, 0.0)


def told(seasons: int, m: Measured, unit: str = "") -> list[Said]:
    """What the trial would do in one scenario; `unit` is that of the reward."""
    harmed, worst = known(m, "users harmed beyond the tolerance"), m["expected loss of the worst user"]
    false, gain = known(m, f"false claims, {first_claim(m)}"), m["gain against the control"]
    return [
        _control(seasons, m),
        *_found(seasons, m),
        Said(f"An arm that is not better is called better in {amount(false)} of trials.", false.value > OFTEN),
        *_rules(seasons, m),
        _brings(gain, m["regret against the best arm"], unit),
        Said(
            f"{amount(harmed)} of users lose more than the tolerance over the trial; the worst one is expected to end "
            f"{_against(worst, 'below', 'above', unit)} the control with a decision.",
            harmed.value > HARMED,
        ),
    ]


def _brings(gain: Number | None, regret: Number | None, unit: str) -> Said:
    """What a decision is worth."""
    if gain == regret == Number(0.0, 0.0):
        return Said("A decision brings what the control would: all arms do the same.")
    return Said(
        f"A decision brings {_against(gain, 'more', 'less', unit)} than the control would, and "
        f"{amount(regret, share=False, unit=unit)} less than the best arm for each user."
    )


def _rules(seasons: int, m: Measured) -> list[Said]:
    """What the stopping rules of the file do."""
    found = []
    for name in (key.removeprefix("rule ").removesuffix(" met") for key in m if RULE_MET.fullmatch(key)):
        met, wrong = known(m, f"rule {name} met"), known(m, f"rule {name} met by a false claim")
        found.append(
            Said(
                f"Stopping rule {name!r} is met in {amount(met)} of trials, by a false claim in {amount(wrong)}.",
                wrong.value > OFTEN,
            )
        )
    lasts = m["seasons"]
    if lasts is not None and lasts.value < seasons:
        found.append(Said(f"A trial ends after {amount(lasts, share=False)} of {seasons} seasons on average."))
    return found


def _against(number: Number | None, more: str, less: str, unit: str = "") -> str:
    """How much, and which way.

    >>> _against(Number(-12.34, 0.5), "more", "less"), _against(Number(3.0, 0.5), "more", "less")
    ('12.3 (± 0.5) less', '3 (± 0.5) more')
    """
    found = number or Number(0.0, 0.0)
    far = amount(Number(abs(found.value), found.error), share=False, unit=unit)
    return f"{far} {less if found.value < 0 else more}"


def _control(seasons: int, m: Measured) -> Said:
    control, frozen = known(m, "share of control"), known(m, FROZEN)
    if m[f"power, {first_claim(m)}"] is None:  # no arm is better: the control is where it should be
        return Said(f"{amount(control)} of decisions are for the control.")
    if frozen.value > WEAK:
        return Said(
            f"The trial is frozen: in {percent(frozen.value)} of simulated trials every user has the control in all of "
            f"{seasons} seasons. A wider tolerance, a lower confidence or more users would let it learn.",
            True,
        )
    if control.value > STANDS:
        return Said(
            f"The trial stays on the control: {amount(control)} of decisions, and {percent(frozen.value)} of "
            "simulated trials never leave it.",
            True,
        )
    return Said(f"{amount(control)} of decisions are for the control.")


def _found(seasons: int, m: Measured) -> list[Said]:
    claim = first_claim(m)
    power, sure, harm = m[f"power, {claim}"], m.get(f"power, {ALL_TIMES}"), m[f"harm found, {claim}"]
    found = []
    if power is not None:
        few = f" {seasons} seasons are too few to count on an answer." if power.value < WEAK else ""
        found.append(
            Said(
                f"After {seasons} seasons a better arm is called better in {amount(power)} of trials ({CALLED[claim]})"
                f"{'' if sure is None else f', in {amount(sure)} by ranges that hold at all times'}.{few}",
                power.value < WEAK,
            )
        )
    if harm is not None:
        costs = amount(m["decisions harmful beyond the tolerance"])
        found.append(
            Said(
                f"A harmful arm is called worse in {amount(harm)} of trials; {costs} of decisions give an arm that "
                "costs its user more than the tolerance."
            )
        )
    return found


def verdict(all_measures: Mapping[tuple[str, str], Measured], seasons: Mapping[str, int], unit: str = "") -> list[Said]:
    """The few things that hold for the trial as a whole: what is wrong comes first."""
    found: list[Said] = []
    for (scenario, design), m in all_measures.items():
        if design != OWN:
            continue
        for said in told(seasons[scenario], m, unit):
            if said.warns:
                found.append(Said(f"{scenario[:1].upper()}{scenario[1:]}: {said.text}", True))
    return found or [Said("Nothing in these scenarios speaks against starting this trial.")]


def short_notes(scenario: str, seasons: int, m: Measured, *, own: bool = False) -> list[str]:
    """What a quick rehearsal says when a trial is created; `own`: its scenario is one of the trial file."""
    power, frozen, control = m[f"power, {first_claim(m)}"], m[FROZEN], m["share of control"]
    said = []
    if frozen is not None and frozen.value > WEAK:
        said.append(
            f"a quick rehearsal ({scenario}, {seasons} seasons) stands on the control in {percent(frozen.value)} of "
            "simulated trials: the guard never lets another arm be tried; widen the tolerance, or see "
            "`drimed trial rehearse`"
        )
    elif control is not None and control.value > STANDS:
        said.append(
            f"a quick rehearsal ({scenario}, {seasons} seasons) plays the control in {percent(control.value)} of "
            "decisions; `drimed trial rehearse` says what other tolerances would do"
        )
    if power is not None and power.value < WEAK:
        said.append(
            f"a quick rehearsal finds {_what(scenario, own)} in {percent(power.value)} of simulated trials after "
            f"{seasons} seasons: too few to count on an answer; `drimed trial rehearse FILE --find seasons "
            '--for "power 0.8"` says how many are needed'
        )
    return said


def _what(scenario: str, own: bool) -> str:
    """What a rehearsal looks for, and where that is set."""
    if own:
        return f"what is better in the scenario {scenario!r} of the file"
    return (
        "a difference that matters (one arm better than the control by as much as [tolerance] lets a decision lose; "
        "[scenarios] in the file says otherwise)"
    )
