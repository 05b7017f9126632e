"""`drimed trial rehearse`: what a trial will do, before anybody is in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from drimed.cli.trial import common
from drimed.errors import InputError

if TYPE_CHECKING:
    from drimed.experiments.sweep import OnDone
    from drimed.rehearsal.page import Results
    from drimed.rehearsal.run import Plan

QUICK = 100  # trials


def rehearse(
    file: Annotated[Path, typer.Argument(help="The trial file, .toml or .json; it may have scenarios of its own.")],
    scenarios: Annotated[Path | None, typer.Option(help="A file with scenarios, instead.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="A table of the past: season, site, arm and metrics; .csv, .xlsx or .json.")
    ] = None,
    trials: Annotated[int, typer.Option(min=2, help="Simulated trials of each scenario.")] = 1000,
    seasons: Annotated[int | None, typer.Option(min=1, help="Seasons, whatever the scenarios say.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
    quick: Annotated[bool, typer.Option(help=f"{QUICK} trials, and few other designs.")] = False,
    find: Annotated[str | None, typer.Option(help="The smallest of: seasons, tolerance, floor.")] = None,
    goal: Annotated[str | None, typer.Option("--for", help='What it must reach: "power 0.8".')] = None,
    scenario: Annotated[str | None, typer.Option(help="Of --find. Default: the first with an effect.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
    cluster: Annotated[str | None, typer.Option(help="Run on a cluster instead: dask=tcp://host:port.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the page goes. Default: out/rehearsal/TRIAL, written over.")
    ] = None,
    force: common.Force = False,
) -> None:
    """Simulate a trial many times: what it finds, whom it harms, and how long it stays on the control.

    Finished blocks are kept under OUT/blocks: an interrupted rehearsal continues where it stopped.
    """
    from drimed.experiments.sweep import Cluster
    from drimed.rehearsal import find as finding
    from drimed.rehearsal.page import Results, main_scenario, write
    from drimed.rehearsal.run import rehearse as run

    plan = _plan(file, scenarios, history, quick, trials=trials, seasons=seasons, seed=seed)
    if (find is None) != (goal is None):
        raise InputError('--find and --for belong together, such as --find seasons --for "power 0.8"')
    wanted = scenario or main_scenario(plan.scenarios)
    if wanted not in plan.scenarios:
        raise InputError(f"no scenario {wanted!r}; there are {', '.join(plan.scenarios)}")
    place = out or Path("out") / "rehearsal" / plan.spec.name
    how: dict[str, Any] = {"jobs": jobs, "cluster": Cluster.parse(cluster) if cluster else None}
    answer = None
    try:
        if find is not None and goal is not None:
            aim = finding.Goal.parse(goal)
            with _progress(f"finding {find}") as done:
                answer = finding.find(find, aim, plan, wanted, place / "blocks", on_done=done, **how)
            common.say(answer.words())
        with _progress("rehearsing") as done:
            records = run(plan, place / "blocks", on_done=done, **how)
    except KeyboardInterrupt:
        common.say(f"interrupted; what is finished is kept in {place / 'blocks'}: the same command continues")
        raise typer.Exit(130) from None
    results = Results(plan, records, answer)
    _summary(results)
    common.say(f"wrote {write(results, place, force=force or out is None)}")


def _plan(file: Path, scenarios: Path | None, history: Path | None, quick: bool, **given: Any) -> Plan:
    """`given`: trials, seasons and seed."""
    from drimed.rehearsal import designs
    from drimed.rehearsal import history as histories
    from drimed.rehearsal import scenarios as worlds
    from drimed.rehearsal.run import Plan

    spec, found = worlds.load(file)
    if scenarios is not None:
        found = worlds.load_scenarios(spec, scenarios)
    past = histories.load(spec, history) if history is not None else None
    if past is not None:
        found = past.scenarios(spec, given["seasons"]) | found
    elif any(s.history for s in found.values()):
        raise InputError("a scenario is as in the past: give the past with --history FILE")
    found = found or worlds.usual(spec, given["seasons"])
    given |= {"history": past}
    if quick:
        some = designs.own(spec), designs.without_learning(spec)[0]
        return Plan(spec, found, some, **given | {"trials": min(given["trials"], QUICK)})
    return Plan.everything(spec, found, **given)


@contextmanager
def _progress(what: str) -> Iterator[OnDone]:
    """A bar of simulated trials."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("trials"), TimeRemainingColumn())
    with Progress(*columns, console=common.console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done: progress.update(task, completed=done.finished_seeds, total=done.seeds)


def _summary(results: Results) -> None:
    from drimed.rehearsal.designs import OWN
    from drimed.rehearsal.measures import called, first_claim
    from drimed.rehearsal.words import amount, verdict

    measured, unit = results.measured, results.plan.spec.reward.unit
    claim = first_claim(measured[next(iter(results.plan.scenarios)), OWN])
    shares = {
        "power": f"power, {claim}",
        "false": f"false claims, {claim}",
        "control": "share of control",
        "harmed": "users harmed beyond the tolerance",
    }
    common.show([
        {"scenario": s}
        | {short: amount(measured[s, OWN][name]) for short, name in shares.items()}
        | {called("regret", unit): amount(measured[s, OWN]["regret against the best arm"], share=False)}
        for s in results.plan.scenarios
    ])  # fmt: skip
    for said in verdict(measured, results.seasons, unit):
        (common.note if said.warns else common.say)(said.text)
