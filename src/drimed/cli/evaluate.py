"""`drimed evaluate`: values of other policies, from a log with propensities."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drimed import outputs
from drimed.cli.console import Force, console, names, say, show
from drimed.formatting import short

if TYPE_CHECKING:  # SciPy takes a quarter of a second that other commands do not need
    from drimed.evaluation.off_policy import Estimate, Evaluation, Interval

REFUSED = 2  # exit code where nothing at all could be estimated
LEAST_USERS = 10  # those with the least overlap are listed; the JSON file has all of them


def evaluate(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A Parquet or CSV file, one row for each decision.")],
    policy: Annotated[str, typer.Option(help="Of uniform, control, logged, arm=NAME, columns=PREFIX.")] = "uniform",
    estimators: Annotated[str | None, typer.Option(help="Of dm, ips, snips, dr, sndr. Default: all possible.")] = None,
    control: Annotated[str | None, typer.Option(help="The name of the control arm.")] = None,
    arms: Annotated[str | None, typer.Option(help="All arms, separated by commas. Default: those of the log.")] = None,
    action: Annotated[str, typer.Option(help="Column of the arm played.")] = "action",
    reward: Annotated[str, typer.Option(help="Column of the reward, or of a metric to judge by.")] = "reward",
    user: Annotated[str, typer.Option(help="Column of the user.")] = "user",
    propensity: Annotated[str, typer.Option(help="Column of the probability of the arm played.")] = "propensity",
    probabilities: Annotated[str, typer.Option(help="Prefix of the probabilities of all arms.")] = "probability_",
    predictions: Annotated[str, typer.Option(help="Prefix of the columns of predicted rewards.")] = "q_",
    reward_range: Annotated[
        tuple[float, float] | None, typer.Option(help="Least and greatest reward: adds an interval for all times.")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of every interval.")] = 0.95,
    by_user: Annotated[bool, typer.Option("--by-user", help="Report the overlap of each user.")] = False,
    against: Annotated[str | None, typer.Option(help="Compare the others with this one. Default: the first.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write everything as JSON to this file.")] = None,
    force: Force = False,
) -> None:
    """Estimate what other policies would have earned on a log.

    Several policies or estimators are separated by commas. The log is read once, piece by piece: it may be larger than
    memory. Where propensities are unknown or support is missing the answer is a refusal with its reason, no number.
    """
    from drimed.evaluation.decision_log import Columns, read_log
    from drimed.evaluation.off_policy import ESTIMATORS, EvaluationPlan, Evaluator, TargetPolicy

    policies = names("--policy", policy)
    if against is not None and against not in policies and against in (control, f"arm={control}"):
        against = "control"  # the same policy by the name of its arm
    policies += [against] if against is not None and against not in policies else []
    columns = Columns(
        action=action, reward=reward, propensity=propensity, probabilities=probabilities, predictions=predictions,
        user=user if by_user else "",
        targets=tuple(name.removeprefix("columns=") for name in policies if name.startswith("columns=")),
    )  # fmt: skip
    stream = read_log(log, columns=columns, arms=names("--arms", arms) if arms else None)
    possible = [name for name, e in ESTIMATORS.items() if stream.predicts or not e.predicts]
    plan = EvaluationPlan(
        targets=[TargetPolicy.parse(name, control=control) for name in policies],
        estimators=names("--estimators", estimators) if estimators else possible,
        level=level,
        reward_range=reward_range,
        by_user=by_user,
        against=against or (policies[0] if len(policies) > 1 else None),
    )
    evaluator, count = Evaluator(plan), 0
    with console.status("reading") as status:
        for piece in stream:
            evaluator.add(piece)
            count += len(piece)
            status.update(f"{count:,} decisions")
    result = evaluator.result()
    _show(result, level)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        outputs.put(out, json.dumps(result.as_dict(), indent=2).encode() + b"\n", force=force)
        say(f"wrote {out}")
    if all(estimate.refused for estimate in result.estimates):
        raise typer.Exit(REFUSED)


def _show(result: Evaluation, level: float) -> None:
    def row(e: Estimate, what: str, sign: str = "") -> dict[str, Any]:
        error = "not known" if isnan(e.standard_error) else short(e.standard_error)
        value = (f"{e.value:{sign}.5g}", error, _text(e.interval), _text(e.anytime))
        titles = ("policy", "estimator", what, "standard error", f"{level:.0%} normal", f"{level:.0%} at all times")
        return dict(zip(titles, (e.target, e.estimator, *(("refused",) if e.refused else value)), strict=False))

    say(f"{result.decisions:,} decisions, {len(result.arms)} arms, mean reward {result.mean_reward:.4g}")
    show([row(e, "value") for e in result.estimates])
    refusals: dict[str, list[str]] = {}  # reason -> what it refuses
    for e in result.estimates:
        if e.refused:
            refusals.setdefault(e.refused, []).append(f"{e.target} / {e.estimator}")
    if result.differences:
        say(f"Differences to {result.differences[0].against}, on the same decisions:")
        show([row(d, "difference", "+") for d in result.differences])
    for name, overlap in result.overlaps.items():
        if overlap is None:
            continue
        share = overlap.effective / max(overlap.count, 1)
        size = f"effective sample size {overlap.effective:,.0f} ({share:.0%})"
        say(f"{name}: {size}, largest weight {overlap.largest:.4g}")
        for user, each in sorted(overlap.by_user.items(), key=lambda item: item[1].effective)[:LEAST_USERS]:
            say(f"  user {user}: {each.effective:,.0f} of {each.count:,}, largest {each.largest:.4g}")
    for name, warnings in result.warnings.items():
        for text in warnings:
            say(f"{name}: {text}", "yellow", mark="warning: ")
    for reason, whose in refusals.items():
        say(f"{', '.join(whose)}: {reason}", "bold red", mark="refused: ")


def _text(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return "not known" if isnan(interval.low) else f"{interval.low:.5g} .. {interval.high:.5g}"
