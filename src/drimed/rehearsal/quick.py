"""A rehearsal of a second or two, for a person who is about to create a trial."""

from __future__ import annotations

from drimed.errors import DrimedError
from drimed.rehearsal import designs, page, scenarios
from drimed.rehearsal.designs import OWN
from drimed.rehearsal.page import main_scenario
from drimed.rehearsal.results import first_claim, measures
from drimed.rehearsal.run import Plan, rehearse
from drimed.rehearsal.scenarios import SimulatedTrials
from drimed.trial.spec import TrialSpec
from drimed.trial.transaction import Rehearsed

TRIALS = 20
LARGEST = 100  # decisions of a season times arms times metrics; more would take longer than a person waits


def quick(spec: TrialSpec, given: dict[str, scenarios.Scenario] | None = None) -> tuple[Rehearsed | None, list[str]]:
    """What is kept in the trial's first event, and what a person should know; nothing where it would take long.

    `given` are the scenarios of the file.
    """
    try:
        found = given or scenarios.usual(spec)
        name = main_scenario({n: s for n, s in found.items() if not s.history} or scenarios.usual(spec))
        trials = SimulatedTrials.of(spec, found[name], ())
    except DrimedError as error:
        return None, [f"not rehearsed: {error}"]
    size = max(map(len, trials.population.seasons)) * len(spec.arms) * len(spec.metrics)
    if size > LARGEST or trials.setting.seasons > 2 * scenarios.SEASONS:
        return None, []
    plan = Plan(spec, {name: found[name]}, (designs.own(spec),), trials=TRIALS)
    m = measures(rehearse(plan, None, jobs=1)[name, OWN])
    control, power = page.known(m, "share of control"), m[f"power, {first_claim(m)}"]
    said = page.short_notes(name, trials.setting.seasons, m, own=given is not None and name in given)
    kept: Rehearsed = {
        "hash": plan.hash(),
        "scenario": name,
        "seasons": trials.setting.seasons,
        "trials": TRIALS,
        "control": control.value,
        "power": None if power is None else power.value,
    }
    return kept, said
