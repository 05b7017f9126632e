"""Equal to the Open Bandit Pipeline on the Open Bandit data that it ships, and on a synthetic log.

Its estimators run as they are. Only two imports of theirs are stood in for: torch, which they use for tensors, and
one function of scikit-learn, which they use for a bootstrap; neither is reached here.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.evaluation import estimators as est
from drimed.evaluation.log import Log, make_log
from drimed.evaluation.target import Decisions
from drimed.linear.arrays import FloatArray
from tests.evaluation.logs import TARGET, drawn

TOLERANCE = 1e-9
CAMPAIGNS = [(policy, campaign) for policy in ("random", "bts") for campaign in ("all", "men", "women")]
CHOICES: dict[str, tuple[est.Estimator, str, dict[str, float]]] = {
    "ips": (est.ips(), "InverseProbabilityWeighting", {}),
    "snips": (est.snips(), "SelfNormalizedInverseProbabilityWeighting", {}),
    "dm": (est.dm(), "DirectMethod", {}),
    "dr": (est.dr(), "DoublyRobust", {}),
    "sndr": (est.sndr(), "SelfNormalizedDoublyRobust", {}),
    "switch-dr": (est.switch_dr(threshold=1.0), "SwitchDoublyRobust", {"tau": 1.0}),
    "dros": (est.dros(shrinkage=2.0), "DoublyRobustWithShrinkage", {"lambda_": 2.0}),
}


def _package() -> Path:
    spec = importlib.util.find_spec("obp")
    if spec is None or spec.origin is None:
        pytest.skip("obp is not installed: pip install --no-deps obp")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    """The module obp.ope.estimators, without the rest of its package."""
    root = _package()
    fakes: dict[str, Any] = {name: types.ModuleType(name) for name in ("torch", "sklearn", "sklearn.utils")}
    fakes["torch"].Tensor = type("Tensor", (), {})
    fakes["sklearn.utils"].check_random_state = None
    package = types.ModuleType("_obp")
    package.__path__ = [str(root)]
    ope = types.ModuleType("_obp.ope")
    ope.__path__ = [str(root / "ope")]
    added = fakes | {"_obp": package, "_obp.ope": ope}
    before = {name: sys.modules.get(name) for name in added}
    sys.modules.update(added)
    try:
        yield importlib.import_module("_obp.ope.estimators")
    finally:
        for name in [name for name in sys.modules if name.startswith("_obp.") and name not in added]:
            del sys.modules[name]
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def _open_bandit(policy: str, campaign: str) -> tuple[Log, FloatArray, FloatArray]:
    """The log, a target that leans on the position, and predictions, both (n, K)."""
    path = _package() / "dataset" / "obd" / policy / campaign / f"{campaign}.csv"
    raw = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=(2, 3, 4, 5))
    item, position, click, propensity = raw.T
    action = item.astype(np.intp)
    K = int(action.max()) + 1
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.ones(K), size=3)  # another lottery in each of the three places on the page
    target = scores[position.astype(int) - 1]
    q = np.clip(0.004 + 0.002 * rng.standard_normal((len(action), K)), 0, 1)
    return make_log(action=action, reward=click, propensity=propensity, predictions=q, arms=K), target, q


def _their_value(theirs: Any, name: str, log: Log, target: FloatArray, q: FloatArray) -> tuple[float, FloatArray]:
    _, cls, settings = CHOICES[name]
    estimator = getattr(theirs, cls)(**settings)
    zero = np.zeros(len(log), dtype=int)
    given: dict[str, Any] = {
        "reward": log.reward,
        "action": log.action,
        "pscore": log.propensity,
        "action_dist": target[:, :, None],
        "estimated_rewards_by_reg_model": q[:, :, None],
        "position": zero,
    }
    if name in ("ips", "snips"):
        del given["estimated_rewards_by_reg_model"]
    return float(estimator.estimate_policy_value(**given)), estimator._estimate_round_rewards(**given)


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize(("policy", "campaign"), CAMPAIGNS)
def test_open_bandit_data_gives_their_numbers(theirs: Any, policy: str, campaign: str, name: str) -> None:
    log, target, q = _open_bandit(policy, campaign)
    assert len(log) == 10_000
    value, terms = _their_value(theirs, name, log, target, q)
    ours = CHOICES[name][0].parts(Decisions(log, target)).terms()
    assert ours.mean() == pytest.approx(value, abs=TOLERANCE, rel=TOLERANCE)
    np.testing.assert_allclose(ours, terms, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", CHOICES)
def test_a_synthetic_log_gives_their_numbers(theirs: Any, name: str) -> None:
    log, _ = drawn(3000, wrong_model=0.2)
    target = np.broadcast_to(TARGET, (len(log), log.K))
    assert log.predictions is not None
    value, terms = _their_value(theirs, name, log, target, log.predictions)
    ours = CHOICES[name][0].parts(Decisions(log, TARGET)).terms()
    assert ours.mean() == pytest.approx(value, abs=TOLERANCE, rel=TOLERANCE)
    np.testing.assert_allclose(ours, terms, rtol=TOLERANCE, atol=TOLERANCE)


def test_replay_gives_their_number_for_a_target_of_one_arm(theirs: Any) -> None:
    log, _, _ = _open_bandit("random", "men")
    target = np.zeros((len(log), log.K))
    target[:, 5] = 1.0
    value = theirs.ReplayMethod().estimate_policy_value(
        reward=log.reward, action=log.action, action_dist=target[:, :, None], position=np.zeros(len(log), dtype=int)
    )
    assert est.replay().parts(Decisions(log, np.eye(log.K)[5])).terms().mean() == pytest.approx(value, abs=TOLERANCE)
