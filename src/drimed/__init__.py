"""Experiments that learn which treatment is best for each user and keep every user about as well off as the control.

A policy is a learner, a rule and a guard. Start with:

>>> from drimed import make, simulate
>>> make("dri_med").rule.temperature
2.0
"""

from importlib.metadata import version

from drimed.environments.control import given_control, quantile_control
from drimed.environments.instance import Instance, authors_instance, draw_instance
from drimed.environments.world import Setting, World
from drimed.errors import DrimedError
from drimed.experiments.simulate import RunRecord, simulate
from drimed.guards.decision import Decision
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Offer, Outcome, Shape, make_offer
from drimed.policies.policy import Policy
from drimed.policies.registry import REGISTRY, make

__version__ = version("drimed")

__all__ = [
    "REGISTRY",
    "Decision",
    "DrimedError",
    "Instance",
    "Offer",
    "Outcome",
    "Policy",
    "RunRecord",
    "Setting",
    "Shape",
    "Tolerance",
    "World",
    "__version__",
    "authors_instance",
    "draw_instance",
    "given_control",
    "make",
    "make_offer",
    "quantile_control",
    "simulate",
]
