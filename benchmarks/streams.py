"""Streams of people who come once: the trial file's own policy beside the rule that set its goals.

    python -m benchmarks.streams [--trials 100] [--own 0 0.25 0.5] [--people 500] [--late 200]

Four arms with effects 0 (control), .3, .3 and .6 of the residual deviation, tolerance .17; each person has effects of
their own with a variance of --own, beside a residual of 1. The prototype is MED (temperature 2, or the .25 that trials
once had; .9 on the leader) on Gaussian posteriors of arms' means, averaged over the prior's variance at .1 to .8 of the
noise's, under the guard `expected` at .99 and with the control for the first eight; to it regret is compared, in the
same worlds. Widths of 95 % ranges are compared to those of least squares with one residual variance, where an arm has
an outcome: the median ratio. Late: from the --late person on. Shapes: S streams, n people, K arms.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from benchmarks.worlds import Played, SmallWorld, holding, trial
from drimed import streams
from drimed.numerics import probability
from drimed.numerics.arrays import FloatArray

OPENING = 8  # people under the control before the prototype's first choice
RATIOS = np.array([0.1, 0.2, 0.4, 0.8])[:, None, None]
TEMPERATURES = (2.0, 0.25)
ROUND_OFF = 1e-9
HEADINGS = (
    "own",
    "policy",
    "regret ± se",
    "over the first prototype's",
    "control, late ± se",
    "promise broken, of 10,000",
    "95 % ranges hold ± se",
    "width over least squares",
)


@dataclass(frozen=True)
class Stream(SmallWorld):
    own: float = 0.0  # variance of a person's own effects

    def outcomes(self, seed: int) -> FloatArray:
        plain = super().outcomes(seed)
        return plain + np.sqrt(self.own) * streams.generator(seed, "own effects").standard_normal(plain.shape)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: means over streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--first", type=int, default=70_000, help="seed of the first stream")
    parser.add_argument("--own", type=float, nargs="*", default=[0.0, 0.25, 0.5])
    parser.add_argument("--people", type=int, default=500)
    parser.add_argument("--late", type=int, default=200)
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.trials)
    print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    for own in options.own:
        world = Stream((0.0, 0.3, 0.3, 0.6), options.people, 0.17, 1.0, own=own)
        y = np.stack([world.outcomes(seed) for seed in seeds])
        policies = {f"prototype, {t:g}": Played(prototype(world, y, t, seeds[0])) for t in TEMPERATURES}
        usual = np.mean([regret(world, played).mean() for played in list(policies.values())[:1]])
        for name, played in (policies | {"trial": trial(world, y, seeds, "people")}).items():
            lost, late = regret(world, played), played.chances[:, options.late :, 0].mean(-1)
            broken = played.chances @ np.array(world.means) < world.means[0] - world.tolerance - ROUND_OFF
            cells = [stated(lost, 1), f"{lost.mean() / usual:.2f}", stated(late, 3), f"{1e4 * broken.mean():.3g}"]
            if played.ranges is not None:
                cells += [stated(holding(world, played.ranges).mean(-1), 3), f"{width(played, y):.2f}"]
            print(f"| {own:g} | {name} | {' | '.join(cells)} |", flush=True)


def regret(world: SmallWorld, played: Played) -> FloatArray:
    return np.asarray((max(world.means) - played.chances @ np.array(world.means)).sum(-1))


def stated(values: FloatArray, digits: int) -> str:
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / len(values) ** 0.5:.{digits}f}"


def width(played: Played, y: FloatArray) -> float:
    """Widths of ranges over those of least squares, the median."""
    assert played.given is not None
    assert played.ranges is not None
    given = probability.one_hot(played.given, y.shape[-1])  # (S, n, K)
    count, observed = given.sum(1), (given * y).sum(-1)
    residual = observed - np.einsum("snk,sk->sn", given, (given * y).sum(1) / np.maximum(count, 1))
    freedom = y.shape[1] - (count > 0).sum(-1)
    scale = stdtrit(freedom, 0.975) * np.sqrt((residual**2).sum(-1) / freedom)  # (S,)
    both = (count[:, 1:] > 0) & (count[:, :1] > 0)
    error = np.sqrt(1 / np.maximum(count[:, 1:], 1) + 1 / np.maximum(count[:, :1], 1))
    return float(np.median(((played.ranges[1] - played.ranges[0]) / (2 * scale[:, None] * error))[both]))


def prototype(world: SmallWorld, y: FloatArray, temperature: float, seed: int) -> FloatArray:
    """Probabilities of all decisions: (S, n, K)."""
    (S, n, K), z = y.shape, ndtri(0.99)
    count, total, square, rng = np.zeros((S, K)), np.zeros((S, K)), np.zeros(S), streams.generator(seed, "prototype")
    control = probability.one_hot(np.zeros(S, dtype=np.int64), K)
    chosen = np.zeros(y.shape)
    for i in range(n):
        p = control
        if i >= OPENING:
            freedom = np.maximum(i - (count > 0).sum(-1), 1)
            noise = ((square - (total**2 / np.maximum(count, 1)).sum(-1)) / freedom)[:, None]
            precision = count + 1 / RATIOS  # of an arm's mean, beside the noise: (ratios, S, K)
            means = (total + (total.sum(-1) / i)[:, None] / RATIOS) / precision
            mean, variance = means.mean(0), (noise / precision).mean(0) + means.var(0)
            lead = probability.one_hot(mean.argmax(-1), K)
            gap, distance = ((lead * a).sum(-1, keepdims=True) for a in (mean, variance))
            p = probability.weighted(0.9 * lead + 0.1 / K, -((gap - mean) ** 2) / (temperature * (distance + variance)))
            margin = ((p - control) * mean).sum(-1) - z * np.sqrt(((p - control) ** 2 * variance).sum(-1))
            p = control + np.minimum(1, world.tolerance / np.maximum(-margin, ROUND_OFF))[:, None] * (p - control)
        chosen[:, i] = p
        given = probability.one_hot(np.minimum((p.cumsum(-1) <= rng.random((S, 1))).sum(-1), K - 1), K)
        count, total, square = count + given, total + given * y[:, i], square + ((given * y[:, i]).sum(-1)) ** 2
    return chosen


if __name__ == "__main__":
    main()
