"""The measurements of docs/evaluation.md: `python -m tests.evaluation.studies [NAME ...]`, names as in STUDIES.

Each study prints a Markdown table. Seeds are fixed; on one core all of them take a quarter of an hour.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from drimed.environments.drift import DRIFTS, levels
from drimed.environments.instance import authors_instance, quantile_control
from drimed.environments.world import Setting, World
from drimed.evaluation.arm_means import difference_band
from drimed.evaluation.drift import EpisodeSums, Monitor, context_drift
from drimed.evaluation.effects import reward_effects
from drimed.evaluation.estimators import ips
from drimed.evaluation.intervals import Anytime, Statistics, normal
from drimed.evaluation.scores import contrast, effect_band, effect_scores
from drimed.evaluation.sequences import Band, asymptotic, bernstein, betting
from drimed.evaluation.target import Decisions
from drimed.learning import noise
from drimed.linear.arrays import FloatArray
from drimed.policies.policy import Policy
from drimed.policies.registry import make
from tests.evaluation.adaptive import MEANS, K, Trials, greedy_trials, naive_effect
from tests.evaluation.logs import MEANS as LOG_MEANS
from tests.evaluation.logs import TARGET, drawn
from tests.worlds import steps

RUNS, ALPHA = 2000, 0.05
Z = float(ndtri(1 - ALPHA / 2))
ARM, CONTROL = 2, 0


def effects() -> None:
    """Model-free effects under adaptive allocation: simultaneous coverage and width."""
    n, truth = 2000, MEANS[ARM] - MEANS[CONTROL]
    for title, sd in (("coins", None), ("normal, noise doubles half-way", 0.5)):
        print(f"\n{title}\n\n| interval | explored t^-0.25 | t^-0.5 |\n|---|---|---|")
        cells: dict[str, list[str]] = {}
        for decay in (0.25, 0.5):
            trials = greedy_trials(RUNS, n, decay=decay, sd=sd, seed=11)
            bands = _bands(trials, sd, n)
            fixed = _median_width(bands["stabilised, at the end only"])
            for name, band in bands.items():
                share = float(band.holds(truth).mean())
                width = _median_width(band)
                cells.setdefault(name, []).append(f"{share:.1%}, {width:.2f} ({width / fixed:.1f})")
        for name, row in cells.items():
            print(f"| {name} | {' | '.join(row)} |")


def _bands(trials: Trials, sd: float | None, n: int) -> dict[str, Band]:
    def scored(reward_range: tuple[float, float] | None) -> Callable[[str], Band]:
        scores = effect_scores(
            action=trials.action,
            reward=trials.reward,
            probabilities=trials.probabilities,
            contrast=contrast(ARM, CONTROL, K),
            reward_range=reward_range,
        )
        if reward_range is not None:
            return lambda method: effect_band(scores, ALPHA, method=method)
        h = np.sqrt(scores.precision)
        mean = ((h * scores.value).sum(-1) / h.sum(-1))[:, None]
        half = Z * np.sqrt((h**2 * (scores.value - mean) ** 2).sum(-1, keepdims=True)) / h.sum(-1, keepdims=True)
        return lambda method: (
            Band(mean - half, mean + half) if method == "end" else effect_band(scores, ALPHA, method=method)
        )

    free = scored(None)
    naive = naive_effect(trials, ARM, CONTROL, Z)
    bands = {
        "naive, looked at all the time": naive,
        "naive, at the end only": Band(naive.low[:, -1:], naive.high[:, -1:]),
        "stabilised, at the end only": free("end"),
        "asymptotic, at all times": free("asymptotic"),
    }
    if sd is None:
        return bands | {"exact, at all times": scored((0.0, 1.0))("exact")}
    sigma = np.where(np.arange(n) >= n // 2, 2 * sd, sd)
    mixture = difference_band(
        action=trials.action, reward=trials.reward, arm=ARM, control=CONTROL, sigma=sigma, alpha=ALPHA
    )
    return bands | {"normal mixture, at all times": mixture}


def regression() -> None:
    """Regression effects in the paper's world under every drift."""
    print("\n| drift | at all times | naive, looked at all the time | width over fixed-time |\n|---|---|---|---|")
    instance, runs, L = authors_instance(), 1000, 100
    policy = make("dri_med", delta=ALPHA)
    assert isinstance(policy, Policy)
    for drift in DRIFTS:
        world = World(
            instances=[instance],
            seeds=range(runs),
            controls=[quantile_control(instance)],
            setting=Setting(episodes=L, drift=drift),
        )
        held, naive = np.ones(runs, bool), np.ones(runs, bool)
        offers, ratio = None, 0.0
        for step in steps(policy, world):
            offers = step.offers or offers
            if offers is None or step.number % instance.shape.H:
                continue
            fit = policy.fit(step.before)
            found = reward_effects(fit, offers)
            truth = np.matvec(offers.features - offers.control_features[..., None, :], world.theta[:, None])
            error, half = np.abs(truth - found.estimate), (found.high - found.low) / 2
            held &= (error <= half + 1e-9).all((-1, -2))
            ratio = float(fit.radius.mean() / Z)
            naive &= (error <= half * Z / fit.radius[:, None, None] + 1e-9).all((-1, -2))
        print(f"| {drift} | {held.mean():.1%} | {naive.mean():.1%} | {ratio:.2f} |")


