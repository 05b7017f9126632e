"""A simulated world that is asked and told through the live interface gives the decisions of the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.models.offer import Shape
from drimed.policies.registry import make
from drimed.records import Decision, Report
from drimed.simulation.runner import BlockLog, play
from drimed.simulation.worlds import Block, World
from drimed.trial.problem import FEWEST_USERS
from drimed.trial.store import MemoryStore, Store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.worlds import world

SEED, EPISODES = 5, 4
TOLERANCE = {"relative": 0.1, "absolute": 0.3}
SETTINGS = {"relative": 0.1, "absolute": 0.3, "confidence": 0.9, "delta": 0.01}

# name -> the policy of the trial file, and the settings that make the same policy in a simulation
POLICIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dri_med": ({"name": "dri_med"}, SETTINGS),
    "dri_med, certain": ({"name": "dri_med", "guard": "certain"}, SETTINGS | {"guard": "certain"}),
    "dri_med, budget": ({"name": "dri_med", "guard": "budget"}, SETTINGS | {"guard": "budget"}),
    "dri_med, discounted": ({"name": "dri_med", "discount": 0.9}, SETTINGS | {"discount": 0.9}),
    "w_oful": ({"name": "w_oful"}, {}),
    "d_lin_ucb": ({"name": "d_lin_ucb"}, {}),
    "w_solid": ({"name": "w_solid"}, {}),
    "lin_ts": ({"name": "lin_ts"}, {}),
    "dri_med, learned": ({"name": "dri_med", "weighting": "learned"}, SETTINGS | {"weighting": "learned"}),
}  # fmt: skip
POLICIES |= {"published_dri_med": ({"name": "published_dri_med"}, {"tolerance": 0.1})}


def small_world() -> World:
    """As many users as a trial has room for: noise that is learned per user is then added up in the same portions."""
    return world(seeds=[SEED], episodes=EPISODES, magnitude=5.0, shape=Shape(d=3, K=4, M=3, H=FEWEST_USERS))


def simulated(policy: dict[str, Any], settings: dict[str, Any], it: World, *, at_once: bool) -> BlockLog:
    (block,) = it.blocks()
    known = make(policy["name"], **settings).traits.settings
    settings = settings | {k: v for k, v in {"ties": "shared", "simultaneous": True}.items() if k in known}
    built: Any = make(policy["name"], **settings)
    _, log = play(built, built.init(it.shape, (it.batch,)), block, at_once=at_once)
    return log


def live(policy: dict[str, Any], it: World, store: Store) -> Trial:
    instance, control = it.instances[0], it.control[:, 0]
    M, K = it.shape.M, it.shape.K
    metrics, arms = [f"m{i}" for i in range(M)], [f"a{k}" for k in range(K)]
    return Trial.create(
        {
            "model": {"kind": "paper"},
            "name": "world",
            "seed": SEED,
            "metrics": {m: {} for m in metrics},
            "arms": {a: {"map": instance.maps[k].tolist()} for k, a in enumerate(arms)},
            "users": {
                f"u{h}": {
                    "preference": dict(zip(metrics, instance.preferences[h].tolist(), strict=True)),
                    "control": {a: float(c) for a, c in zip(arms, control[h], strict=True) if c > 0},
                }
                for h in range(it.shape.H)
            },
            "tolerance": TOLERANCE,
            "confidence": 0.9,
            "context": {f"c{i}": {} for i in range(it.setting.context_dim)},
            "noise": {
                "kind": "known",
                "scale": "norm",
                "level": it.setting.reward_noise,
                "arms": {a: {"covariance": instance.covariances[k].tolist()} for k, a in enumerate(arms)},
            },
            "policy": policy,
        },
        store,
    )


def contexts(block: Block, episode: int) -> dict[str, dict[str, float]]:
    every = block.contexts[episode, :, 0]
    return {f"u{h}": {f"c{i}": float(c) for i, c in enumerate(own)} for h, own in enumerate(every)}


def report(block: Block, episode: int, user: int, given: Decision) -> Report:
    vector = block.respond(episode, np.array([[int(given.arm[1:])]]), slice(user, user + 1)).vector
    assert vector is not None
    return Report(given.id, {f"m{i}": float(y) for i, y in enumerate(vector[0, 0])})


@pytest.mark.parametrize(
    ("name", "at_once"), [(name, False) for name in POLICIES] + [(n, True) for n in POLICIES if "published" not in n]
)
def test_a_trial_gives_the_simulators_decisions(name: str, at_once: bool) -> None:
    """At once, probabilities agree to 1e-9: the simulator adds an episode's outcomes in one step of V^-1."""
    policy, settings = POLICIES[name]
    it, store = small_world(), MemoryStore()
    log = simulated(policy, settings, it, at_once=at_once)
    (block,) = it.blocks()
    trial, given = live(policy, it, store), list[Decision]()
    for episode in range(EPISODES):
        trial.open_episode(contexts(block, episode))
        for users in [range(it.shape.H)] if at_once else [[h] for h in range(it.shape.H)]:
            asked = trial.ask_many([f"u{h}" for h in users])
            trial.tell_many([report(block, episode, h, d) for h, d in zip(users, asked, strict=True)], confirm=True)
            given += asked
    arms = np.array([int(d.arm[1:]) for d in given])
    probabilities = np.array([list(d.probabilities.values()) for d in given])
    assert np.array_equal(arms, log.action[:, :, 0].reshape(-1))
    expected = log.probabilities[:, :, 0].reshape(probabilities.shape)
    np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-9 if at_once else 0)
    assert len(set(arms.tolist())) > 1
    proof = verify(store, "world")
    assert (proof.faults, proof.exact) == ([], EPISODES * it.shape.H)
