"""Methods by name: each is a search and a valuation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bpsearch._core.arrays import Proxy
from bpsearch._core.checks import check_integer, check_type, quote
from bpsearch._core.plugins import find_plugin
from bpsearch.control_variates import Scores, Starts, StartStates, TabularAdvantages, TabularModel
from bpsearch.control_variates.choice import can_choose, can_model
from bpsearch.control_variates.scores import MAX_PARAMETERS
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.tabular import TabularMDP
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimators import advantage_sum, doubly_robust, importance_sampling, per_decision
from bpsearch.inference.choosing import ChoosingValuation
from bpsearch.inference.failures import EventValuation, FailureValuation
from bpsearch.inference.systematic import SystematicValuation
from bpsearch.inference.valuation import Valuation
from bpsearch.policies.base import Policy
from bpsearch.search.adaptive import AdaptiveBPG
from bpsearch.search.base import Search
from bpsearch.search.closed_form import ClosedForm
from bpsearch.search.imitation import can_imitate
from bpsearch.search.levels import Levels
from bpsearch.search.levels_starts import LevelsStarts
from bpsearch.search.may_move import MayMove
from bpsearch.search.on_policy import OnPolicy
from bpsearch.search.starts import StartSearch
from bpsearch.search.systematic import SystematicStarts
from bpsearch.search.table_failures import TableFailures

AnySearch = Search[Any]


@dataclass(frozen=True)
class Method:
    """Who acts, and how the episodes are valued.

    Attributes:
        search: chooses behaviors.
        valuation: values episodes.
        batch_size: episodes between two steps of the search.
        name: what results call it.
        lag: of `Study.run`, how many of the last batches a behavior knows nothing of. With 1, workers run the next
            batch while the search learns from the one before. It changes the numbers, and biases nothing.
    """

    search: AnySearch
    valuation: Valuation
    batch_size: int = 100
    name: str = ""
    lag: int = 0

    def __post_init__(self) -> None:
        check_type("search", self.search, Search, "a Search")
        check_type("valuation", self.valuation, Valuation, "a Valuation")
        check_integer("batch_size", self.batch_size)
        check_integer("lag", self.lag, at_least=0)
        if not self.name:
            parts = (type(self.search).__name__, self.valuation.estimator.name)
            object.__setattr__(self, "name", ", ".join(parts))

    @classmethod
    def of_search(cls, search: AnySearch) -> "Method":
        """A search with the estimator that its behaviors are made for."""
        valuation = EventValuation if search.for_events else Valuation
        return cls(search, valuation(search.estimator, getattr(search, "model", None)))


def _auto(env: CompiledEnv | None) -> Method:
    return Method(
        OnPolicy(), Valuation(control_variates=(Scores(), TabularAdvantages(), Starts(), StartStates())), name="auto"
    )


def for_policy(method: Method, policy: Policy) -> Method:
    """`auto` and `failures` as they serve this policy; other methods as they are.

    Where another behavior may show far more, `auto` may move. Without a table that can be modeled `failures` are levels
    that no closed form takes over.
    """
    if method.name == "auto" and can_choose(policy):
        valuation = ChoosingValuation(control_variates=method.valuation.control_variates)
        return replace(method, search=MayMove(), valuation=valuation)
    if isinstance(method.search, TableFailures) and not can_model(policy):
        return replace(method, search=method.search.levels, valuation=FailureValuation(importance_sampling))
    return method


def for_event(policy: Policy, graded: bool) -> str:
    """What `auto` is for an event; `graded` if it is known how near an episode came."""
    if graded and can_imitate(policy):
        return "failures"
    return "bpg" if len(policy.flat) <= MAX_PARAMETERS else "auto"  # whose result says what is too large


def _monte_carlo(env: CompiledEnv | None) -> Method:
    return Method(OnPolicy(), Valuation(), name="mc")


def _bpg(env: CompiledEnv | None) -> Method:
    return Method(AdaptiveBPG(), Valuation(importance_sampling), name="bpg")


def _levels(env: CompiledEnv | None) -> Method:
    return Method(Levels(), EventValuation(importance_sampling), name="levels")


def _levels_starts(env: CompiledEnv | None) -> Method:
    return Method(LevelsStarts(), EventValuation(importance_sampling), name="levels-starts")


def _failures(env: CompiledEnv | None) -> Method:
    search = TableFailures()
    return Method(search, FailureValuation(search.estimator, search.model), name="failures")


def _pdis_bpg(env: CompiledEnv | None) -> Method:
    return Method(AdaptiveBPG(per_decision), Valuation(per_decision), name="pdis-bpg")


def _advantage_sum(env: CompiledEnv | None) -> Method:
    return Method(OnPolicy(), Valuation(advantage_sum, _model("as", env)), name="as")


def _dr_bpg(env: CompiledEnv | None) -> Method:
    model = _model("dr-bpg", env)
    return Method(AdaptiveBPG(doubly_robust, model), Valuation(doubly_robust, model), name="dr-bpg")


def _closed_form(env: CompiledEnv | None) -> Method:
    return replace(Method.of_search(ClosedForm()), name="closed-form")


def _starts(env: CompiledEnv | None) -> Method:
    return Method(StartSearch(), Valuation(importance_sampling), name="starts")


def _systematic(env: CompiledEnv | None) -> Method:
    controls = _auto(env).valuation.control_variates
    return Method(SystematicStarts(), SystematicValuation(control_variates=controls), name="systematic")


def _model(name: str, env: CompiledEnv | None) -> TabularModel:
    if not isinstance(env, TabularMDP):
        raise InvalidArgumentError(f"method {name!r} learns a tabular model and needs a TabularMDP, got {env}")
    return TabularModel.like(env)


METHODS: dict[str, Callable[[CompiledEnv | None], Method]] = {
    "auto": _auto,
    "mc": _monte_carlo,
    "bpg": _bpg,
    "levels": _levels,
    "levels-starts": _levels_starts,
    "failures": _failures,
    "starts": _starts,
    "systematic": _systematic,
    "pdis-bpg": _pdis_bpg,
    "closed-form": _closed_form,
    "as": _advantage_sum,
    "dr-bpg": _dr_bpg,
}


def with_proxy(method: Method, proxy: Proxy) -> Method:
    """The method with further control variates that also learn from a function of starts.

    Those without it stay: a function that says nothing would only blur what they see.
    """
    controls = method.valuation.control_variates
    further = tuple(new for old, new in ((c, c.with_proxy(proxy)) for c in controls) if new is not old)
    if not further:
        raise InvalidArgumentError(
            f"proxy is for a method that learns from starts, such as 'auto' for an expected return, got one with the "
            f"method {method.name!r}; leave it out, or give another method"
        )
    return replace(method, valuation=replace(method.valuation, control_variates=(*controls, *further)))


def find_method(method: "str | Method | AnySearch", env: CompiledEnv | None = None) -> Method:
    """The method that is meant: itself, one by its name, or a search with the estimator that it serves.

    Args:
        method: a `Method`; a `Search`; one of the names of `METHODS`, or that of an entry point of the group
            "bpsearch.methods", a function of the environment that gives a method or a search.
        env: the compiled environment, if there is one: a method with a tabular model needs to know its size.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, Search):
        return Method.of_search(method)
    if isinstance(method, str):
        factory = METHODS.get(method) or find_plugin("bpsearch.methods", method)
        if factory is not None:
            return replace(find_method(factory(env), env), name=method)
    raise InvalidArgumentError(f"method must be one of {', '.join(METHODS)}, a Method or a Search, got {quote(method)}")
