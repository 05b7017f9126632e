# The public interface. Type checkers read it, and `__init__.py` looks up in it where a name is: a line is
# `from module import name as name`, or, where the public name is another, `name = _name`.

from drimed import records as records
from drimed.client import AsyncClient as AsyncClient
from drimed.client import Client as Client
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
from drimed.models.linear_regression import Learner as Learner
from drimed.models.offer import Fit as Fit
from drimed.models.offer import Offer as Offer
from drimed.models.offer import Outcome as Outcome
from drimed.models.offer import Shape as Shape
from drimed.models.offer import make_offer as make_offer
from drimed.policies.guards.base import AskRule as AskRule
from drimed.policies.guards.base import Draw as Draw
from drimed.policies.guards.base import Guard as Guard
from drimed.policies.guards.base import Guarded as Guarded
from drimed.policies.guards.base import Guardrail as Guardrail
from drimed.policies.guards.margin import Tolerance as Tolerance
from drimed.policies.policy import Policy as Policy
from drimed.policies.protocol import AnyPolicy as AnyPolicy
from drimed.policies.protocol import check_policy as check_policy
from drimed.policies.registry import REGISTRY as REGISTRY
from drimed.policies.registry import make as make
from drimed.policies.registry import register as register
from drimed.policies.rules.base import Ask as Ask
from drimed.policies.rules.base import Rule as Rule
from drimed.records import Decision as Decision
from drimed.records import Report as Report
from drimed.rehearsal.forecast import forecast as forecast
from drimed.simulation.instances import Instance as Instance
from drimed.simulation.instances import authors_instance as authors_instance
from drimed.simulation.instances import draw_instance as draw_instance
from drimed.simulation.instances import given_control as given_control
from drimed.simulation.instances import quantile_control as quantile_control
from drimed.simulation.runner import RunRecord as RunRecord
from drimed.simulation.runner import simulate as simulate
from drimed.simulation.worlds import Setting as Setting
from drimed.simulation.worlds import World as World
from drimed.trial.spec import TrialSpec as TrialSpec
from drimed.trial.store import MemoryStore as MemoryStore
from drimed.trial.store import open_store as open_store
from drimed.trial.trial import Trial as Trial
from drimed.trial.verify import verify as verify

__version__: str
__all__: list[str]
