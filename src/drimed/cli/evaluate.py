"""`drimed evaluate`: what other policies would have earned, from a log with propensities."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from drimed import outputs
from drimed.cli import names
from drimed.errors import InputError
from drimed.formatting import short, visible

if TYPE_CHECKING:  # SciPy takes a quarter of a second that other commands do not need
    from drimed.evaluation.evaluate import Evaluation, Plan
    from drimed.evaluation.intervals import Interval
    from drimed.evaluation.readers import LogStream

WITHOUT_MODEL = "ips,snips,clipped"
WITH_MODEL = "dm,ips,snips,clipped,dr,sndr,switch-dr,dros"
LEAST_USERS = 10  # those with the least overlap are listed; the JSON file has all of them
REFUSED = 2  # exit code where nothing at all could be estimated


def evaluate(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A Parquet or CSV file, one row for each decision.")],
    policy: Annotated[
        str, typer.Option(help="Policies, separated by commas: uniform, control, logged, arm=NAME, columns=PREFIX.")
    ] = "uniform",
    estimators: Annotated[
        str | None,
        typer.Option(
            help="Estimators, separated by commas: dm, ips, snips, clipped=10, dr, sndr, switch-dr=10, dros=100, "
            "replay=BOUND. Default: those that the log allows."
        ),
    ] = None,
    control: Annotated[str | None, typer.Option(help="The name of the control arm.")] = None,
    arms: Annotated[str | None, typer.Option(help="All arms, separated by commas. Default: those of the log.")] = None,
    action: Annotated[str, typer.Option(help="Column of the arm played.")] = "action",
    reward: Annotated[str, typer.Option(help="Column of the reward, or of a metric to judge by.")] = "reward",
    propensity: Annotated[str, typer.Option(help="Column of the probability of the arm played.")] = "propensity",
    probabilities: Annotated[str, typer.Option(help="Prefix of the probabilities of all arms.")] = "probability_",
    predictions: Annotated[str, typer.Option(help="Prefix of the columns of predicted rewards.")] = "q_",
    user: Annotated[str, typer.Option(help="Column of the user.")] = "user",
    reward_range: Annotated[
        str | None,
        typer.Option(help="Least and greatest possible reward, as 0,1: adds an interval that holds at all times."),
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of every interval.")] = 0.95,
    bootstrap: Annotated[int, typer.Option(help="Resamples of a bootstrap interval; 0 for none.")] = 0,
    against: Annotated[
        str | None,
        typer.Option(help="The policy that the others are compared with, written as in --policy. Default: the first."),
    ] = None,
    by_user: Annotated[bool, typer.Option("--by-user", help="Report the overlap of each user.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of bootstrap and replay.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write everything as JSON to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Estimate what other policies would have earned on the decisions of LOG.

    The log is read once, piece by piece: it may be larger than memory. Where propensities are unknown or support is
    missing the answer is a refusal with its reason, never a number.
    """
    from drimed.evaluation import estimators as known
    from drimed.evaluation import target
    from drimed.evaluation.evaluate import Plan
    from drimed.evaluation.readers import read
    from drimed.evaluation.tables import OPTIONAL, Columns

    policies = names("--policy", policy)
    if against is not None and against not in policies:
        if against in (control, f"arm={control}"):
            against = "control"  # the same policy by the name of its arm
        policies += [against] if against not in policies else []
    columns = Columns(
        action=action,
        reward=reward,
        propensity=propensity,
        probabilities=probabilities,
        predictions=predictions,
        user=user,
        targets=tuple(name.removeprefix("columns=") for name in policies if name.startswith("columns=")),
        use=frozenset(OPTIONAL) - {"episode", "metrics"} - (set() if by_user else {"user"}),
    )
    stream = read(log, columns=columns, arms=names("--arms", arms) if arms else None)
    default = WITH_MODEL if stream.predicts else WITHOUT_MODEL
    plan = Plan(
        targets=[target.parse(name, control=control) for name in policies],
        estimators=[known.parse(name) for name in names("--estimators", estimators or default)],
        level=level,
        reward_range=_range(reward_range),
        resamples=bootstrap,
        by_user=by_user,
        seed=seed,
        against=against or (policies[0] if len(policies) > 1 else None),
    )
    _answer(stream, plan, out, force=force)


