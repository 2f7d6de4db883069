"""The cases of the table of docs/agents.md: an agent, an environment, and a loop of the agent's own library."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

Loop = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Row:
    """A case: its agent and environment for us, and a function that runs it by its own library's means."""

    name: str
    make: Callable[[Path], tuple[Any, Any, Loop]]
    deterministic: bool = False


# Stable-Baselines3 and sb3-contrib


def sb3(
    algorithm: str,
    env: Any,
    folder: Path,
    *,
    steps: int,
    deterministic: bool = False,
    kind: str = "MlpPolicy",
    normalize: bool = False,
    as_file: bool = True,
    **settings: Any,
) -> tuple[Any, Any, Loop]:
    """Train, save, and evaluate by `evaluate_policy`."""
    import sb3_contrib
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    algorithm_class = getattr(stable_baselines3, algorithm, None) or getattr(sb3_contrib, algorithm)
    count = 1 if algorithm in ("DQN", "QRDQN", "TD3", "SAC", "TQC") else 8
    path, statistics = folder / "model.zip", folder / "vecnormalize.pkl"
    if not path.exists():
        envs: Any = make_vec_env(env, count, seed=0)
        envs = VecNormalize(envs) if normalize else envs
        model = algorithm_class(kind, envs, seed=0, device="cpu", **settings).learn(steps)
        model.save(path)
        if normalize:
            envs.save(str(statistics))
    model = algorithm_class.load(path, device="cpu")

    def loop(episodes: int) -> np.ndarray:
        home = "sb3_contrib.common.maskable" if algorithm == "MaskablePPO" else "stable_baselines3.common"
        evaluate_policy = import_module(f"{home}.evaluation").evaluate_policy
        places: Any = make_vec_env(env, 8, seed=1)
        if normalize:
            places = VecNormalize.load(str(statistics), places)
            places.training = places.norm_reward = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            returns, _ = evaluate_policy(
                model, places, n_eval_episodes=episodes, deterministic=deterministic, return_episode_rewards=True
            )
        places.close()
        return np.array(returns)

    return str(path) if as_file else model, env, loop


def hidden_velocities() -> Any:
    keep = np.array([1.0, 0.0, 1.0, 0.0], np.float32)
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.TransformObservation(env, lambda seen: seen * keep, env.observation_space)


def masked() -> Any:
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

    return gymnasium.wrappers.TimeLimit(InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10), 50)


