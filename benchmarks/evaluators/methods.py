"""The methods: what is run on a task, made by a function, since some take their shape from the task."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.evaluators.ros import ROS
from benchmarks.evaluators.tasks import Task
from benchmarks.looks import program_of
from bpsearch import BPG, TabularMDP
from bpsearch.methods import Method as LibraryMethod
from bpsearch.methods import find_method, for_policy
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.trials import AnySearch
from bpsearch.policies.mlp import Adapt


@dataclass(frozen=True)
class Entry:
    """What is run on one task.

    Attributes:
        search: one program that runs many studies; Monte Carlo's if there is none.
        method: what `bps.evaluate` runs study by study if there is none; None else.
    """

    search: AnySearch
    method: LibraryMethod | None = None


@dataclass(frozen=True)
class Method:
    """A way to evaluate a policy.

    Attributes:
        title: for tables.
        enter: what is run on a task; gives None where the method cannot be used.
        biased: whether the estimate is biased, whatever its error is.
        adapt: which parameters of a network the search may change.
        every_episode: whether the behavior may change after every episode, rather than after every batch.
    """

    title: str
    enter: Callable[[Task], Entry | None]
    biased: bool = False
    adapt: Adapt = "last"
    every_episode: bool = False


def of_library(name: str, task: Task) -> Entry | None:
    """What `bps.evaluate(method=name)` runs."""
    needs_table = name in ("as", "dr-bpg", "closed-form")
    if needs_table and not isinstance(task.env, TabularMDP):
        return None
    method = for_policy(find_method(name, task.env), task.policy)
    program = program_of(method)
    return Entry(OnPolicyCurve(), method) if program is None else Entry(program)


def paper(factor: float, task: Task) -> Entry:
    """The paper's algorithm with a constant step."""
    return Entry(BPG(factor * task.paper_step))


def ros(rate: float, task: Task) -> Entry:
    """Robust on-policy sampling; networks, whose parameters serve all states at once, bear a hundredth of the rate."""
    return Entry(ROS(rate if isinstance(task.env, TabularMDP) else 0.01 * rate))


NAMES = ("auto", "mc", "bpg", "pdis-bpg", "as", "dr-bpg", "closed-form", "systematic")
METHODS: dict[str, Method] = {
    **{name: Method(name, partial(of_library, name)) for name in NAMES},
    "paper-bpg": Method("paper's BPG, best step", partial(paper, 1.0), adapt="all"),
    "paper-bpg-x10": Method("paper's BPG, ten times that", partial(paper, 10.0), adapt="all"),
    "ros": Method("ROS (biased)", partial(ros, 1000.0), biased=True, every_episode=True),
    "ros-slow": Method("ROS, slow (biased)", partial(ros, 10.0), biased=True, every_episode=True),
}
