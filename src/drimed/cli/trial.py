"""`drimed trial`: describe an experiment, ask each season, tell the outcomes, prove it afterwards."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from drimed import outputs, records
from drimed.cli import console as ui
from drimed.cli.console import AsJson, Dry, Force, Why, Yes, note, say
from drimed.errors import InputError, UnknownNameError
from drimed.formatting import NOT_KNOWN, amount, counted, listed, short
from drimed.records import DEFAULT_STORE, PARTIAL, PENDING, SEARCHES, STATES, Search

if TYPE_CHECKING:
    from drimed.records import Claim, Decision, Event, Receipt
    from drimed.rehearsal.scenarios import Scenario
    from drimed.trial.events import Calibration, HistoryRead
    from drimed.trial.spec import TrialSpec
    from drimed.trial.transaction import Transaction
    from drimed.trial.trial import Trial

NOTHING_WRITTEN = ". Nothing was written."
NOTHING_DRAWN = ". Nothing was recorded, and no arm was drawn."
MOST_NAMED = 5  # decisions
NOT_PROVED = 2  # exit code where a proof needs something that is not here

Texts = list[str] | None
Attributes = Annotated[Texts, typer.Option("--attribute", help="Of the user: ph=6.1 or soil=sand; repeatable.")]
Cohort = Annotated[str | None, typer.Option("--cohort", help="A cohort of the trial file, whose defaults it takes.")]
Control = Annotated[Texts, typer.Option("--control", help="Of the control plot: yield=5; repeatable.")]
Blinded = Annotated[bool, typer.Option("--blinded", help="Hide the arms, and all that reveals them.")]
Given = Annotated[str | None, typer.Option(help="The arm given, if not the one drawn; or other, or a code.")]
Ignore = Annotated[Texts, typer.Option(help="A column of the sheet to ignore; repeatable.")]
History = Annotated[Path | None, typer.Option(help="A sheet of the past: season, user or site, arm and metrics.")]
UserName = Annotated[str, typer.Argument(help="The user.")]
ArmName = Annotated[str, typer.Argument(help="The arm.")]

trial = typer.Typer(help="Live trials: ask, tell, and never lose a decision.", no_args_is_help=True)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command on one trial, which it gets opened: it has NAME, --store and --actor too."""
    hints = get_type_hints(function, localns={"Trial": Any}, include_extras=True)
    _, *own = signature(function).parameters.values()
    keyword = Parameter.KEYWORD_ONLY
    parameters = [
        Parameter("name", keyword, annotation=ui.Name),
        *(p.replace(kind=keyword, annotation=hints[p.name]) for p in own),
        Parameter("store", keyword, default=DEFAULT_STORE, annotation=ui.Address),
        Parameter("actor", keyword, default=None, annotation=ui.Who),
    ]

    @wraps(function)
    def run(name: str, store: str, actor: str | None, **options: Any) -> None:
        from drimed.trial.trial import Trial

        anchors = Path(file) if (file := os.environ.get("DRIMED_ANCHORS")) else None
        opened = Trial(name, ui.open_store(store), actor=ui.actor_name(actor), anchors=anchors)
        function(opened, **options)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return trial.command()(run)


# Beginning


@trial.command()
def template(
    name: Annotated[
        Literal["field", "people", "website"],
        typer.Argument(help="Sites season after season with every setting, people who come once, or a website."),
    ] = "field",
    out: Annotated[Path | None, typer.Option(help="Where to write it; default: show it.")] = None,
    force: Force = False,
) -> None:
    """Write a commented example of a trial file."""
    from drimed.trial import template as example

    if out is None:
        typer.echo(example(name))
    else:
        outputs.put(out, example(name).encode(), force=force)
        say(f"wrote {out}; edit it, then: drimed trial init {out}")


QUICK, MOST = 100, 1000  # trials


