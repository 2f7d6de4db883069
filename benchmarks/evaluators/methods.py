"""The methods: a search for each task, made by a function, since some take their shape from the task."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.evaluators.ros import ROS
from benchmarks.evaluators.tasks import Task
from bpsearch import BPG, Search, TabularMDP
from bpsearch.evaluate import METHODS as LIBRARY
from bpsearch.evaluate import search_for
from bpsearch.policies.mlp import Adapt


@dataclass(frozen=True)
class Method:
    """A way to evaluate a policy.

    Attributes:
        title: for tables.
        search: makes the search for a task; gives None where the method cannot be used.
        biased: whether the estimate is biased, whatever its error is.
        adapt: which parameters of a network the search may change.
        every_episode: whether the behavior may change after every episode, rather than after every batch.
    """

    title: str
    search: Callable[[Task], Search | None]
    biased: bool = False
    adapt: Adapt = "last"
    every_episode: bool = False


def of_library(name: str, task: Task) -> Search | None:
    """What `bps.evaluate(method=name)` runs."""
    needs_table = name in ("as", "dr-bpg")
    return None if needs_table and not isinstance(task.env, TabularMDP) else search_for(name, task.env)


def paper(factor: float, task: Task) -> Search:
    """The paper's algorithm with a constant step."""
    return BPG(factor * task.paper_step)


def ros(rate: float, task: Task) -> Search:
    """Robust on-policy sampling; networks, whose parameters serve all states at once, bear a hundredth of the rate."""
    return ROS(rate if isinstance(task.env, TabularMDP) else 0.01 * rate)


METHODS: dict[str, Method] = {
    # "auto" values all episodes anew at the end and is measured by `auto.py`, not by compiled trials.
    **{name: Method(name, partial(of_library, name)) for name in LIBRARY if name != "auto"},
    "paper-bpg": Method("paper's BPG, best step", partial(paper, 1.0), adapt="all"),
    "paper-bpg-x10": Method("paper's BPG, ten times that", partial(paper, 10.0), adapt="all"),
    "ros": Method("ROS (biased)", partial(ros, 1000.0), biased=True, every_episode=True),
    "ros-slow": Method("ROS, slow (biased)", partial(ros, 10.0), biased=True, every_episode=True),
}
