"""What a question will cost: an estimate from the size of a trial, before it begins.

Measured on one core with outcomes of one episode, for 100 to 1,800 effects; it is right within a factor of three.
"""

from __future__ import annotations

from drimed.trial.spec import TrialSpec

LONG = 2.0  # seconds: who creates a trial should know

# kind of model: seconds for so many effects, and the power with which they grow
_MEASURED = {"field": (2.0, 800, 2.4), "people": (10.0, 800, 2.5), "paper": (0.45, 400, 3.0)}


def ask_seconds(spec: TrialSpec, users: int = 0) -> float:
    """How long it takes to ask for everybody after new outcomes, with the users of the file or so many."""
    seconds, effects, power = _MEASURED[spec.kind]
    n, people = len(spec.arms) * len(spec.metrics), max(1, len(spec.users), users)
    if spec.kind == "field":  # every site has effects of its own
        n *= people
    each = float(seconds * (n / effects) ** power)
    return each * people if spec.kind == "people" else each  # a table of all arms for each of them


def note(spec: TrialSpec, users: int = 0) -> str | None:
    """What to say about it; None: nothing."""
    seconds = ask_seconds(spec, users)
    if seconds < LONG:
        return None
    time = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    sites, advice = "", "fewer arms or metrics make it shorter"
    many = max(1, len(spec.users), users)
    if spec.kind == "field" and many > 1:
        sites, advice = f"{many} sites, ", '[model] kind = "people" is made for many users'
    elif spec.kind == "people" and many > 1:
        sites, advice = f"{many} people at once, ", f"{advice}, and so does asking for fewer people at a time"
    return (
        f"asking after new outcomes will take about {time} ({sites}{len(spec.arms)} arms, {len(spec.metrics)} metrics; "
        f"an estimate): {advice}"
    )