@trial.command()
def rehearse(
    file: Annotated[
        Path, typer.Argument(metavar="FILE|NAME", help="The trial file, .toml or .json, or a trial that is running.")
    ],
    scenarios: Annotated[Path | None, typer.Option(help="A file with scenarios, instead.")] = None,
    history: History = None,
    trials: Annotated[int | None, typer.Option(min=2, help="Simulated; default: 1000, 200 of a running one.")] = None,
    seasons: Annotated[int | None, typer.Option(min=1, help="Seasons (to come), whatever scenarios say.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random numbers.")] = 0,
    quick: Annotated[bool, typer.Option(help=f"{QUICK} trials, and few other designs.")] = False,
    goal: Annotated[str | None, typer.Option("--for", help='Find the seasons that reach it: "power 0.8".')] = None,
    find: Annotated[str, typer.Option(help="With --for: the smallest of seasons, tolerance or floor.")] = "seasons",
    scenario: Annotated[str | None, typer.Option(help="Of --for. Default: the first with an effect.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
    cluster: Annotated[str | None, typer.Option(help="Run on a cluster instead: dask=tcp://host:port.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder; default: out/rehearsal/TRIAL, written over.")] = None,
    force: Force = False,
    store: ui.Address = DEFAULT_STORE,
) -> None:
    """Simulate a trial many times: what it finds, whom it harms, and how long it stays on the control.

    Finished blocks are kept under OUT/blocks: an interrupted rehearsal continues where it stopped. A trial that is
    running is played on from its present state: how much longer it takes until a better arm is shown.
    """
    from drimed.rehearsal import designs
    from drimed.rehearsal.page import Results, assumed, write

    if not file.is_file() and file.suffix not in (".toml", ".json"):
        for option, value in {"--scenarios": scenarios, "--history": history, "--for": goal, "--scenario": scenario,
                              "--cluster": cluster, "--out": out}.items():  # fmt: skip
            if value is not None:
                raise InputError(f"{option} is for a trial file; {str(file)!r} is a running trial")
        _play_on(str(file), store, seasons=seasons, trials=trials or (QUICK if quick else None), seed=seed)
        return
    most = trials or MOST
    size = {"trials": min(most, QUICK) if quick else most, "seasons": seasons, "seed": seed}
    plan = designs.Plan.of_files(file, history, scenarios, every_design=not quick, **size)
    wanted = scenario or plan.main
    if wanted not in plan.scenarios:
        raise InputError(f"no scenario {wanted!r}; there are {', '.join(plan.scenarios)}")
    for line in assumed(plan, wanted):
        say(f"assumed: {line}")
    place = out or Path("out") / "rehearsal" / plan.spec.name
    answer = None
    bounds = _calibrate(plan.spec, plan.given, plan.history, place, jobs=jobs, cluster=cluster)
    plan = replace(plan, calibration=bounds)
    with ui.progress("simulated trials", place / "blocks") as move:
        how: dict[str, Any] = {"jobs": jobs, "cluster": cluster}
        how["on_done"] = lambda done: move(done.finished, done.seeds)
        if goal is not None:
            answer = designs.find(designs.parse_goal(goal), plan, wanted, place / "blocks", find, **how)
            say(answer.text())
        records = plan.run(place / "blocks", **how)
    results = Results(plan, records, answer)
    ui.show(results.summary())
    for sentence in results.verdict():
        (note if sentence.warns else say)(sentence.text)
    say(f"wrote {write(results, place, force=force or out is None)}")


def _calibrate(
    spec: TrialSpec, worlds: dict[str, Scenario], history: HistoryRead | None, place: Path, **how: Any
) -> Calibration | None:
    """Find the bounds of calibrated rules, if there are any, and say what they are."""
    from drimed.rehearsal.calibration import calibrate
    from drimed.reports.analysis import describe_bounds

    if not spec.calibrated:
        return None
    with ui.progress("rehearsals of the stopping rules", place / "blocks") as move:
        how["on_done"] = lambda done: move(done.finished, done.seeds)
        found = calibrate(spec, worlds, history=history, store=place / "blocks", **how)
    for line in describe_bounds(found):
        say(line)
    return found


def _play_on(name: str, store: str, **sizes: int | None) -> None:
    """Say how much longer a running trial takes."""
    from drimed.rehearsal.forecast import forecast, keep
    from drimed.trial.trial import Trial

    opened = Trial(name, ui.open_store(store))
    with ui.progress("simulated trials") as move:
        foreseen = forecast(opened, on_done=move, **{k: v for k, v in sizes.items() if v is not None})
    for line in foreseen.assumed():
        say(f"assumed: {line}")
    ui.show(foreseen.rows())
    keep(opened, foreseen, actor=ui.actor_name(None))
    say(foreseen.text())


@trial.command()
def init(
    file: Annotated[Path, typer.Argument(help="The trial file, .toml or .json.")],
    history: History = None,
    rehearse: Annotated[bool, typer.Option(help="Simulate it for a second or two first.")] = True,
    store: ui.Address = DEFAULT_STORE,
    actor: ui.Who = None,
    dry_run: Dry = False,
) -> None:
    """Check a trial file, say what a quick rehearsal shows, and create the trial.

    Calibrated stopping rules get their bounds first; what `drimed trial rehearse` finished of that is not repeated.
    """
    from drimed.rehearsal import calibration
    from drimed.rehearsal import scenarios as rehearsal_scenarios
    from drimed.rehearsal.designs import quick
    from drimed.trial import past
    from drimed.trial.queries import not_rehearsed, notes, past_text
    from drimed.trial.trial import Trial

    spec, worlds = rehearsal_scenarios.load(file)
    known = past.of_trial(spec, file, history)
    bounds = None if dry_run else _calibrate(spec, worlds, known, Path("out") / "rehearsal" / spec.name)
    seen, said = quick(spec, worlds, known, bounds) if rehearse else (None, [not_rehearsed()])
    for text in [*notes(spec), *said]:
        note(text)
    size = f"{len(spec.arms)} arms, {len(spec.users)} users, {len(spec.metrics)} metrics"
    if known is not None:
        say(past_text(spec, known))
    if dry_run:
        if spec.calibrated:
            note(calibration.announced(spec, worlds, known, timed=rehearse))
        say(f"{file} is valid: trial {spec.name!r}, {size}{NOTHING_WRITTEN}")
        return
    opened, own = ui.open_store(store, create=True), ui.actor_name(actor)
    Trial.create(spec, opened, actor=own, rehearsal=seen, history=known, calibration=bounds)
    say(f"created trial {spec.name} in {store}: {size}. Next: drimed trial ask {spec.name}")


# Asking


@command
def ask(
    opened: Trial,
    sheet: Annotated[Path | None, typer.Argument(help="A sheet of users, or of plots; .csv, .xlsx or .json.")] = None,
    user: Annotated[Texts, typer.Option(help="Only this user; repeatable.")] = None,
    attribute: Attributes = None,
    cohort: Cohort = None,
    context: Annotated[Texts, typer.Option(help="Known before deciding: rain=410; repeatable.")] = None,
    plot: Annotated[Texts, typer.Option(help="Only this plot of the user; repeatable.")] = None,
    block: Annotated[str | None, typer.Option(help="The block that the plot is in.")] = None,
    episode: Annotated[int | None, typer.Option(help="The episode this is for; the next one is opened.")] = None,
    season: Annotated[str | None, typer.Option(help='The same by name, as "spring 2026".')] = None,
    date: Annotated[str | None, typer.Option(help="When a season that is opened begins, as 2026-03-15.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: a repeat gets the first answer again.")] = None,
    ignore: Ignore = None,
    out: ui.Out = None,
    force: Force = False,
    yes: Yes = False,
    blinded: Blinded = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show how likely each arm is; record nothing.")] = False,
) -> None:
    """Decide which arm each user gets: those of the sheet, those named, or all.

    A user with plots gets a decision for each of them. Where enrolment is open, a new user joins with the attributes
    and the cohort that come along, in the same step.
    """
    if (attribute or cohort or context or plot or block) and (sheet is not None or len(user or ()) != 1):
        options = "--attribute, --cohort, --context, --plot and --block"
        raise InputError(f"{options} are about one user: give one --user and no sheet")
    if block is not None and not plot:
        raise InputError("--block needs --plot: a decision is for a plot of the block")
    if out is not None:
        outputs.check_free(out, force=force)
    from drimed.trial import ask as trial_ask
    from drimed.trial import sheets
    from drimed.trial.blinding import asking_as, blinded_decision
    from drimed.trial.seasons import when

    table = ui.read_sheet(sheet) if sheet else None
    if table is not None and not table.rows:
        raise InputError(f"{sheet} has no rows; it needs a column 'user' and one for each context field")

    def act(tx: Transaction, confirm: bool) -> list[Decision]:
        fields: dict[str, Any] = {"episode": episode, "season": season, "date": date, "key": key, "confirm": confirm}
        one = user[0] if user else ""
        if context:
            fields["contexts"] = {one: sheets.covariate_values(tx.state, ui.texts(context, "rain=410"))}
        if attribute or cohort:
            attributes = sheets.covariate_values(tx.state, ui.texts(attribute))
            fields["enrol"] = {one: {"attributes": attributes, "cohort": cohort}}
        if plot:
            fields["plots"] = {one: {block: plot} if block else plot}
        request = records.AskRequest(users=user, **fields)
        if table is not None:
            return sheets.ask_sheet(tx, table, request, ignore or (), blinded=blinded)
        with asking_as(tx.state, request, blinded=blinded):
            made = trial_ask.ask(tx, request)
        return [blinded_decision(tx.state, d) for d in made] if blinded else made

    made = ui.confirming(
        lambda sure: opened.decide(lambda tx: act(tx, sure), dry_run=dry_run, large=table is not None), yes
    )
    state, called = opened.state(), when(made[0])
    rows = sheets.decision_rows(state, made, fill_in=out is not None and not dry_run)
    if dry_run:  # how likely each arm is, and not which one will be drawn
        arms = dict.fromkeys(arm for d in made for arm in d.probabilities)
        for row, d in zip(rows, made, strict=True):
            row.update({f"chance of {arm}": d.probabilities.get(arm) for arm in arms})
    try:
        ui.put(rows, out, [d.plain() for d in made], titles=sheets.titles(state), force=force)
    except InputError as error:
        if dry_run:
            raise
        kept = f"what was decided for {called} is recorded all the same: repeat this to get the sheet"
        raise InputError(f"{error}; {kept}") from None
    if out is not None and not dry_run and not blinded:  # the arms could be recovered from a hash
        say(f"log: event {state.seq}, hash {state.hash}")
    again = sum(d.repeated for d in made)
    decided = f"{len(made) - again} {'would be ' if dry_run else ''}decided"
    decided += f", {again} decided before" if again else ""
    say(f"{decided}; {called}" + (NOTHING_DRAWN if dry_run else ""))


# Telling


@command
def tell(
    opened: Trial,
    sheet: Annotated[Path | None, typer.Argument(help="A sheet of outcomes: .csv, .xlsx or .json.")] = None,
    decision: Annotated[int | None, typer.Option(help="One decision, with --value.")] = None,
    value: Annotated[Texts, typer.Option(help="yield=5.2; repeatable.")] = None,
    control: Control = None,
    given: Given = None,
    reason: Annotated[str | None, typer.Option(help="Why another arm was given than was drawn.")] = None,
    ignore: Ignore = None,
    yes: Yes = False,
    dry_run: Dry = False,
) -> None:
    """Record outcomes: a sheet with a column `decision` and one for each metric, or a single one."""
    if sheet is None and (decision is None or not (value or control or given)):
        raise InputError("give a sheet, or --decision with --value")
    from drimed.trial import sheets
    from drimed.trial import tell as trial_tell

    table = ui.read_sheet(sheet) if sheet is not None else None

    def record(tx: Transaction, confirm: bool) -> list[Receipt]:
        if table is not None:
            return sheets.tell_sheet(tx, table, ignore or (), confirm=confirm)
        report = records.Report(int(decision or 0), ui.values(value), ui.values(control) or None, given, reason)
        return trial_tell.tell(tx, [report], confirm=confirm)

    large = table is not None
    receipts = ui.confirming(lambda sure: opened.decide(lambda tx: record(tx, sure), dry_run=dry_run, large=large), yes)
    results = Counter(_result(r, dry_run) for r in receipts)
    say(", ".join(f"{n} {result}" for result, n in results.items()) + (NOTHING_WRITTEN if dry_run else ""))
    if waits := [r for r in receipts if r.waits_for]:
        what = f"{len(waits)} {'would be ' if dry_run else ''}recorded but not learned from yet"
        say(f"{what}: decision {waits[0].decision} waits for {', '.join(waits[0].waits_for)}")
    with opened.reading() as (ledger, state):
        for kind in () if dry_run else (PENDING, PARTIAL):
            if rows := ledger.decision_rows(Search(state=kind), limit=MOST_NAMED):
                n, named = getattr(state.counts, kind), [f"decision {row.decision} ({row.user})" for row in rows]
                named += ["..."] if n > len(rows) else []
                say(f"{n} {kind}: {', '.join(named)}; drimed trial decisions {opened.name} --state {kind}")


def _result(receipt: Receipt, dry_run: bool) -> str:
    return f"would be {receipt.result}" if dry_run and receipt.result != "already recorded" else receipt.result


@command
def amend(
    opened: Trial,
    amended: Annotated[Texts, typer.Argument(metavar="METRIC=VALUE", help="yield=5.2 cost=110")] = None,
    *,
    decision: ui.Number,
    reason: Why,
    control: Control = None,
    given: Given = None,
    saw: Annotated[Texts, typer.Option(help="A value as you read it: refused if it has changed since.")] = None,
    yes: Yes = False,
    dry_run: Dry = False,
) -> None:
    """Correct an outcome, or what was given; the old value stays in the log. `yield=` takes the value back.

    A decision whose values are all taken back is pending again.
    """
    from drimed.trial.spec import control_plot

    new: dict[str, Any] = {"outcome": ui.values(amended), "control": ui.values(control) or None}
    new |= {"saw": ui.values(saw) or None, "given": given, "reason": reason, "dry_run": dry_run}
    receipt = ui.confirming(lambda sure: opened.amend(decision, **new, confirm=sure), yes)
    now = [f"{m} = {v:.12g}" for m, v in (receipt.outcome or {}).items()]
    now += [f"{control_plot(m)} = {v:.12g}" for m, v in (receipt.control or {}).items()]
    text = f"decision {decision}: {_result(receipt, dry_run)}, now {', '.join(now) or receipt.state}"
    say(text + (NOTHING_WRITTEN if dry_run else ""))


@command
def missing(opened: Trial, decision: ui.Number, reason: Why, dry_run: Dry = False) -> None:
    """Mark an outcome, or the rest of a partial one, as missing."""
    receipt = opened.mark_missing(decision, reason=reason, dry_run=dry_run)
    say(f"decision {decision}: {_result(receipt, dry_run)}" + (NOTHING_WRITTEN if dry_run else ""))


# Changing


def _change(opened: Trial, change: str, **fields: Any) -> None:
    from drimed.trial.changes import CHANGES, checked

    body = checked(CHANGES[change].body, {name: value for name, value in fields.items() if value is not None})
    with opened.writing() as tx:
        CHANGES[change].apply(tx, body)
    say(CHANGES[change].done)


@command
def add_user(
    opened: Trial,
    user: UserName,
    preference: Annotated[Texts, typer.Option(help="metric=weight; repeatable.")] = None,
    control: Annotated[str | None, typer.Option(help="Its control arm.")] = None,
    arm: Annotated[Texts, typer.Option(help="An arm that is possible for it; default: all.")] = None,
    group: Annotated[str | None, typer.Option(help="Its site, farm, clinic or other group.")] = None,
    attribute: Attributes = None,
    cohort: Cohort = None,
    plot: Annotated[Texts, typer.Option(help="A plot of its own: A1, or A/A1 in block A; repeatable.")] = None,
    yes: Yes = False,
) -> None:
    """Enrol a user."""
    from drimed.trial import sheets

    fields: dict[str, Any] = {"name": user, "control": control, "arms": arm, "group": group, "cohort": cohort}
    fields["attributes"] = sheets.covariate_values(opened.state(), ui.texts(attribute)) if attribute else None
    fields["preference"] = ui.values(preference) or None
    fields |= sheets.plots_of(plot or [])
    ui.confirming(lambda sure: _change(opened, "add_user", **fields, confirm=sure), yes)


@command
def add_arm(
    opened: Trial,
    arm: ArmName,
    attribute: Annotated[Texts, typer.Option(help="attribute=value; repeatable.")] = None,
    sd: Annotated[Texts, typer.Option(help="metric=deviation, where the noise is known.")] = None,
) -> None:
    """Add an arm. A changed arm is a new arm."""
    attributes, noise = ui.values(attribute) or None, {"sd": ui.values(sd)} if sd else None
    _change(opened, "add_arm", name=arm, attributes=attributes, noise=noise)


@command
def retire_arm(opened: Trial, arm: ArmName, reason: Why) -> None:
    """Retire an arm: it is never given again."""
    _change(opened, "retire_arm", arm=arm, reason=reason)


@command
def prefer(
    opened: Trial,
    user: UserName,
    weights: Annotated[list[str], typer.Argument(metavar="METRIC=WEIGHT...", help="yield=1 cost=-0.01")],
    reason: Why,
) -> None:
    """Change how a user weighs the metrics, from now on."""
    _change(opened, "change_preference", user=user, preference=ui.values(weights), reason=reason)


@command
def control(
    opened: Trial,
    user: UserName,
    arms: Annotated[list[str], typer.Argument(metavar="ARM...", help="An arm, or shares: old=0.7 new=0.3")],
    reason: Why,
) -> None:
    """Compare a user with another control, from now on."""
    shares = arms[0] if len(arms) == 1 and "=" not in arms[0] else ui.values(arms)
    _change(opened, "change_control", user=user, control=shares, reason=reason)


@command
def pause(opened: Trial, reason: Why) -> None:
    """Pause decisions; outcomes are still taken."""
    _change(opened, "pause", reason=reason)


@command
def resume(opened: Trial, reason: Why = "") -> None:
    """Resume decisions after a pause."""
    _change(opened, "resume", reason=reason)


@command
def stop(opened: Trial, reason: Why) -> None:
    """Stop decisions for good; outcomes are still taken."""
    _change(opened, "stop", reason=reason)


@command
def reveal(
    opened: Trial,
    reason: Why,
    decision: Annotated[int | None, typer.Argument(help="The decision; left out: all, with --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Open the code for all decisions: the blinding ends.")] = False,
) -> None:
    """Unblind: tell which arm a decision got. The actor and the reason stay in the log."""
    if (decision is None) != every:
        raise InputError("give the number of a decision, or --all to open the code for all of them")
    opening = opened.reveal(decision, reason=reason)
    if opening.decision is not None:
        coded = f" (code {opening.code})" if opening.code else ""
        say(f"decision {opening.decision}: {opening.arm}{coded}. The log has who opened this, and why.")
        return
    for arm, code in (opening.codes or {}).items():
        say(f"{code}: {arm}")
    say("The code is open for all decisions; the log has who opened it, and why.")


@command
def codes(
    opened: Trial,
    after: Annotated[int, typer.Option(min=0, help="Only decisions after this one.")] = 0,
    out: ui.Out = None,
    force: Force = False,
) -> None:
    """The arm behind each code, for the person who packs and hands out, and for nobody who is blinded."""
    from drimed.trial import queries

    with opened.reading() as (ledger, state):
        rows: list[dict[str, Any]] = [{"code": code, "arm": arm} for arm, code in state.codes.items()]
        if state.spec.blinding is None:
            raise InputError(f"trial {opened.name!r} has no codes: they are set under [blinding] in the trial file")
        if not rows:
            made = queries.decisions(ledger, state, range(after + 1, state.counts.decisions + 1))
            names = ("code", "arm", "user", "plot", "state")
            rows = [{"decision": d.id} | {name: getattr(d, name) for name in names} for d in made]
    ui.put(rows, out, rows, force=force)


@command
def rules(
    opened: Trial,
    file: Annotated[Path, typer.Argument(help="A .toml file with a section [stopping], such as the trial file.")],
    reason: Why,
) -> None:
    """Replace the stopping rules by those of a file; the old ones stay in the log, and the report shows the change."""
    from drimed.trial.spec import read_file

    stopping = read_file(file)[1].get("stopping")
    if not isinstance(stopping, dict):
        raise InputError(f"{file} has no section [stopping]")
    _change(opened, "change_rules", stopping=stopping, reason=reason)


@command
def look(opened: Trial, dry_run: Dry = False, as_json: AsJson = False) -> None:
    """Evaluate the stopping rules: what each says, and how far it is from being met. The look is recorded."""
    from drimed.reports.analysis import analyse, until
    from drimed.reports.wording import set_aside
    from drimed.trial.seasons import calendar

    taken = opened.look(dry_run=dry_run)
    if as_json:
        ui.say_json(taken.plain(), indent=1)
        return
    state = opened.state()
    units = {metric: m.unit for metric, m in state.spec.metrics.items()}
    say(f"{calendar(state).said(taken.episode)}, {taken.decisions} decisions, {taken.outcomes} complete outcomes")
    ui.show([_claim_row(claim, units.get(claim.on, state.spec.reward.unit)) for claim in taken.claims])
    waiting: dict[str, list[str]] = {}  # reason -> arms
    for claim in taken.claims:
        if claim.waits and claim.arm not in waiting.setdefault(claim.waits, []):
            waiting[claim.waits].append(claim.arm)
    for reason, arms in waiting.items():
        say(f"no rule is met yet by {listed(arms)}: {reason}")
    for rule, kind in {claim.rule: claim.kind for claim in taken.claims if claim.distance is not None}.items():
        say(f"'to go' of {rule}: how far the range must still move")
        say(f"  until {until(kind, state.spec.rules[rule].then)}")
    for limit in taken.limits:
        say(f"{limit.limit}: {limit.reached} of at most {limit.of}")
    for who in taken.floor_ends:
        say(f"the floor ends for {who}")
    if taken.dropped:
        say(f"dropped: {listed(taken.dropped)} ({taken.reason})", "bold")
    if taken.demands is not None:
        say(f"the trial is {taken.demands}: {taken.reason}", "bold")
    analysis = analyse(opened)
    for sentence in [*set_aside(analysis), *filter(None, [analysis.forecast])]:
        say(sentence)
    if dry_run:
        say("Nothing was written.")


def _claim_row(claim: Claim, unit: str) -> dict[str, Any]:
    known = claim.low is not None and claim.high is not None
    return {
        **{name: getattr(claim, name) for name in ("rule", "who", "arm")},
        "range": f"{short(claim.low or 0.0)} to {amount(claim.high or 0.0, unit)}" if known else NOT_KNOWN,
        "margin": short(claim.margin),
        "to go": None if claim.distance is None else short(max(claim.distance, 0.0)),
        "met": "yes" if claim.met else "no",
    } | ({} if claim.seasons is None else {"seasons": claim.seasons})


# Reading


@trial.command()
def status(name: ui.AnyName = None, as_json: AsJson = False, store: ui.Address = DEFAULT_STORE) -> None:
    """The state of a trial, or of all trials, at a glance."""
    from drimed.reports.assumption_checks import withdrawn
    from drimed.trial.trial import Trial

    opened = ui.open_store(store)
    trials = [Trial.open(n, opened) for n in ([name] if name else opened.names())]
    statuses = [one.status() for one in trials]
    if as_json:
        plain = [s.plain() for s in statuses]
        ui.say_json(plain[0] if name else plain, indent=1)
        return
    ui.show([
        {"trial": s.name, "status": s.status, "model": s.model, "season": s.season or s.episode}
        | {"users": s.users, "decisions": s.decisions}
        | {"outcomes": ", ".join(f"{getattr(s, c)} {c}" for c in STATES if getattr(s, c))}
        for s in statuses
    ])  # fmt: skip
    if not name:
        return
    (one,) = statuses
    if wrong := withdrawn(trials[0]):
        say(wrong, "bold")
    lines = {
        f"stopping rules that are met: {', '.join(one.rules_met)}": one.rules_met,
        f"the floor has ended for {', '.join(one.floor_ended)}": one.floor_ended,
        f"{one.status}: {one.halted}": one.halted,
        "enrolment is open: asking for a new user enrols it": one.enrolment == "open",
        one.history: one.history,
    }
    for line, applies in lines.items():
        if applies:
            say(line)
    for text in one.notes:
        note(text)


@command
def decisions(
    opened: Trial,
    user: Annotated[str, typer.Option(help="Only for this user.")] = "",
    plot: Annotated[str, typer.Option(help="Only on this plot.")] = "",
    block: Annotated[str, typer.Option(help="Only in this block.")] = "",
    arm: Annotated[str, typer.Option(help="Only this arm.")] = "",
    state: Annotated[str, typer.Option(help="pending, partial, complete, missing or amended.")] = "",
    before: Annotated[int | None, typer.Option(help="Only decisions before this one.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; default: 25, in a file all.")] = None,
    blinded: Blinded = False,
    out: ui.Out = None,
    force: Force = False,
) -> None:
    """Decisions with their outcomes, newest first; in a file, oldest first.

    `--state pending --out sheet.csv` is a sheet to fill in.
    """
    if blinded and arm:
        raise InputError("--blinded shows no arms: leave out --arm")
    from drimed.trial import blinding, queries, sheets

    if state and state not in SEARCHES:
        raise UnknownNameError("state", state, SEARCHES)
    with opened.reading() as (ledger, known):
        most = queries.PAGE if out is None else max(1, known.counts.decisions)
        page = queries.search(ledger, known, Search(user, arm, state, plot, block), before=before, limit=limit or most)
    shown = [blinding.blinded_decision(known, d) for d in page.items] if blinded else page.items
    if out is None:
        names = ("user", "plot", "block", "arm", "code", "state", "reward")
        rows = [{"decision": d.id, "season": d.season or d.episode} | {n: getattr(d, n) for n in names} for d in shown]
        ui.show(rows)
    else:
        shown = shown[::-1]  # people fill in one season after the other
        columns = sheets.headings(known, blinded=blinded)
        rows, titles = sheets.decision_rows(known, shown), sheets.titles(known)
        ui.put(rows, out, [d.plain() for d in shown], columns, titles=titles, force=force)
    if not shown:
        say("no such decisions")
    if page.next is not None:
        say(f"older decisions: --before {page.next}")


@command
def why(
    opened: Trial, decision: Annotated[int, typer.Argument(metavar="DECISION", help="The number of the decision.")]
) -> None:
    """Why this arm: what it was estimated to bring, how likely it was, and what the guard did."""
    from drimed.reports.assumption_checks import no_promise, withdrawn
    from drimed.trial import queries
    from drimed.trial.explain import explain
    from drimed.trial.seasons import when

    with opened.reading() as (ledger, state):
        found = queries.decision(ledger, state, decision)
        sentences = explain(ledger, state, found)
    where = "" if found.plot is None else f", plot {found.plot}"
    say(f"decision {found.id}, {when(found)}: {found.arm} for {found.user}{where}", "bold")
    for sentence in sentences:
        say(sentence)
    if wrong := withdrawn(opened):
        say(no_promise(wrong))


@command
def log(
    opened: Trial,
    user: Annotated[str | None, typer.Option(help="Only about this user.")] = None,
    kind: Annotated[Texts, typer.Option(help="Only this kind; repeatable.")] = None,
    decision: Annotated[int | None, typer.Option(help="All events about one decision.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many of the newest events.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, one event on each line, all of them.")] = False,
) -> None:
    """The events of a trial, newest last."""
    from drimed.trial import queries
    from drimed.trial.events import KINDS

    for k in kind or ():
        if k not in KINDS:
            raise UnknownNameError("kind", k, KINDS)
    if decision is not None:
        with opened.reading() as (ledger, state):
            events = queries.history(ledger, state, decision)
    else:
        most = None if as_json else limit
        events = list(opened.log(kinds=kind or (), user=user, limit=most, newest_first=True))[::-1]
    if as_json:
        for e in events:
            ui.say_json(e.plain())
        return
    ui.show([
        {"event": e.seq, "time (UTC)": e.time[:16].replace("T", " "), "actor": e.actor, "kind": e.kind}
        | {"decision": e.decision, "user": e.user, "what": summary(e)}
        for e in events
    ])  # fmt: skip


def summary(event: Event) -> str:
    """An event in a few words."""
    body, kind, plot, block = event.body, event.kind, event.body.get("plot"), event.body.get("block")
    values = body.get("preference") or (body.get("outcome") or {}).get("metrics") or {}
    if kind == "user":
        values = body["definition"].get("attributes") or {}
    was = (body["was"] or {}).get("metrics", {}) if kind == "amendment" else {}
    parts = [
        body.get("arm") or body.get("given"),
        plot is not None and f"plot {plot}" + (f" in block {block}" if block else ""),
        body.get("propensity") is not None and f"p = {body['propensity']:.3g}",
        *(f"{name} = {value if isinstance(value, str) else f'{value:g}'}" for name, value in values.items()),
        *(f"(was {name} = {value:g})" for name, value in was.items()),
    ]
    match kind:
        case "revealed":
            parts.append(f"decision {body['decision']}" if "decision" in body else "all decisions")
        case "episode":
            parts += [f"season {body.get('name') or body['episode']}", body.get("date")]
        case "look":
            met = dict.fromkeys(claim["rule"] for claim in body["claims"] if claim["met"])
            parts.append(f"rules met: {', '.join(met)}" if met else "no rule is met")
            parts += [f"{demand.get('arm', 'the trial')} is {demand['kind']}" for demand in body["demands"]]
        case "rules":
            parts.append(f"stopping rules: {', '.join(body['stopping'].get('rules', {})) or 'none'}")
    parts.append(kind != "decision" and body.get("reason") and f"reason: {body['reason']}")
    return ", ".join(str(part) for part in parts if part)


@command
def export(
    opened: Trial,
    out: Annotated[Path, typer.Option(help="A .csv, .xlsx, .json or .parquet file.")],
    force: Force = False,
    whole: Annotated[bool, typer.Option("--whole", help="Only decisions whose reward is known.")] = False,
) -> None:
    """Every decision with its outcome, one row each, and a data dictionary beside it."""
    from drimed.trial.export import write

    count = write(opened, out, whole=whole, force=force)
    say(f"wrote {out}: {count} decisions; columns are explained in {out.with_suffix('.dictionary.csv')}")


@command
def report(
    opened: Trial,
    out: Annotated[Path | None, typer.Option(help="A folder; default: out/trial/NAME, written over.")] = None,
    force: Force = False,
    xlsx: Annotated[bool, typer.Option("--xlsx", help="Its tables as workbooks (.xlsx) and not as CSV.")] = False,
) -> None:
    """Write a report as one page: effects, reward against the control, drift, data quality."""
    from drimed.reports.page import write_report

    suffix, place = ".xlsx" if xlsx else ".csv", out or Path("out/trial") / opened.name
    page = write_report(opened, place, suffix=suffix, force=force or out is None)
    say(f"Open {page}; tables are beside it")


@trial.command()
def anchor(
    name: ui.AnyName = None,
    to: Annotated[Path | None, typer.Option(help="A file to add to; default: print the lines.")] = None,
    store: ui.Address = DEFAULT_STORE,
) -> None:
    """Keep the hash of the log on another disk or machine: `verify --anchors` then finds every change before it.

    A line has a time, the trial, the number of an event and its hash. The file gets each episode that it does not have
    yet, and the last event.
    """
    from drimed.trial import transaction
    from drimed.trial.events import now

    opened = ui.open_store(store)
    known = transaction.load_anchors(to) if to is not None and to.exists() else []
    new = list[records.Head]()
    for one in [name] if name else opened.names():
        with opened.reading(one) as ledger:
            last = records.Head(ledger.name, ledger.seq, ledger.hash, now())
            new += [last] if to is None else transaction.missing_anchors(ledger, known, now())
    if to is None:
        typer.echo("\n".join(map(transaction.anchor_line, new)))
    else:
        transaction.append_anchors(to, new)
        say(f"added {counted(len(new), 'line')} to {to}")


@trial.command()
def verify(
    name: ui.Name,
    expect: Annotated[str | None, typer.Option(help="A hash shown earlier: it must still be in the log.")] = None,
    anchored: Annotated[Path | None, typer.Option("--anchors", help="A file of `drimed trial anchor`.")] = None,
    store: ui.Address = DEFAULT_STORE,
) -> None:
    """Replay the whole trial from its log: the chain must hold, every event must be one that could have been recorded
    there, and every decision must be reproduced."""
    from drimed.trial import transaction
    from drimed.trial.verify import verify as check

    opened = ui.open_store(store)
    heads = [] if anchored is None else transaction.load_anchors(anchored)
    kept = [head for head in heads if head.trial == name]
    if anchored is not None and not kept:
        raise InputError(f"{anchored} has no anchor of trial {name!r}")
    with ui.progress("events") as move:
        proof = check(opened, name, expected_hash=expect, anchors=heads, progress=move)
    for fault in proof.faults:
        say(f"fault: {fault}", "bold red")
    replayed = f"{proof.exact} of {proof.decisions} decisions reproduced to the last bit"
    if proof.rounded:
        replayed += f", {proof.rounded} to round-off"
    if proof.looks:
        replayed += f"; {counted(proof.looks, 'look')} taken again"
    say(f"{proof.events} events, made by {proof.made_with or 'an unknown version'}; {replayed}; last hash {proof.hash}")
    whole = "" if kept or expect else "; only --anchors can detect a log that was rewritten as a whole"
    say(f"not looked at: {proof.left_out}{whole}")
    if proof.faults:
        raise typer.Exit(1)
    if proof.unchecked is not None:
        say(proof.unchecked, "yellow")
        say("every event is in its place and unchanged, as far as the hashes show; the rest is not proved")
        raise typer.Exit(NOT_PROVED)
    say("the log is intact", "green")
    if kept:
        last = max(kept, key=lambda head: head.event)
        text = f"{proof.anchors} anchors hold: nothing up to event {last.event} was changed since"
        say(f"{text} {last.time[:16]} UTC", "green")


def warm() -> None:
    """Prepare the numerical code now: for images, and before a first use."""
    from drimed.reports.analysis import prepare

    start = time.perf_counter()
    prepare()
    ui.console.print(f"ready after {time.perf_counter() - start:.1f} s")
