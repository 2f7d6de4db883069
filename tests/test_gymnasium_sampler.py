"""The Gymnasium sampler: which episodes it runs, what it records, and what it refuses."""

import re
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import bpsearch as bps
from bpsearch.errors import (
    EpisodeCrashError,
    InvalidArgumentError,
    InvalidTrajectoriesError,
    NeverEndingError,
    SpaceMismatchError,
    UnknownProbabilitiesError,
)
from bpsearch.runners import ahead
from bpsearch.sampling import stepping
from toy_envs import Bad, Crashing, DictToy, Foreign, PaysAction, RandomLength, Toy
from worker_envs import Deadly

FIELDS = ("observations", "actions", "rewards", "log_probs", "mask", "final_observations")


class Linear(torch.nn.Module):
    """Logits or means linear in the observation, in 64 bit."""

    def __init__(self, inputs: int, outputs: int, gaussian: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs, generator=generator) * 0.3)
        self.gaussian = gaussian
        self.double()

    def forward(self, observations: torch.Tensor) -> torch.distributions.Distribution:
        output = observations @ self.weight.T
        if self.gaussian:
            return torch.distributions.Normal(output, torch.ones_like(output))
        return torch.distributions.Categorical(logits=output)


def coin() -> Any:
    return bps.from_torch(Linear(2, 2), Toy.observation_space, Toy.action_space)


def for_env(env_id: str) -> Any:
    with gymnasium.make(env_id) as env:
        gaussian = isinstance(env.action_space, gymnasium.spaces.Box)
        inputs, outputs = env.observation_space.shape[0], 1 if gaussian else int(env.action_space.n)
        return bps.from_torch(Linear(inputs, outputs, gaussian), env.observation_space, env.action_space)


def assert_same(one: bps.Trajectories, other: bps.Trajectories) -> None:
    for field in FIELDS:
        jax.tree_util.tree_map(np.testing.assert_array_equal, getattr(one, field), getattr(other, field))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_episodes_do_not_depend_on_the_number_of_environments(env_id: str) -> None:
    policy = for_env(env_id)
    alone = bps.sample(env_id, policy, 20, seed=3, num_envs=1, horizon=70)
    for num_envs in (3, 8, 17):
        assert_same(alone, bps.sample(env_id, policy, 20, seed=3, num_envs=num_envs, horizon=70))
    # An episode is a function of its number: a smaller batch is the beginning of a larger one.
    fewer = bps.sample(env_id, policy, 5, seed=3, horizon=70)
    np.testing.assert_array_equal(fewer.rewards.sum(axis=1), alone.rewards[:5].sum(axis=1))


def test_episodes_do_not_depend_on_processes() -> None:
    policy = for_env("CartPole-v1")
    with bps.GymnasiumSampler("CartPole-v1", num_envs=2, vectorization="async") as sampler:
        for batch in (0, 1):
            assert_same(
                bps.sample(sampler, policy, 7, seed=3, batch=batch),
                bps.sample("CartPole-v1", policy, 7, seed=3, batch=batch, num_envs=3),
            )


def test_seeds_and_batches_do_not_share_streams() -> None:
    starts = [
        bps.sample("CartPole-v1", for_env("CartPole-v1"), 6, seed=seed, batch=batch, horizon=1).observations[:, 0, 0]
        for seed in (0, 1)
        for batch in (0, 1)
    ]
    assert len(np.unique(np.concatenate(starts))) == 24


@pytest.mark.parametrize("env", [RandomLength, DictToy])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_autoreset_modes_agree(mode: AutoresetMode, env: Any) -> None:
    policy = coin() if env is RandomLength else dict_policy()
    with closing(SyncVectorEnv([env] * 3, autoreset_mode=mode)) as envs:
        given = bps.sample(envs, policy, 11, seed=1, horizon=80)
    assert_same(given, bps.sample(env, policy, 11, seed=1, horizon=80))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vector_environments_that_are_reset_only_as_a_whole(mode: AutoresetMode) -> None:
    envs = Foreign(SyncVectorEnv([RandomLength] * 3, autoreset_mode=mode))
    assert_same(bps.sample(envs, coin(), 8, seed=1), bps.sample(RandomLength, coin(), 8, seed=1))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_workers_without_shared_memory(mode: AutoresetMode) -> None:
    with closing(AsyncVectorEnv([RandomLength] * 2, False, context="spawn", autoreset_mode=mode)) as envs:
        if mode == AutoresetMode.NEXT_STEP:
            with pytest.raises(InvalidArgumentError, match="shared_memory=True"):
                bps.sample(envs, coin(), 5, seed=1)
        else:
            assert_same(bps.sample(envs, coin(), 5, seed=1), bps.sample(RandomLength, coin(), 5, seed=1))


