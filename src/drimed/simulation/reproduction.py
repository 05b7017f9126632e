"""The paper's experiments as data, their numbers, and its empirical statements judged by them.

Source: Das et al., section 5 and Appendix "Experimental Analysis". The last two experiments are ours: LinMED with its
own authors' weights, and the main comparison on random instances. A claim is judged on the authors' instance with the
authors' metric, unless it says otherwise; `holds` is None where this run did not measure what it is about.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drimed.numerics.arrays import FloatArray, check_settings
from drimed.policies.guards.margin import Tolerance
from drimed.policies.published import READINGS
from drimed.simulation.benchmark import PaperScenario
from drimed.simulation.instances import authors_instance, levels, quantile_control
from drimed.simulation.runner import Run, RunRecord
from drimed.simulation.worlds import Setting

PARTS = ("main", "ablations", "allocation", "discount", "random")
DRIFTS = ("none", "gradual", "periodic", "abrupt")
ABLATIONS = {"quantile": (0.25, 0.5, 0.75), "tolerance": (0.05, 0.1, 0.2, 0.3, 0.5)}
DISCOUNTS = (0.99, 1.0)
FULL_SEEDS, FULL_EPISODES = 128, 1000
DRI_MED, DRI_IMED = "published_dri_med", "published_dri_imed"

# Where the paper's words leave the number open.
ORDER_OF_MAGNITUDE = 10.0
STABLE = 2.0  # "stable", "largely unaffected", "competitive": at most this ratio
ZERO_RATE = 0.005  # "zero" is below one decision in two hundred, "persistent" above: one line for all policies
RARE_RATE = 0.001  # what a practitioner would call safe
CONCENTRATED = 0.9  # "almost all pull mass"
LATE = "in the last tenth of the episodes"

# Part -> what distinguishes its runs -> the record.
Records = dict[str, dict[Any, RunRecord]]


@dataclass(frozen=True)
class Contender:
    """A policy as it appears in a figure."""

    key: str  # in results.json
    label: str
    policy: str  # {reading} stands for the one that is asked for


BASELINES = (  # with the paper's settings
    Contender("oful", "OFUL", "oful"),
    Contender("lin_ts", "LinTS", "lin_ts"),
    Contender("lin_med", "LinMED", "lin_med_swapped"),
    Contender("lin_imed", "LinIMED", "lin_imed"),
)
PUBLISHED = (
    Contender(DRI_MED, "Dri-MED", f"{DRI_MED}:reading={{reading}}"),
    Contender(DRI_IMED, "Dri-IMED", f"{DRI_IMED}:reading={{reading}}"),
)
OWN_WEIGHTS = Contender("lin_med_own_weights", "LinMED (its authors' weights)", "lin_med")  # I-8
MAIN = (*BASELINES, *PUBLISHED, OWN_WEIGHTS)
ON_RANDOM = (
    *BASELINES,
    OWN_WEIGHTS,
    *(
        Contender(f"{c.key}_{reading}", f"{c.label} ({reading})", f"{c.key}:reading={reading}")
        for reading in ("printed", "code")
        for c in PUBLISHED
    ),
    Contender("w_oful", "OFUL, weighted", "w_oful"),
    Contender("dri_imed", "dri_imed of this package", "dri_imed"),
    Contender("dri_med", "dri_med of this package", "dri_med"),
)
LABELS = {c.key: c.label for c in (*MAIN, *ON_RANDOM)}
OURS, RIVALS = (DRI_MED, DRI_IMED), tuple(c.key for c in BASELINES)
RANDOM_POLICIES = ("oful", "published_dri_med_printed", "published_dri_imed_printed")


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """The plan of one `drimed reproduce`."""

    seeds: int = FULL_SEEDS  # of the main comparison; the other parts scale with it
    reading: str = "code"
    parts: tuple[str, ...] = PARTS
    episodes: int = FULL_EPISODES

    def __post_init__(self) -> None:
        check_settings(self, {"reading": READINGS}, count=("seeds", "episodes"))

    def plan(self) -> dict[tuple[Any, ...], Run]:
        """Every run of the chosen parts, by the part and what distinguishes it there."""
        everything: dict[str, dict[Any, Run]] = {
            "main": {(d, c.key): self.on_authors(c, d, self.seeds) for d in DRIFTS for c in MAIN},
            "ablations": {
                (kind, value, c.key): self.on_authors(c, "abrupt", self._share(64), **{kind: value})
                for c in PUBLISHED
                for kind, values in ABLATIONS.items()
                for value in values
            },
            "allocation": {
                c.key: self.on_authors(c, "abrupt", self._share(32)) for c in (BASELINES[2], OWN_WEIGHTS, PUBLISHED[0])
            },
            "discount": {
                (d, g): self.on_authors(PUBLISHED[0], d, self._share(32), discount=g) for d in DRIFTS for g in DISCOUNTS
            },
            "random": {(d, c.key): self._on_random(c, d) for d in DRIFTS for c in ON_RANDOM},
        }
        return {(part, key): run for part in self.parts for key, run in everything[part].items()}

    def on_authors(
        self, contender: Contender, drift: str, seeds: int, *, quantile: float = 0.5, tolerance: float = 0.1,
        discount: float | None = None,
    ) -> Run:  # fmt: skip
        """A run on the authors' instance, with the control from their Dirichlet means (I-4)."""
        settings = f"+tolerance={tolerance}" if contender in PUBLISHED else ""
        settings += "" if discount is None else f"+discount={discount}"
        return Run(
            policy=contender.policy.format(reading=self.reading) + settings,
            scenario=PaperScenario(quantile=quantile, judged_by="preference_means", setting=self._setting(drift)),
            tolerance=Tolerance(relative=tolerance),
            seeds=tuple(range(seeds)),
        )

    def _on_random(self, contender: Contender, drift: str) -> Run:
        """One random instance per seed, control at the median of each user's actual arms."""
        return Run(
            policy=contender.policy,
            scenario=PaperScenario(instances="random", setting=self._setting(drift)),
            seeds=tuple(range(1000, 1000 + self._share(64))),
        )

    def _share(self, full: int) -> int:
        """The seeds of a part that has `full` when the main comparison has 128."""
        return max(1, self.seeds * full // FULL_SEEDS)

    def _setting(self, drift: str) -> Setting:
        """The paper's. As printed, the abrupt drift keeps growing (I-25)."""
        shape = "abrupt_growing" if drift == "abrupt" and self.reading == "printed" else drift
        return Setting(episodes=self.episodes, drift=shape)


def by_part(records: dict[tuple[Any, ...], RunRecord]) -> Records:
    """The records of a plan, part by part; a part that was not asked for is empty."""
    return {part: {key: record for (p, key), record in records.items() if p == part} for part in PARTS}


def results(records: Records) -> dict[str, Any]:
    """The numbers of every part and the verdicts, as they stand in results.json."""
    numbers = {part: (_allocation_numbers if part == "allocation" else _nested)(some) for part, some in records.items()}
    return numbers | {"claims": judge_all(records)}


def late_rate(record: RunRecord, name: str) -> float:
    """A count per decision in the last tenth of the episodes."""
    return float(record.windows(name)[:, record.episodes > 0.9 * record.episodes[-1]].mean())


def _numbers(record: RunRecord) -> dict[str, Any]:
    expected = record.rate("violations.safe.expected")
    return {
        "regret": _spread(record.total("regret")),
        "regret_as_published": _spread(record.total("regret_as_published")),
        "violation_rate": record.rate("violations.safe.realised"),
        "violation_rate_as_published": record.rate("violations.published.realised"),
        "violation_rate_equation": record.rate("violations.equation.realised"),
        "estimated_violation_rate": record.rate("violations.safe.estimated"),
        "estimated_violation_rate_as_published": record.rate("violations.published.estimated"),
        # Thompson sampling has no closed form to take an expectation of.
        "expected_violation_rate": None if np.isnan(expected) else expected,
        "late_violation_rate_as_published": late_rate(record, "violations.published.realised"),
        "shortfall": _spread(record.total("shortfall")),
        "parameter_error": _spread(record.total("parameter_error")),
        "microseconds_per_decision": record.microseconds_per_decision,
        "seeds": len(record.allocation),
    }


def _spread(values: FloatArray) -> dict[str, float]:
    """Median, mean and the 5 to 95 % band."""
    q05, median, q95 = np.quantile(values, [0.05, 0.5, 0.95])
    return {"median": float(median), "mean": float(values.mean()), "q05": float(q05), "q95": float(q95)}


def _nested(records: dict[Any, RunRecord]) -> dict[str, Any]:
    """The numbers of each record under the parts of its key, one inside the other; ablations also have a range."""
    out: dict[str, Any] = {}
    for (*path, name), record in records.items():
        inner = out
        for part in path:
            inner = inner.setdefault(f"{part}", {})
        inner[f"{name}"] = _numbers(record)
        if len(path) > 1:
            inner[f"{name}"]["interquartile_range_as_published"] = interquartile_range(record)
    return out


def _allocation_numbers(records: dict[Any, RunRecord]) -> dict[str, Any]:
    if not records:
        return {}
    instance = authors_instance()
    actual, published = instance.means(instance.preferences), instance.means(instance.preference_means)
    return {
        "means": actual.tolist(),
        "means_as_published": published.tolist(),
        "best_arm": actual.argmax(-1).tolist(),
        "best_arm_as_published": published.argmax(-1).tolist(),
        "control": quantile_control(instance, judged_by="preference_means").tolist(),
        "share": {policy: record.allocation.mean(0).tolist() for policy, record in records.items()},
        "seeds": len(next(iter(records.values())).allocation),
    }


Verdict = tuple[bool, str]  # whether a claim holds, and the evidence
Table = dict[str, dict[str, float]]  # drift -> policy, or another name -> number


def judge_all(records: Records) -> list[dict[str, Any]]:
    """Every claim's verdict, as it stands in results.json."""
    claims = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
    verdicts = []
    for id, claim in claims.items():
        part = claim.get("part", "main")
        holds, evidence = None, f"part {part!r} was not measured in this run"
        if records[part]:
            judged, evidence = JUDGES[id](records)
            holds = bool(judged)
        verdicts.append(
            {"id": id, "text": claim["text"], "source": claim["source"], "holds": holds, "evidence": evidence}
        )
    return verdicts


def _median(record: RunRecord) -> float:
    return float(np.median(record.total("regret_as_published")))


def _table(
    records: Records, policies: Iterable[str], number: Callable[[RunRecord], float] = _median, part: str = "main"
) -> Table:
    return {drift: {policy: number(records[part][drift, policy]) for policy in policies} for drift in DRIFTS}


def _row(values: dict[str, float], digits: int = 0) -> str:
    return ", ".join(f"{LABELS.get(name, name)} {value:.{digits}f}" for name, value in values.items())


def _every(table: Table, holds: Callable[[dict[str, float]], bool], text: str = "", digits: int = 0) -> Verdict:
    """Whether the criterion holds for each row, and the table in words."""
    rows = "; ".join(f"{name}: {_row(row, digits)}" for name, row in table.items())
    return all(holds(row) for row in table.values()), text + rows


def _below_all(records: Records) -> Verdict:
    by_drift = {
        drift: {"worse of the two": max(row[p] for p in OURS), "best baseline": min(row[p] for p in RIVALS)}
        for drift, row in _table(records, (*OURS, *RIVALS)).items()
    }
    return _every(by_drift, lambda row: row["worse of the two"] < row["best baseline"])


def _gap_widens(records: Records) -> Verdict:
    def gap(drift: str, at: int) -> float:
        curves = {p: records["main"][drift, p].curve("regret_as_published") for p in (*OURS, *RIVALS)}
        regret = {p: float(np.median(curve[:, at])) for p, curve in curves.items()}
        return min(regret[p] for p in RIVALS) - max(regret[p] for p in OURS)

    middle = len(records["main"][DRIFTS[0], "oful"].episodes) // 2
    by_drift = {drift: {"half-way": gap(drift, middle), "at the end": gap(drift, -1)} for drift in DRIFTS}
    return _every(by_drift, lambda row: row["at the end"] > row["half-way"], "gap to the best baseline: ")


def _times_below_oful(records: Records) -> Verdict:
    ratios = {d: {p: row["oful"] / row[p] for p in OURS} for d, row in _table(records, ("oful", *OURS)).items()}
    return _every(ratios, lambda row: min(row.values()) >= ORDER_OF_MAGNITUDE, "OFUL's regret over ", 1)


def _worst_two(records: Records) -> Verdict:
    worst_first = {
        drift: dict(sorted(row.items(), key=lambda item: -item[1])) for drift, row in _table(records, RIVALS).items()
    }
    return _every(worst_first, lambda row: {*list(row)[:2]} == {"lin_med", "lin_ts"}, "worst first: ")


def _cost_of_ignoring(records: Records) -> Verdict:
    text = "LinMED ignores the noise either way; only its two mixture masses differ: "
    by_drift = _table(records, ("lin_med", OWN_WEIGHTS.key))
    return _every(by_drift, lambda row: row[OWN_WEIGHTS.key] > 0.5 * row["lin_med"], text)


def _stable(records: Records, text: str, ratio: Callable[[list[float]], float]) -> Verdict:
    by_drift = _table(records, OURS)
    ratios = {p: ratio([by_drift[drift][p] for drift in DRIFTS]) for p in OURS}
    return max(ratios.values()) <= STABLE, text + _row(ratios, 2)


def _violations(
    records: Records, policies: tuple[str, ...], rate: Callable[[RunRecord, str], float], when: str,
    holds: Callable[[float], bool],
) -> Verdict:  # fmt: skip
    by_drift = _table(records, policies, lambda record: rate(record, "violations.published.realised"))
    return _every(by_drift, lambda row: all(map(holds, row.values())), f"rate {when}, authors' threshold: ", 4)


def _best_share(records: Records, policy: str) -> FloatArray:
    instance = authors_instance()
    best = instance.means(instance.preferences).argmax(-1)
    return records["allocation"][policy].allocation.mean(0)[np.arange(len(best)), best]


def _concentrates(records: Records) -> Verdict:
    share = _best_share(records, DRI_MED)
    evidence = f"share of pulls on each user's best arm: {', '.join(f'{s:.2f}' for s in share)}"
    return bool(share.min() >= CONCENTRATED), evidence


def _spreads(records: Records) -> Verdict:
    share, own = (_best_share(records, policy).mean() for policy in ("lin_med", OWN_WEIGHTS.key))
    evidence = f"mean share on each user's best arm {share:.2f} with the paper's masses; {own:.2f} with its authors'"
    return bool(share < 0.5), evidence


def _control_is_median(_: Records) -> Verdict:
    instance = authors_instance()
    arm = quantile_control(instance, judged_by="preference_means").argmax(-1)
    actual = instance.means(instance.preferences)
    rank = 1 + (actual > actual[np.arange(len(arm)), arm][:, None]).sum(-1)
    return bool((rank == 3).all()), f"rank of the control among five arms by actual preference: {rank.tolist()}"


def _monotone(records: Records, kind: str, sign: int) -> Verdict:
    runs = records["ablations"]
    medians = {LABELS[p]: {f"{v}": _median(runs[kind, v, p]) for v in ABLATIONS[kind]} for p in OURS}
    return _every(medians, lambda row: bool((sign * np.diff(list(row.values())) > 0).all()), digits=1)


def _lower_for_imed(records: Records, measure: Callable[[RunRecord], float]) -> Verdict:
    runs = records["ablations"]
    varied = [(kind, value) for kind, values in ABLATIONS.items() for value in values]
    table = {f"{kind} {value}": {p: measure(runs[kind, value, p]) for p in OURS} for kind, value in varied}
    return _every(table, lambda row: row[DRI_IMED] < row[DRI_MED], digits=1)


def interquartile_range(record: RunRecord) -> float:
    """Of the final regret by the authors' metric."""
    low, high = np.quantile(record.total("regret_as_published"), [0.25, 0.75])
    return float(high - low)


def _sigma_bar(_: Records) -> Verdict:
    largest = np.diagonal(authors_instance().covariances, axis1=-2, axis2=-1).max()
    s_max = {drift: 1 + levels(drift, FULL_EPISODES, 100.0).max() for drift in DRIFTS}
    by_drift = {drift: float(np.sqrt(0.1 * (1 + s * np.sqrt(2)) * largest)) for drift, s in s_max.items()}
    evidence = "the printed formula on the authors' instance: " + _row(by_drift, 2)
    return all(abs(v - 1.92) < 0.05 for v in by_drift.values()), evidence


def _discount_absorbs(records: Records) -> Verdict:
    runs, table = records["discount"], Table()
    for d in DRIFTS:
        error = float(np.median(runs[d, 0.99].total("parameter_error")))
        table[d] = {"discount .99": _median(runs[d, 0.99]), "none": _median(runs[d, 1.0]), "error": error}
    better = all(row["discount .99"] < row["none"] for d, row in table.items() if d != "none")
    text = (
        "Holds if discounting lowers the regret under drift and the estimate is better than none: its error is "
        "|theta_hat - theta|, at |theta| = 1. V is discounted and b is not, so the estimate grows without bound and "
        "the policy turns greedy (I-1). "
    )
    precise, evidence = _every(table, lambda row: row["error"] < 1, text, 1)
    return better and precise, evidence


def _random_below_oful(records: Records) -> Verdict:
    by_drift = _table(records, RANDOM_POLICIES, lambda record: float(record.total("regret").mean()), "random")
    return _every(by_drift, lambda row: max(row, key=row.__getitem__) == "oful", "mean true regret: ")


def _random_safe(records: Records) -> Verdict:
    by_drift = _table(records, RANDOM_POLICIES, lambda record: record.rate("violations.safe.realised"), "random")
    text = "rate against each user's own control: "
    return _every(by_drift, lambda row: all(row[p] < RARE_RATE for p in RANDOM_POLICIES[1:]), text, 4)


JUDGES: dict[str, Callable[[Records], Verdict]] = {
    "below-all-baselines": _below_all,
    "survives-own-weights": lambda records: _every(
        _table(records, (DRI_MED, OWN_WEIGHTS.key)), lambda row: row[DRI_MED] < row[OWN_WEIGHTS.key]
    ),
    "gap-widens": _gap_widens,
    "oful-best-baseline": lambda records: _every(
        _table(records, RIVALS), lambda row: min(row, key=row.__getitem__) == "oful"
    ),
    "order-of-magnitude": _times_below_oful,
    "linmed-lints-worst": _worst_two,
    "cost-of-ignoring-noise": _cost_of_ignoring,
    "stable-across-drifts": lambda records: _stable(
        records, "largest over smallest median of the four drifts: ", lambda medians: max(medians) / min(medians)
    ),
    "abrupt-unaffected": lambda records: _stable(
        records, "abrupt over no drift: ", lambda medians: medians[DRIFTS.index("abrupt")] / medians[0]
    ),
    "violations-to-zero": lambda records: _violations(records, OURS, late_rate, LATE, lambda rate: rate < ZERO_RATE),
    "near-zero-violation-throughout": lambda records: _violations(
        records, OURS, RunRecord.rate, "over all episodes", lambda rate: rate < 2 * ZERO_RATE
    ),
    "baselines-keep-violating": lambda records: _violations(
        records, RIVALS, late_rate, LATE, lambda rate: rate > ZERO_RATE
    ),
    "imed-competitive": lambda records: _every(
        _table(records, OURS), lambda row: row[DRI_IMED] <= STABLE * row[DRI_MED]
    ),
    "dri-med-concentrates": _concentrates,
    "lin-med-spreads": _spreads,
    "control-at-median": _control_is_median,
    "regret-falls-with-quantile": lambda records: _monotone(records, "quantile", -1),
    "regret-rises-with-tolerance": lambda records: _monotone(records, "tolerance", 1),
    "imed-below-med-in-ablations": lambda records: _lower_for_imed(records, _median),
    "imed-tighter-in-ablations": lambda records: _lower_for_imed(records, interquartile_range),
    "sigma-bar": _sigma_bar,
    "discounting-absorbs-drift": _discount_absorbs,
    "survives-random-instances": _random_below_oful,
    "safe-on-random-instances": _random_safe,
}
