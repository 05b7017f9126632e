from __future__ import annotations

import numpy as np

from drimed.learning.offer import make_offer
from drimed.rules.baselines import Greedy
from drimed.rules.rule import Ask
from tests.examples import E1, E3, r1_fit, r1_offer


def test_it_plays_the_largest_estimated_mean() -> None:
    assert Greedy().propose(r1_fit(), r1_offer(), Ask()).tolist() == E1.tolist()


def test_it_obeys_the_mask_and_the_penalty() -> None:
    fit, offer = r1_fit(), r1_offer()
    assert Greedy().propose(fit, offer, Ask(mask=np.array([False, True, True]))).tolist() == E3.tolist()
    assert Greedy().propose(fit, offer, Ask(penalty=np.array([0.13, 0.0, 0.0]))).tolist() == E3.tolist()
    assert Greedy().propose(fit, offer, Ask(penalty=np.array([0.11, 0.0, 0.0]))).tolist() == E1.tolist()


def test_ties_go_to_the_lowest_index() -> None:
    offer = make_offer(features=[[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]], control=E1)
    assert int(Greedy().propose(r1_fit(), offer, Ask()).argmax()) == 1