def world() -> None:
    """Each user's effects in the paper's world: regression, the arms' own means, and propensities."""
    print("\n| policy | drift | way | holds throughout, each effect | median width | effects with an interval |")
    print("|---|---|---|---|---|---|")
    for name, settings in (("uniform", {"weighting": "known", "feedback": "vector"}), ("dri_med", {})):
        policy = make(name, delta=ALPHA, **settings)
        assert isinstance(policy, Policy)
        for drift in DRIFTS:
            for way, rows in _ways(policy, drift, 1000, 200).items():
                held, width, known = (np.array(column) for column in zip(*rows, strict=True))
                told = f"{np.mean(width[known > 0]):.2f}" if known.any() else "-"
                print(f"| {name} | {drift} | {way} | {held.mean():.1%} | {told} | {known.mean():.0%} |", flush=True)


def _ways(policy: Policy, drift: str, runs: int, L: int) -> dict[str, list[tuple[float, float, float]]]:
    """For each way and effect: share of trials in which it holds throughout, width at the end, share with any."""
    instance = authors_instance()
    H, arms = instance.shape.H, instance.shape.K
    control = quantile_control(instance)
    setting = Setting(episodes=L, drift=drift)
    it = World(instances=[instance], seeds=range(runs), controls=[control], setting=setting)
    action, sigma = np.empty((H, runs, L), np.intp), np.empty((H, runs, L, arms))
    reward, chances = np.empty((H, runs, L)), np.empty((H, runs, L, arms))
    low, high, width = np.full((3, runs, H, arms), -np.inf) * np.array([1, -1, -1])[:, None, None, None]
    for step in steps(policy, it):
        episode, h = divmod(step.number, H)
        a = step.decision.action
        assert step.offer.sigma is not None
        action[h, :, episode], reward[h, :, episode] = a, step.outcome.reward
        sigma[h, :, episode] = step.offer.sigma
        chances[h, :, episode] = step.decision.probabilities
        if step.offers is not None:
            found = reward_effects(policy.fit(step.before), step.offers)
            low, high = np.maximum(low, found.low), np.minimum(high, found.high)
            width = found.high - found.low
    rows: dict[str, list[tuple[float, float, float]]] = {"regression": [], "own means": [], "propensities": []}
    means = instance.means(instance.preferences)
    for h in range(H):
        base = int(control[h].argmax())
        mine = np.take_along_axis(sigma[h], action[h][..., None], -1)[..., 0]  # of the arm played
        for arm in (k for k in range(arms) if k != base):
            truth = means[h, arm] - means[h, base]
            held = ((low[:, h, arm] <= truth) & (truth <= high[:, h, arm])).mean()
            rows["regression"].append((float(held), float(np.median(width[:, h, arm])), 1.0))
            given = {"action": action[h], "reward": reward[h]}
            g = contrast(arm, base, arms)
            scores = effect_scores(**given, probabilities=chances[h], contrast=g)
            own = difference_band(**given, arm=arm, control=base, sigma=mine, alpha=ALPHA, tuned_at=20.0)
            rows["own means"].append(_summary(own, truth))
            rows["propensities"].append(_summary(effect_band(scores, ALPHA), truth))
    return rows


def _summary(band: Band, truth: float) -> tuple[float, float, float]:
    width = (band.high - band.low)[:, -1]
    known = np.isfinite(width)
    middle = float(np.median(width[known])) if known.any() else np.nan
    return float(band.holds(truth).mean()), middle, float(known.mean())


def mean() -> None:
    """The mean-drift monitor on the rows of dri_med in the paper's world."""
    L, guarantees = 200, ("every", "average")
    print("\n| change of theta | every theta | on average over theta |\n|---|---|---|")
    for drift in ("none", "gradual", "periodic", "abrupt"):
        sums = _rows(1000, L, drift=drift)
        shares = [float((Monitor(alpha=ALPHA, guarantee=g).watch(sums).alarm >= 0).mean()) for g in guarantees]
        print(f"| none; contexts: {drift} | {' | '.join(f'{share:.1%} of 1000' for share in shares)} |")
    for rotates in ("abrupt", "gradual"):
        for degrees in (5, 10, 20, 45, 90):
            sums = _rows(200, L, rotation=np.deg2rad(degrees), rotates=rotates)
            since = L // 2 if rotates == "abrupt" else 0
            cells = []
            for guarantee in guarantees:
                alarm = Monitor(alpha=ALPHA, guarantee=guarantee).watch(sums).alarm
                late = alarm[alarm >= since] - since
                cells.append(f"{len(late) / 200:.0%}" + (f", {np.median(late):.0f} episodes" if len(late) else ""))
            how = "at half-time" if rotates == "abrupt" else "over the whole trial"
            print(f"| {degrees} degrees {how} | {' | '.join(cells)} |")