def test_a_vector_environment_without_seeds_per_environment_warns() -> None:
    with (
        closing(gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")) as envs,
        pytest.warns(UserWarning, match="give the environment's id or a factory"),
    ):
        assert len(bps.sample(envs, for_env("CartPole-v1"), 4)) == 4


def test_short_episodes_are_not_preferred() -> None:
    """Mean length 50 and standard deviation 28.6: 4.5 standard errors, a false alarm once in 150,000 seeds."""
    lengths = bps.sample(RandomLength, coin(), 400, seed=0, num_envs=16).lengths
    assert abs(lengths.mean() - 50.0) < 4.5 * 28.6 / np.sqrt(400)
    assert len(lengths) == 400


def test_return_up_to_the_horizon() -> None:
    batch = bps.sample(RandomLength, coin(), 40, seed=0, horizon=20)
    whole = bps.sample(RandomLength, coin(), 40, seed=0)
    assert batch.mask.shape == (40, 20)
    np.testing.assert_array_equal(batch.lengths, np.minimum(whole.lengths, 20))
    np.testing.assert_array_equal(batch.returns(), batch.lengths)
    np.testing.assert_array_equal(batch.final_observations[:, 0], batch.lengths)
    assert whole.mask.shape[1] == 128  # a power of two: few shapes to compile for


def test_raw_actions_are_recorded_and_clipped_ones_executed() -> None:
    policy = bps.from_torch(Linear(2, 1, gaussian=True), PaysAction.observation_space, PaysAction.action_space)
    batch = bps.sample(PaysAction, policy, 50, seed=0)
    raw = batch.actions[..., 0][batch.mask]
    assert (np.abs(raw) > 0.5).any()
    np.testing.assert_array_equal(batch.rewards[batch.mask], np.clip(raw, -0.5, 0.5))
    np.testing.assert_allclose(
        batch.log_probs[batch.mask], policy.log_prob(batch.observations, batch.actions)[batch.mask], atol=1e-6
    )


class DictModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.position, self.mode = torch.nn.Linear(3, 5), torch.nn.Embedding(4, 5)
        self.double()

    def forward(self, observations: dict[str, torch.Tensor]) -> list[torch.distributions.Distribution]:
        logits = self.position(observations["position"]) + self.mode(observations["mode"])
        return [torch.distributions.Categorical(logits=part) for part in logits.split([2, 3], dim=-1)]


def dict_policy() -> Any:
    return bps.from_torch(DictModule(), DictToy.observation_space, DictToy.action_space)


def test_dict_observations_and_multi_discrete_actions() -> None:
    policy = dict_policy()
    batch = bps.sample(DictToy, policy, 30, seed=0, num_envs=4)
    assert batch.observations["position"].shape == (30, 8, 3)
    assert batch.observations["mode"].shape == (30, 8)
    np.testing.assert_array_equal(batch.rewards, batch.actions[..., 0] + 10 * batch.actions[..., 1])
    again = policy.log_prob(batch.observations, batch.actions)
    np.testing.assert_allclose(batch.log_probs, np.where(batch.mask, again, 0.0), atol=1e-6)
    both = bps.Trajectories.concatenate([batch, bps.sample(partial(DictToy, length=9), policy, 5)])
    assert both.observations["position"].shape == (35, 16, 3)
    search = bps.BPG(1e-6)
    _, info = search.step(search.init(policy), batch)
    np.testing.assert_allclose(info.values, batch.returns(), rtol=1e-4)


def test_tables_through_gymnasium_agree_with_the_oracle() -> None:
    """Four standard errors: a false alarm once in 16,000 seeds."""
    mdp, policy = bps.envs.gridworld(), bps.SoftmaxTable.uniform(16, 4)
    returns = bps.sample("bpsearch/Gridworld-v0", policy, 24, seed=0).returns()
    exact = bps.oracle.value(mdp, policy)
    assert abs(returns.mean() - exact) < 4 * returns.std(ddof=1) / np.sqrt(len(returns))
    assert_same(
        bps.sample("bpsearch/Gridworld-v0", policy, 4, seed=0, num_envs=1, horizon=30),
        bps.sample("bpsearch/Gridworld-v0", policy, 4, seed=0, num_envs=3, horizon=30),
    )


def test_compiled_environments_run_policies_that_cannot_be_traced() -> None:
    mdp = bps.envs.gridworld()
    policy = bps.FunctionPolicy(lambda state: 1, (mdp.observation_space, mdp.action_space))
    batch = bps.sample(mdp, policy, 2, horizon=3)
    np.testing.assert_array_equal(batch.observations[:, :3], [[0, 4, 8]] * 2)
    table = bps.sample(mdp, bps.SoftmaxTable.uniform(16, 4), 2, horizon=3)
    assert table.mask.shape == (2, 3)


@pytest.mark.parametrize("what", ["reward", "observation"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_named(what: str, value: float) -> None:
    with pytest.raises(InvalidTrajectoriesError, match=rf"{what} of episode \d, step 2 is .*{value}"):
        bps.sample(partial(Bad, what, value), coin(), 4)


def test_a_crashed_episode_is_replayed_with_the_same_seed() -> None:
    budget = [1]
    replayed = bps.sample(partial(Crashing, budget), coin(), 30, seed=0)
    assert budget == [0]
    assert_same(replayed, bps.sample(partial(Crashing, [0]), coin(), 30, seed=0))
    budget[0] = 1
    with closing(SyncVectorEnv([partial(Crashing, budget)] * 3)) as envs:
        assert_same(replayed, bps.sample(envs, coin(), 30, seed=0))
    assert budget == [0]


def test_an_episode_that_crashes_again_is_named() -> None:
    starts = bps.sample(Toy, coin(), 30, seed=0, horizon=1).observations[:, 0, 1]
    first = int(np.argmax(starts > 0.8))
    with pytest.raises(EpisodeCrashError, match=rf"in episode {first} of batch 0 .*the simulator broke down") as error:
        bps.sample(partial(Crashing, [1000]), coin(), 30, seed=0, num_envs=1)
    assert isinstance(error.value.__cause__, RuntimeError)
    with (
        closing(SyncVectorEnv([partial(Crashing, [1000])] * 3)) as envs,
        pytest.raises(EpisodeCrashError, match=rf"\b{first}\b"),
    ):
        bps.sample(envs, coin(), 30, seed=0)


def test_functions_are_for_monte_carlo_only() -> None:
    policy = bps.FunctionPolicy(lambda observation: int(observation[0] > 2), (Toy.observation_space, Toy.action_space))
    batch = bps.sample(Toy, policy, 5)
    np.testing.assert_array_equal(batch.actions[:, :5], [[0, 0, 0, 1, 1]] * 5)
    valuation = bps.Valuation()
    np.testing.assert_array_equal(valuation.value(valuation.init(policy), batch).values, np.full(5, 5.0))
    with pytest.raises(UnknownProbabilitiesError, match="by Monte Carlo"):
        bps.BPG(0.1).init(policy)


def test_arguments_are_checked() -> None:
    policy = for_env("CartPole-v1")
    for match, env, options in (
        ("cannot make the environment 'Nowhere-v0'", "Nowhere-v0", {}),
        ("env must be an environment's id", 3, {}),
        ("env_kwargs belong to an environment's id", Toy, {"env_kwargs": {"length": 3}}),
        ("num_envs must be 1", Toy(), {"num_envs": 2}),
        ("vectorization must be 'sync' or 'async'", Toy, {"vectorization": "parallel"}),
        ("horizon must be a whole number", Toy, {"horizon": 0}),
        ("episodes must be a whole number", Toy, {"episodes": 0}),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            bps.sample(env, policy, **options)  # type: ignore[arg-type]
    with pytest.raises(SpaceMismatchError, match="observation spaces differ"):
        bps.sample("Pendulum-v1", policy)
    with pytest.raises(InvalidArgumentError, match="num_envs has no meaning for a compiled environment"):
        bps.sample(bps.envs.gridworld(), bps.SoftmaxTable.uniform(16, 4), num_envs=2)


def test_a_single_environment_and_keyword_arguments() -> None:
    batch = bps.sample(Toy(3), coin(), 4)
    np.testing.assert_array_equal(batch.lengths, 3)
    pendulum = bps.sample("Pendulum-v1", for_env("Pendulum-v1"), 2, env_kwargs={"g": 0.0}, horizon=5)
    assert pendulum.mask.all()


def test_an_episode_without_an_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "LONGEST", 1000)
    with pytest.raises(NeverEndingError, match=r"episode \d of batch 0 \(seed 4\) has not ended after 1000 steps"):
        bps.sample(partial(Toy, 10**9), coin(), 3, seed=4)
    assert bps.sample(partial(Toy, 1200), coin(), 1, horizon=1100).lengths == 1100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Calling `close`")  # how Gymnasium reports that an answer is still due
@pytest.mark.parametrize("how", ["segfault", "hang"])
def test_processes_that_end_or_hang_are_replaced(how: str, tmp_path: Path) -> None:
    env = partial(Deadly, how, str(tmp_path))
    options: Any = {"step_timeout": 10.0} if how == "hang" else {}
    with bps.GymnasiumSampler(partial(env, 1), num_envs=2, vectorization="async", **options) as sampler:
        survived = bps.sample(sampler, coin(), 8, seed=0)
    assert len(list(tmp_path.iterdir())) == 1
    assert_same(survived, bps.sample(partial(env, 0), coin(), 8, seed=0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Worker|.*Traceback|.*Raising the last")  # how Gymnasium reports a dead worker
def test_an_episode_that_crashes_in_another_process_is_named() -> None:
    starts = bps.sample(Toy, coin(), 12, seed=0, horizon=1).observations[:, 0, 1]
    with (
        bps.GymnasiumSampler(partial(Crashing, [1000]), num_envs=2, vectorization="async") as sampler,
        pytest.raises(EpisodeCrashError, match="the simulator broke down") as error,
    ):
        bps.sample(sampler, coin(), 12, seed=0)
    named = re.search(r"in episode (\d+) of batch 0", str(error.value))
    assert named is not None
    assert starts[int(named[1])] > 0.8


@pytest.mark.parametrize("kind", ["single", "dict", "vector"])
def test_batches_that_are_run_together_are_the_same_as_one_by_one(kind):
    env: Any = "CartPole-v1"
    policy = for_env("CartPole-v1")
    if kind == "dict":
        env = DictToy
        policy = bps.FunctionPolicy(lambda seen: np.array([1, 2]), (DictToy.observation_space, DictToy.action_space))
    elif kind == "vector":
        env = gymnasium.make_vec("CartPole-v1", 5, vectorization_mode="sync")
    with bps.GymnasiumSampler(env) as sampler:
        assert sampler.independent
        orders = [(0, range(7)), (1, range(3, 12)), (5, range(4))]
        together = sampler.sample_batches(policy, orders, seed=3, resets=2)
        for (batch, numbers), found in zip(orders, together, strict=True):
            alone = sampler.sample(policy, len(numbers), seed=3, batch=batch, first=numbers[0], resets=2)
            assert_same(found, alone)
            assert found.mask.shape == alone.mask.shape
            assert np.array_equal(found.seed, alone.seed)
            same = jax.tree_util.tree_map(np.array_equal, found.resets, alone.resets)
            assert all(jax.tree_util.tree_leaves(same))


class FailsLate(Toy):
    """Breaks its own space in one start of many."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        late = FailsLate.begun >= 250
        FailsLate.begun += 1
        return np.full_like(observation, np.nan) if late else observation, info


def test_a_batch_that_fails_does_not_take_those_before_it_along():
    """Run together or not, what is counted before the failure is the same."""
    counts = {}
    for most in (1, 8):
        FailsLate.begun = 0
        told = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ahead, "MOST", most)
            study = bps.Study(coin(), "mc", seed=0)
            with pytest.raises(InvalidTrajectoriesError, match="must be finite"):
                study.run(FailsLate, episodes=1000, on_batch=lambda study, info: told.append(study.episodes))  # noqa: B023
        counts[most] = told
    assert counts[1] == [100, 200]
    assert counts[8][:1] == [100]