def _answer(stream: LogStream, plan: Plan, out: Path | None, *, force: bool) -> None:
    """Read the log once, show what follows, and write it where asked."""
    from drimed.evaluation.evaluate import Tally

    console = Console()
    tally, done = Tally(plan), 0
    with console.status("reading") as status:
        for piece in stream:
            tally.add(piece)
            done += len(piece)
            status.update(f"{done:,} decisions")
    result = tally.result()
    _show(console, result, plan.level)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        outputs.put(out, json.dumps(result.as_dict(), indent=2).encode() + b"\n", force=force)
        console.print(Text(f"wrote {out}"))
    if all(estimate.refused for estimate in result.estimates):
        raise typer.Exit(REFUSED)


def _show(console: Console, result: Evaluation, level: float) -> None:
    console.print(f"{result.decisions:,} decisions, {len(result.arms)} arms, mean reward {result.mean_reward:.4g}")
    table = _table("value", "standard error", f"{level:.0%} normal")
    refusals: dict[str, list[str]] = {}  # reason -> what it refuses
    for e in result.estimates:
        if e.refused:
            refusals.setdefault(e.refused, []).append(f"{e.target} / {e.estimator}")
            table.add_row(Text(visible(e.target)), Text(e.estimator), Text("refused", style="bold red"), "", "")
        else:
            numbers = f"{e.value:.5g}", _error(e.standard_error), _text(e.interval)
            table.add_row(Text(visible(e.target)), Text(e.estimator), *numbers)
    console.print(table)
    _show_more_intervals(console, result, level)
    _show_differences(console, result, level)
    for name, overlap in result.overlaps.items():
        if overlap is not None:
            w = overlap.weights
            share = w.effective / w.count if w.count else 0.0
            _say(
                console,
                f"{name}: effective sample size {w.effective:,.0f} ({share:.0%}), largest weight {w.largest:.4g}",
            )
            for user, each in sorted(overlap.by_user.items(), key=lambda item: item[1].effective)[:LEAST_USERS]:
                _say(console, f"  user {user}: {each.effective:,.0f} of {each.count:,}, largest {each.largest:.4g}")
    for name, told in result.warnings.items():
        for text in told:
            _say(console, f"{name}: {text}", ("warning: ", "yellow"))
    for reason, whose in refusals.items():
        _say(console, f"{', '.join(whose)}: {reason}", ("refused: ", "bold red"))


def _show_more_intervals(console: Console, result: Evaluation, level: float) -> None:
    """Those that were asked for, in a table of their own: all of them side by side are too wide for a terminal."""
    shown = [e for e in result.estimates if e.bootstrap or e.anytime]
    kinds = {"bootstrap": any(e.bootstrap for e in shown), "at all times": any(e.anytime for e in shown)}
    if not shown:
        return
    table = _table(*(f"{level:.0%} {kind}" for kind, there in kinds.items() if there))
    for e in shown:
        cells = (i for i, there in zip((e.bootstrap, e.anytime), kinds.values(), strict=True) if there)
        table.add_row(Text(visible(e.target)), Text(e.estimator), *map(_text, cells))
    console.print(table)


def _show_differences(console: Console, result: Evaluation, level: float) -> None:
    """How much more each policy earns than the one it is compared with."""
    if not result.differences:
        return
    _say(console, f"Differences to {result.differences[0].against}, on the same decisions:")
    table = _table("difference", "standard error", f"{level:.0%} normal")
    for d in result.differences:
        numbers = f"{d.value:+.5g}", _error(d.standard_error), _text(d.interval)
        table.add_row(Text(visible(d.target)), Text(d.estimator), *numbers)
    console.print(table)


def _table(*titles: str) -> Table:
    """A table of policies and estimators; names may be folded, numbers may not."""
    numbers = (Column(title, no_wrap=True) for title in titles)
    return Table(Column("policy", overflow="fold"), Column("estimator", no_wrap=True), *numbers, box=SIMPLE_HEAD)


def _say(console: Console, text: str, mark: tuple[str, str] = ("", "")) -> None:
    """A line in which names are names and no markup."""
    console.print(Text.assemble(mark, visible(text)), highlight=False, soft_wrap=True)


def _text(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return "not known" if isnan(interval.low) else f"{interval.low:.5g} .. {interval.high:.5g}"


def _error(error: float) -> str:
    return "not known" if isnan(error) else short(error)


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--reward-range is two numbers separated by a comma, such as 0,1; got {text!r}") from error
    return low, high