def _rows(runs: int, L: int, **setting: object) -> EpisodeSums:
    instance = authors_instance()
    world = World(
        instances=[instance],
        seeds=range(runs),
        controls=[quantile_control(instance)],
        setting=Setting(episodes=L, **({"drift": "gradual"} | setting)),  # type: ignore[arg-type]  # settings by name
    )
    H, M, d = instance.shape.H, instance.shape.M, instance.shape.d
    Z, w = np.empty((runs, L, H * M, d)), np.empty((runs, L, H * M))
    for step in steps(make("dri_med"), world):
        episode, h = divmod(step.number, H)
        rows = slice(h * M, (h + 1) * M)
        Z[:, episode, rows], w[:, episode, rows] = noise.rows(
            "known", "vector", step.offer, step.decision.action, step.outcome
        )
    return EpisodeSums.of(Z, w)


def context() -> None:
    """The context-drift detector: false alarms, and delays for the paper's drifts."""
    L, H, D = 200, 10, 2
    print("\n| drift | alarms | median delay, episodes |\n|---|---|---|")
    rng = np.random.default_rng(0)
    calm = rng.standard_normal((1000, L, H, D))
    found = context_drift(calm, alpha=ALPHA)
    print(f"| none | {(found.alarm >= 0).mean():.1%} of 1000 trials | |")
    for magnitude in (1.0, 100.0):
        for drift in DRIFTS:
            if drift == "none":
                continue
            f: FloatArray = levels(drift, L, magnitude)
            begins = int((np.abs(f - f[0]) > 0).argmax())
            alarm = context_drift((1 + f)[:, None, None] * calm[:200], alpha=ALPHA).alarm
            late = alarm[alarm >= begins] - begins
            delay = f"{np.median(late):.0f}" if len(late) else "-"
            print(f"| {drift}, magnitude {magnitude:g} | {len(late) / 200:.0%} of 200 trials | {delay} |")


def sequences() -> None:
    """Means of coins: each confidence sequence, and a fixed-time interval that is looked at all the time."""
    runs, n = 1000, 2000
    print("\n| sequence | p = 0.5 | p = 0.1 |\n|---|---|---|")
    cells: dict[str, list[str]] = {}
    for p in (0.5, 0.1):
        x = (np.random.default_rng(0).random((runs, n)) < p).astype(np.float64)
        t = np.arange(1, n + 1)
        mean = x.cumsum(-1) / t
        half = np.where(t < 50, np.inf, Z * np.sqrt(mean * (1 - mean) / t))
        bands = {
            "bernstein": bernstein(x, ALPHA),
            "betting": betting(x, ALPHA),
            "asymptotic": asymptotic(x, ALPHA),
            "asymptotic, from the 50th on": asymptotic(x, ALPHA, start=50),
            "fixed-time, from the 50th on": Band(mean - half, mean + half),
        }
        for name, band in bands.items():
            cells.setdefault(name, []).append(f"{band.holds(p).mean():.1%}, {_median_width(band):.3f}")
    for name, row in cells.items():
        print(f"| {name} | {' | '.join(row)} |")


def value() -> None:
    """Intervals for the value of a target policy."""
    truth = float(LOG_MEANS @ TARGET)
    print("\n| decisions | normal | anytime | width of anytime over normal |\n|---|---|---|---|")
    for n in (200, 1000, 5000):
        usual, always, ratio = [], [], []
        for seed in range(1000):
            log, _ = drawn(n, seed=seed)
            decisions = Decisions(log, TARGET)
            s = Statistics.of(ips().parts(decisions))
            once = normal(s.value, s.standard_error, 1 - ALPHA)
            ever = Anytime.start((0.0, 1.0), 1 - ALPHA).extend(decisions.weight, log.reward).interval()
            usual.append(once.low <= truth <= once.high)
            always.append(ever.low <= truth <= ever.high)
            ratio.append((ever.high - ever.low) / (once.high - once.low))
        print(f"| {n} | {np.mean(usual):.1%} | {np.mean(always):.1%} | {np.median(ratio):.1f} |")


def _median_width(band: Band) -> float:
    return float(np.median((band.high - band.low)[:, -1]))


STUDIES: dict[str, Callable[[], None]] = {
    "effects": effects,
    "regression": regression,
    "world": world,
    "mean": mean,
    "context": context,
    "value": value,
    "sequences": sequences,
}


if __name__ == "__main__":
    for name in sys.argv[1:] or STUDIES:
        print(f"\n## {name}")
        STUDIES[name]()