def minigrid_pictures() -> Any:
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    return ImgObsWrapper(RGBImgPartialObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"), tile_size=6))


def minigrid_flat() -> Any:
    from minigrid.wrappers import ImgObsWrapper

    return gymnasium.wrappers.FlattenObservation(ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0")))


def breakout() -> Any:
    """As DQN's paper has it: 84 × 84 in gray, four frames; cut after 300 steps."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Breakout-v5", frameskip=1, max_episode_steps=1_200)
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(env), 4)


def limited(env_id: str, limit: int) -> Any:
    return gymnasium.make(env_id, max_episode_steps=limit)


# Others: a loop over one environment, as their users write it


def gymnasium_loop(env: Any, act: Callable[[Any], Any], reset: Callable[[], None] = lambda: None) -> Loop:
    def loop(episodes: int) -> np.ndarray:
        place = gymnasium.make(env) if isinstance(env, str) else env()
        returns = []
        for episode in range(episodes):
            observation, _ = place.reset(seed=10_000 + episode)
            reset()
            total, over = 0.0, False
            while not over:
                observation, reward, terminated, truncated, _ = place.step(act(observation))
                total, over = total + float(reward), terminated or truncated
            returns.append(total)
        return np.array(returns)

    return loop


def cleanrl(folder: Path) -> tuple[Any, Any, Loop]:
    import torch
    from torch.distributions import Categorical

    class Agent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.critic = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
            self.actor = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))

        def get_action_and_value(self, x: Any, action: Any = None) -> Any:
            probs = Categorical(logits=self.actor(x))
            if action is None:
                action = probs.sample()
            return action, probs.log_prob(action), probs.entropy(), self.critic(x)

    agent = Agent()
    with torch.no_grad():
        agent.actor[2].bias += torch.tensor([0.0, 0.1])

    def act(observation: Any) -> int:
        with torch.no_grad():
            return int(agent.get_action_and_value(torch.as_tensor(observation)[None])[0])

    return agent, "CartPole-v1", gymnasium_loop("CartPole-v1", act)


def torchrl(folder: Path) -> tuple[Any, Any, Loop]:
    import torch
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import OneHotCategorical, ProbabilisticActor

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    logits = TensorDictModule(network, in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=OneHotCategorical)

    def act(observation: Any) -> int:
        with torch.no_grad():
            seen = TensorDict({"observation": torch.as_tensor(observation)[None]}, batch_size=[1])
            return int(actor.get_dist(seen).sample().argmax())

    return actor, "CartPole-v1", gymnasium_loop("CartPole-v1", act)


def sklearn(folder: Path) -> tuple[Any, Any, Loop]:
    from sklearn.tree import DecisionTreeClassifier

    seen = np.random.default_rng(0).normal(size=(500, 4))
    model = DecisionTreeClassifier(max_depth=4, random_state=0).fit(seen, (seen[:, 2] + seen[:, 3] > 0.0).astype(int))
    return model, "CartPole-v1", gymnasium_loop("CartPole-v1", lambda x: int(model.predict(x[None])[0]))


class Balancer:
    """Goes left and right in turn, and to where the pole falls: it remembers its last action."""

    def reset(self) -> None:
        """Before the first step of an episode."""
        self.last = 0

    def __call__(self, observation: Any) -> int:
        """Left or right."""
        self.last = 1 - self.last if abs(observation[2]) < 0.05 else int(observation[2] > 0.0)
        return self.last


def stateful(folder: Path) -> tuple[Any, Any, Loop]:
    own = Balancer()
    return Balancer(), "CartPole-v1", gymnasium_loop("CartPole-v1", own, own.reset)


def flax_in_gymnax(folder: Path) -> tuple[Any, Any, Loop]:
    import gymnax
    import jax
    import jax.numpy as jnp
    from flax import linen

    class Actor(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.Dense(2)(linen.tanh(linen.Dense(32)(x)))

    module = Actor()
    variables = module.init(jax.random.key(1), jnp.zeros(4))
    env, params = gymnax.make("CartPole-v1")

    def episode(key: Any) -> Any:
        key, start = jax.random.split(key)
        observation, state = env.reset(start, params)

        def step(carry: Any, key: Any) -> Any:
            observation, state, running = carry
            act, move = jax.random.split(key)
            action = jax.random.categorical(act, module.apply(variables, observation))
            observation, state, reward, done, _ = env.step(move, state, action, params)
            return (observation, state, running & ~done), jnp.where(running, reward, 0.0)

        keys = jax.random.split(key, params.max_steps_in_episode)
        return jax.lax.scan(step, (observation, state, jnp.bool_(True)), keys)[1].sum()

    run = jax.jit(jax.vmap(episode))

    def loop(episodes: int) -> np.ndarray:
        return np.asarray(run(jax.random.split(jax.random.key(7), episodes)))

    return (module, variables), "gymnax:CartPole-v1", loop


def equinox_in_gymnasium(folder: Path) -> tuple[Any, Any, Loop]:
    import equinox
    import jax

    module = equinox.nn.MLP(4, 2, 32, 1, key=jax.random.key(2))
    compiled = equinox.filter_jit(module)
    draw = np.random.default_rng(0)

    def act(observation: Any) -> int:
        logits = np.asarray(compiled(observation), np.float64)
        probabilities = np.exp(logits - logits.max())
        return int(draw.random() >= probabilities[0] / probabilities.sum())

    return module, "CartPole-v1", gymnasium_loop("CartPole-v1", act)


def ppo(env: Any, steps: int, name: str = "", **settings: Any) -> Row:
    shown = name or f"SB3 PPO, {env}"
    return Row(shown, partial(_late, partial(sb3, "PPO", env, steps=steps, **settings)))


def _late(make: Callable[..., Any], folder: Path) -> Any:
    return make(folder)


def contrib(algorithm: str, env: Any, name: str, *, steps: int, deterministic: bool = False, **settings: Any) -> Row:
    make = partial(sb3, algorithm, env, steps=steps, deterministic=deterministic, **settings)
    return Row(name, partial(_late, make), deterministic)


SMALL: dict[str, Any] = {"n_steps": 256, "batch_size": 256}
ROWS = (
    ppo("CartPole-v1", 4_000, **SMALL),
    contrib("PPO", "CartPole-v1", "SB3 PPO, CartPole-v1, deterministic", steps=4_000, deterministic=True, **SMALL),
    ppo("Acrobot-v1", 8_000, **SMALL),
    ppo("Pendulum-v1", 8_000, "SB3 PPO under VecNormalize, Pendulum-v1", normalize=True, **SMALL),
    contrib(
        "A2C",
        "Pendulum-v1",
        "SB3 A2C with use_sde, deterministic, Pendulum-v1",
        steps=8_000,
        deterministic=True,
        use_sde=True,
    ),
    contrib("SAC", "Pendulum-v1", "SB3 SAC, Pendulum-v1", steps=800),
    contrib("TD3", "Pendulum-v1", "SB3 TD3, Pendulum-v1", steps=800, deterministic=True),
    contrib("DQN", "CartPole-v1", "SB3 DQN, CartPole-v1", steps=3_000, deterministic=True, learning_starts=500),
    ppo(minigrid_pictures, 1_024, "SB3 PPO with a CNN, MiniGrid-Empty-5x5 (pictures)", kind="CnnPolicy", n_steps=128),
    ppo(minigrid_flat, 4_000, "SB3 PPO, MiniGrid-Empty-5x5", **SMALL),
    ppo(breakout, 1_024, "SB3 PPO with a CNN, ALE/Breakout-v5", kind="CnnPolicy", n_steps=128, n_epochs=4),
    ppo("LunarLander-v3", 6_000, **SMALL),
    ppo("InvertedPendulum-v5", 4_000, **SMALL),
    ppo("Reacher-v5", 4_000, **SMALL),
    ppo("Hopper-v5", 6_000, **SMALL),
    ppo("Taxi-v4", 4_000, **SMALL),
    ppo("FrozenLake-v1", 6_000, **SMALL),
    ppo(partial(limited, "CliffWalking-v1", 200), 4_000, "SB3 PPO, CliffWalking-v1 with 200 steps", **SMALL),
    contrib("TRPO", "CartPole-v1", "sb3-contrib TRPO, CartPole-v1", steps=4_096, n_steps=256),
    contrib(
        "QRDQN", "CartPole-v1", "sb3-contrib QRDQN, CartPole-v1", steps=3_000, deterministic=True, learning_starts=500
    ),
    contrib(
        "RecurrentPPO",
        hidden_velocities,
        "sb3-contrib RecurrentPPO, CartPole-v1 without velocities",
        steps=4_096,
        kind="MlpLstmPolicy",
        n_steps=128,
        policy_kwargs={"lstm_hidden_size": 32},
    ),
    contrib("MaskablePPO", masked, "sb3-contrib MaskablePPO, masked actions", steps=4_000, **SMALL),
    Row("CleanRL PPO agent, CartPole-v1", cleanrl),
    Row("TorchRL ProbabilisticActor, CartPole-v1", torchrl),
    Row("Flax module, gymnax CartPole-v1", flax_in_gymnax),
    Row("Equinox module, CartPole-v1", equinox_in_gymnasium),
    Row("scikit-learn tree, CartPole-v1", sklearn),
    Row("object with reset(), CartPole-v1", stateful),
    ppo("HalfCheetah-v5", 2_048, **SMALL),
)
