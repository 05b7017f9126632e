"""Experiments that learn which treatment is best for each user and keep every user about as well off as the control.

The public interface is what this module names (docs/api.md); everything else may change. A name is imported when it is
first used, so that `import drimed` costs nothing. Start with:

>>> from drimed import make, simulate
>>> make("dri_med").rule.temperature
2.0
"""

from typing import TYPE_CHECKING, Any

# Where the public names are; `Plan=EvaluationPlan` has another name there, and a module that ends in a colon is public
# as a whole.
_PUBLIC = {
    "policies.registry": "make register REGISTRY",
    "policies.composing": "check_policy",
    "policies.policy": "Policy AnyPolicy",
    "learning.learner": "Learner",
    "learning.offer": "Shape Offer make_offer Outcome Fit",
    "rules.rule": "Rule Ask",
    "guards.guard": "Guard AskRule",
    "guards.decision": "Decision Guarded",
    "guards.margin": "Tolerance",
    "guards.constraint": "Guardrail",
    "environments.world": "World Setting",
    "environments.instance": "Instance authors_instance draw_instance given_control quantile_control",
    "experiments.simulate": "simulate RunRecord",
    "trial.trial": "Trial",
    "trial.spec": "TrialSpec",
    "trial.stores": "open_store",
    "trial.stores.memory": "MemoryStore",
    "trial.verify": "verify",
    "records": "Report",
    "records:": "records",
    "client": "Client AsyncClient",
    "evaluation.evaluate": "evaluate Plan=EvaluationPlan",
    "evaluation.log": "make_log",
    "evaluation.readers": "read=read_log",
    "evaluation.estimators:": "estimators",
    "evaluation.target:": "targets",
    "errors": "DrimedError ConfigError SpecError InputError ShapeError UnknownNameError ConflictError BatchError "
    "UnconfirmedError NumericalError StoreError ServiceError AccessError MissingExtraError",
}
_EXTRAS = ("trial", "client", "evaluation")  # parts that need an extra of the same name

_HOMES = {each.split("=")[-1]: (home, each.split("=")[0]) for home, names in _PUBLIC.items() for each in names.split()}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from drimed import records as records
    from drimed.client import AsyncClient as AsyncClient
    from drimed.client import Client as Client
    from drimed.environments.instance import Instance as Instance
    from drimed.environments.instance import authors_instance as authors_instance
    from drimed.environments.instance import draw_instance as draw_instance
    from drimed.environments.instance import given_control as given_control
    from drimed.environments.instance import quantile_control as quantile_control
    from drimed.environments.world import Setting as Setting
    from drimed.environments.world import World as World
    from drimed.errors import AccessError as AccessError
    from drimed.errors import BatchError as BatchError
    from drimed.errors import ConfigError as ConfigError
    from drimed.errors import ConflictError as ConflictError
    from drimed.errors import DrimedError as DrimedError
    from drimed.errors import InputError as InputError
    from drimed.errors import MissingExtraError as MissingExtraError
    from drimed.errors import NumericalError as NumericalError
    from drimed.errors import ServiceError as ServiceError
    from drimed.errors import ShapeError as ShapeError
    from drimed.errors import SpecError as SpecError
    from drimed.errors import StoreError as StoreError
    from drimed.errors import UnconfirmedError as UnconfirmedError
    from drimed.errors import UnknownNameError as UnknownNameError
    from drimed.evaluation import estimators as estimators
    from drimed.evaluation import target as _target
    from drimed.evaluation.evaluate import Plan as _Plan
    from drimed.evaluation.evaluate import evaluate as evaluate
    from drimed.evaluation.log import make_log as make_log
    from drimed.evaluation.readers import read as _read
    from drimed.experiments.simulate import RunRecord as RunRecord
    from drimed.experiments.simulate import simulate as simulate
    from drimed.guards.constraint import Guardrail as Guardrail
    from drimed.guards.decision import Decision as Decision
    from drimed.guards.decision import Guarded as Guarded
    from drimed.guards.guard import AskRule as AskRule
    from drimed.guards.guard import Guard as Guard
    from drimed.guards.margin import Tolerance as Tolerance
    from drimed.learning.learner import Learner as Learner
    from drimed.learning.offer import Fit as Fit
    from drimed.learning.offer import Offer as Offer
    from drimed.learning.offer import Outcome as Outcome
    from drimed.learning.offer import Shape as Shape
    from drimed.learning.offer import make_offer as make_offer
    from drimed.policies.composing import check_policy as check_policy
    from drimed.policies.policy import AnyPolicy as AnyPolicy
    from drimed.policies.policy import Policy as Policy
    from drimed.policies.registry import REGISTRY as REGISTRY
    from drimed.policies.registry import make as make
    from drimed.policies.registry import register as register
    from drimed.records import Report as Report
    from drimed.rules.rule import Ask as Ask
    from drimed.rules.rule import Rule as Rule
    from drimed.trial.spec import TrialSpec as TrialSpec
    from drimed.trial.stores import open_store as open_store
    from drimed.trial.stores.memory import MemoryStore as MemoryStore
    from drimed.trial.trial import Trial as Trial
    from drimed.trial.verify import verify as verify

    targets = _target
    EvaluationPlan = _Plan
    read_log = _read
    __version__: str
else:

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "__version__":
            value: Any = import_module("importlib.metadata").version("drimed")
        elif name in _HOMES:
            home, inside = _HOMES[name]
            try:
                module = import_module(f"drimed.{home.removesuffix(':')}")
            except ModuleNotFoundError as error:
                part, missing = home.partition(".")[0], str(error.name)
                if part not in _EXTRAS or missing.startswith("drimed"):
                    raise
                from drimed.errors import MissingExtraError

                raise MissingExtraError(missing, part) from error
            value = module if home.endswith(":") else getattr(module, inside)
        else:
            raise AttributeError(f"module 'drimed' has no attribute {name!r}; the public names are in drimed.__all__")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
