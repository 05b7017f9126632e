"""The contract of rules: a distribution over the allowed arms, each member of a batch by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drimed.models.offer import Shape
from drimed.policies.registry import RULES, load
from drimed.policies.rules.base import Ask
from tests.examples import unbatched, with_users
from tests.strategies import arms, fits, masks

MADE: dict[str, Any] = {name: load(place)() for name, place in RULES.items()}
MADE |= {
    "med, design": load(RULES["med"])(empirical=0.3, optimal=0.3, saturation="every arm"),
    "med, shared": load(RULES["med"])(ties="shared", temperature="radius"),
    "imed, shared": load(RULES["imed"])(ties="shared"),
    "lin_imed, 1": load(RULES["lin_imed"])(version=1, radius="experiments"),
    "ids, f": load(RULES["ids"])(variant="f", deterministic=True),
    "spanner_igw, authors": load(RULES["spanner_igw"])(variant="authors", eta=50.0),
    "oplb, safe policy": load(RULES["oplb"])(safe_policy=True, optimism="theory"),
}
ALL = pytest.mark.parametrize("rule", MADE.values(), ids=MADE)


@ALL
@settings(max_examples=25)
@given(data=st.data())
def test_a_rule_proposes_a_distribution_over_the_allowed_arms(rule: Any, data: st.DataObject) -> None:
    x = data.draw(arms())
    K, d = x.shape
    fit, mask = data.draw(fits(d, K)), data.draw(masks(K))
    control = np.eye(K)[0 if mask is None else int(mask.argmax())]
    sigma = data.draw(st.none() | st.lists(st.floats(0.1, 10.0), min_size=K, max_size=K))
    offer = unbatched(features=x, control=control, sigma=sigma, available=mask).expand()
    penalty = data.draw(st.none() | st.lists(st.floats(0.0, 5.0), min_size=K, max_size=K).map(np.array))
    memory = rule.init(Shape(d=d, K=K, M=1, H=1), ()) if hasattr(rule, "init") else None
    cost = None if penalty is None else penalty[None]
    ask = Ask(None if mask is None else mask[None], np.full((1, 1 + d), 0.3), cost, memory)
    p = rule.propose(with_users(fit), offer, ask)
    assert p.shape == (1, K)
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1.0)
    assert mask is None or not p[0, ~mask].any()
    if rule.randomisation == "one arm" and getattr(rule, "ties", "first") == "first":
        assert p.max() == 1.0
