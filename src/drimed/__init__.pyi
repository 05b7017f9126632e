# The public interface. Type checkers read it, and `__init__.py` looks up in it where a name is: a line is
# `from module import name as name`, or, where the public name is another, `name = _name`.

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
from drimed.evaluation.decision_log import Columns as Columns
from drimed.evaluation.decision_log import make_log as make_log
from drimed.evaluation.decision_log import read_log as read_log
from drimed.evaluation.decision_log import write_log as write_log
from drimed.evaluation.off_policy import EvaluationPlan as EvaluationPlan
from drimed.evaluation.off_policy import TargetPolicy as TargetPolicy
from drimed.evaluation.off_policy import evaluate as evaluate
from drimed.experiments.simulate import RunRecord as RunRecord
from drimed.experiments.simulate import simulate as simulate
from drimed.guards.constraint import Guardrail as Guardrail
from drimed.guards.guard import AskRule as AskRule
from drimed.guards.guard import Draw as Draw
from drimed.guards.guard import Guard as Guard
from drimed.guards.guard import Guarded as Guarded
from drimed.guards.margin import Tolerance as Tolerance
from drimed.learning.learner import Learner as Learner
from drimed.learning.offer import Fit as Fit
from drimed.learning.offer import Offer as Offer
from drimed.learning.offer import Outcome as Outcome
from drimed.learning.offer import Shape as Shape
from drimed.learning.offer import make_offer as make_offer
from drimed.policies.contract import AnyPolicy as AnyPolicy
from drimed.policies.contract import check_policy as check_policy
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

__version__: str
__all__: list[str]
