"""The tasks: an environment with an evaluation policy each, from easy to hopeless for a behavior search."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

import bpsearch as bps
from bpsearch.envs.gridworlds import UP

DATA = Path(__file__).parent / "data"
REFERENCES = DATA / "references.json"


@dataclass(frozen=True, eq=False)
class Task:
    """An evaluation problem.

    Attributes:
        name: unique, for files and options.
        title: for tables.
        env: where.
        policy: the evaluation policy; of a network the searches change the last layer unless a method says otherwise.
        paper_step: the constant step, a power of ten, that serves the paper's algorithm best on this task after 3,000
            episodes; found by a sweep on the task itself (`sweep.py`), so it is better than any user could know.
    """

    name: str
    title: str
    env: bps.envs.CompiledEnv
    policy: bps.Policy
    paper_step: float


@dataclass(frozen=True)
class Reference:
    """What is known about a task, exactly on tables and from a long run elsewhere.

    Attributes:
        value: ρ.
        std_error: of the value; 0 if it is exact.
        variance: of one episode's return, Monte Carlo's variance.
        episodes: how many episodes the run had; 0 if the numbers are exact.
        optimum: variance of importance sampling with the best stationary softmax behavior, relative to Monte Carlo's;
            None where no oracle knows it.
        environment_share: what remains of Monte Carlo's variance with the perfect control variate q: the part that the
            environment's own randomness makes, relative to the whole; None where no oracle knows it.
        best: the same with the best behavior of all, which depends on time: no doubly robust estimator has less
            variance, with any model and any behavior; None where no oracle knows it.
        command: what made the numbers.
    """

    value: float
    std_error: float
    variance: float
    episodes: int
    optimum: float | None
    environment_share: float | None
    best: float | None
    command: str

    @property
    def truth(self) -> dict[str, float]:
        """What `measure.cell` judges by."""
        return {"truth": self.value, "truth_error": self.std_error, "variance": self.variance}


def gridworld_stage(stage: str, title: str, paper_step: float) -> Task:
    shipped = {"early": "gridworld-early", "converged": "gridworld-converged"}
    policy = (
        bps.shipped_policy(shipped[stage]) if stage in shipped else bps.load_policy(DATA / f"gridworld-{stage}.npz")
    )
    return Task(f"gridworld-{stage}", title, bps.envs.gridworld(), policy, paper_step)


def stochastic_stage(stage: str, title: str, paper_step: float) -> Task:
    policy = bps.load_policy(DATA / f"stochastic-{stage}.npz")
    return Task(f"stochastic-{stage}", title, bps.envs.stochastic_gridworld(), policy, paper_step)


def rare_event(probability: float, paper_step: float) -> Task:
    policy = bps.shipped_policy("gridworld-early").with_probability(0, UP, probability)
    name, title = f"rare-{probability:g}", f"rare event, p = {probability:g}"
    return Task(name, title, bps.envs.rare_event_gridworld(), policy, paper_step)


def random_task(seed: int, concentration: float, paper_step: float) -> Task:
    """Transitions from a Dirichlet distribution: a small concentration makes the MDP nearly deterministic."""
    states, actions, horizon = 10, 3, 20
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.full(states, concentration), size=(states, actions))
    terminal = np.arange(states) == states - 1
    initial = np.where(terminal, 0.0, rng.uniform(0.2, 1.0, states))
    rewards = rng.normal(size=transitions.shape)
    env = bps.TabularMDP(transitions, rewards, initial / initial.sum(), terminal, horizon)
    policy = bps.SoftmaxTable(rng.normal(size=(states, actions)))
    return Task(f"random-{seed}", f"random MDP {seed}, Dirichlet({concentration:g})", env, policy, paper_step)


def simulation(name: str, title: str, make: Callable[[], bps.envs.CompiledEnv], paper_step: float) -> Task:
    """One of the paper's continuous tasks with the policy shipped for it."""
    return Task(name, title, make(), bps.shipped_policy(name), paper_step)


def agent(env_id: str, stage: str, paper_step: float) -> Task:
    """A PPO agent, stopped early ("half") or not ("trained")."""
    make = {
        "CartPole-v1": bps.envs.classic_cartpole,
        "Acrobot-v1": bps.envs.classic_acrobot,
        "Pendulum-v1": bps.envs.pendulum,
    }[env_id]
    name = f"{env_id.lower()}-{stage}"
    title = f"{env_id}, PPO {'half-trained' if stage == 'half' else stage}"
    return Task(name, title, make(), bps.load_policy(DATA / f"{name}.npz"), paper_step)


TASKS: dict[str, Callable[[], Task]] = {
    "gridworld-early": partial(gridworld_stage, "early", "4x4, early", 1e-4),
    "gridworld-middle": partial(gridworld_stage, "middle", "4x4, middle", 1e-3),
    "gridworld-noisy": partial(gridworld_stage, "noisy", "4x4, camping, noisy", 1e-4),
    "gridworld-converged": partial(gridworld_stage, "converged", "4x4, camping, converged", 1e-4),
    "stochastic-early": partial(stochastic_stage, "early", "10x10, early", 1e-5),
    "stochastic-middle": partial(stochastic_stage, "middle", "10x10, middle", 1e-5),
    "stochastic-late": partial(stochastic_stage, "late", "10x10, late", 1e-4),
    "rare-0.3": partial(rare_event, 0.3, 1e-4),
    "rare-0.05": partial(rare_event, 0.05, 1e-4),
    "rare-0.005": partial(rare_event, 0.005, 1e-4),
    "random-0": partial(random_task, 0, 0.03, 1e-2),
    "random-1": partial(random_task, 1, 0.3, 1e-2),
    "random-2": partial(random_task, 2, 3.0, 1e-3),
    "cartpole-swingup": partial(simulation, "cartpole-swingup", "cart-pole swing-up", bps.envs.cartpole_swingup, 1e-9),
    "acrobot": partial(simulation, "acrobot", "acrobot", bps.envs.acrobot, 1e-10),
    "cartpole-v1-half": partial(agent, "CartPole-v1", "half", 1e-7),
    "cartpole-v1-trained": partial(agent, "CartPole-v1", "trained", 1e-9),
    "acrobot-v1-half": partial(agent, "Acrobot-v1", "half", 1e-8),
    "acrobot-v1-trained": partial(agent, "Acrobot-v1", "trained", 1e-8),
    "pendulum-v1-half": partial(agent, "Pendulum-v1", "half", 1e-10),
    "pendulum-v1-trained": partial(agent, "Pendulum-v1", "trained", 1e-11),
}


@cache
def references() -> dict[str, Reference]:
    """What `references.py` has written, by task."""
    stored = json.loads(REFERENCES.read_text())
    return {name: Reference(**entry) for name, entry in stored.items()}
