"""Agents and environments of libraries that fewer people have: `make test-integrations` installs them all."""

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.envs.resolve import adapt
from bpsearch.policies.resolve import load
from bpsearch.runners import InProcess
from bpsearch.testing import check_runner

pytestmark = pytest.mark.integration
AGENTS = Path(__file__).parent / "agents"
VECTOR, TWO = gymnasium.make("CartPole-v1").observation_space, gymnasium.spaces.Discrete(2)


@pytest.mark.filterwarnings("ignore")  # gymnax mixes types, of which JAX warns
@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCar-v0", "Breakout-MinAtar", "FourRooms-misc"])
def test_more_environments_of_gymnax(name: str) -> None:
    gymnax = pytest.importorskip("gymnax")
    env: Any = adapt(f"gymnax:{name}")
    inner, params = gymnax.make(name)
    actions = env.action_space
    size = int(np.prod(env.observation_space.shape))
    outputs = int(actions.n) if isinstance(actions, gymnasium.spaces.Discrete) else 1

    def apply(weights: Any, observation: Any) -> Any:
        values = weights @ jnp.ravel(observation).astype(jnp.float32)
        return values if isinstance(actions, gymnasium.spaces.Discrete) else (values, jnp.zeros(1))

    policy = bps.from_jax(apply, np.zeros((outputs, size), np.float32), env.observation_space, actions)
    batch = bps.sample(bps.environment(env, horizon=40), policy, 4, seed=0)
    assert batch.observations.shape[2:] == inner.observation_space(params).shape
    for observation in batch.observations[0, :3]:
        assert env.observation_space.contains(observation.astype(env.observation_space.dtype))


@pytest.mark.filterwarnings("ignore")
def test_environments_of_brax_are_compiled() -> None:
    envs = pytest.importorskip("brax.envs")
    inner = envs.get_environment("inverted_pendulum", backend="spring")
    env: Any = bps.environment(adapt(inner), horizon=20)
    policy = bps.GaussianMLP.init(0, env.observation_space, env.action_space, (8,))
    batch = bps.sample(env, policy, 3, seed=0)
    # The same actions by brax itself, from the same start; in 32 bit, because 64-bit draws of a key are other numbers.
    with jax.enable_x64(True):
        state = env.reset(jax.random.key(5))
    with jax.enable_x64(False):
        theirs = inner.reset(jax.random.key_data(jax.random.key(5)))
    for action in np.clip(batch.actions[0, :4], -1.0, 1.0):
        with jax.enable_x64(True):
            state, reward, _ = env.step(jax.random.key(0), state, action)
        with jax.enable_x64(False):
            theirs = inner.step(theirs, jnp.asarray(action, jnp.float32))
        np.testing.assert_allclose(reward, theirs.reward, rtol=1e-5)
        np.testing.assert_allclose(env.observe(state), theirs.obs, rtol=1e-4, atol=1e-5)
    wrapped = adapt(envs.create("inverted_pendulum", episode_length=77, backend="spring"))
    assert wrapped.horizon == 77
    result = bps.evaluate(policy, env, episodes=20, seed=0)
    assert result.method == "auto"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_actors_of_torchrl() -> None:
    pytest.importorskip("torchrl")
    torch = pytest.importorskip("torch")
    from tensordict import TensorDict
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, TanhNormal

    torch.manual_seed(0)
    logits = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=OneHotCategorical)
    policy = load(actor, "CartPole-v1")
    batch = bps.sample("CartPole-v1", policy, 2, seed=0, horizon=10)
    keep = batch.mask
    distribution = actor.get_dist(TensorDict({"observation": torch.as_tensor(batch.observations[keep])}))
    onehot = torch.nn.functional.one_hot(torch.as_tensor(batch.actions[keep]), 2)
    np.testing.assert_allclose(batch.log_probs[keep], distribution.log_prob(onehot).detach(), atol=1e-5)

    body = torch.nn.Sequential(torch.nn.Linear(3, 2), NormalParamExtractor())
    gaussian = TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"])
    squashed = ProbabilisticActor(
        gaussian,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": -2.0, "high": 2.0},
    )
    policy = load(squashed, "Pendulum-v1")
    _, _, executed = policy.mode().act(np.zeros((4, 1)), np.ones((4, 3), np.float32))
    expected = squashed.get_dist(TensorDict({"observation": torch.ones(4, 3)})).deterministic_sample
    np.testing.assert_allclose(executed, expected.detach().numpy(), atol=1e-4)
    assert bps.evaluate(squashed, "Pendulum-v1", episodes=20, seed=0).method == "auto"

    action = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    assert bps.evaluate(action, "Pendulum-v1", episodes=4, seed=0).deterministic


def test_modules_of_flax() -> None:
    pytest.importorskip("flax")
    from flax import linen, nnx

    class Actor(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            hidden = linen.tanh(linen.Dense(8)(x))
            return linen.Dense(2)(hidden), linen.Dense(1)(hidden)

    module = Actor()
    variables = module.init(jax.random.key(0), jnp.zeros(4))
    policy = load((module, variables), "CartPole-v1")
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    logits, _ = module.apply(variables, observations)
    expected = jax.nn.log_softmax(logits)[:, 1]
    np.testing.assert_allclose(policy.log_prob(observations, np.ones(5, int)), expected, atol=1e-5)
    assert len(policy.flat) == 8 * 2 + 2  # the last layer
    assert bps.evaluate((module, variables), "CartPole-v1", episodes=20, seed=0).method == "auto"

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.hidden, self.last = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.last(nnx.tanh(self.hidden(x)))

    net = Net(nnx.Rngs(0))
    expected = jax.nn.log_softmax(net(observations))[:, 1]
    found = load(net, "CartPole-v1").log_prob(observations, np.ones(5, int))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_modules_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    module = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))
    policy = load(module, "CartPole-v1")
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    expected = jax.nn.log_softmax(jax.vmap(module)(observations))[:, 0]
    np.testing.assert_allclose(policy.log_prob(observations, np.zeros(5, int)), expected, atol=1e-5)
    assert len(policy.flat) == 8 * 2 + 2
    assert bps.evaluate(module, "gymnax:CartPole-v1", episodes=20, seed=0).value > 0.0


def test_distributions_of_distrax() -> None:
    distrax = pytest.importorskip("distrax")

    def apply(weights: Any, observation: Any) -> Any:
        return distrax.MultivariateNormalDiag(weights @ observation, jnp.full(1, 0.5)), jnp.float32(0.0)

    spaces = gymnasium.make("Pendulum-v1")
    policy = bps.from_jax(apply, np.ones((1, 3), np.float32), spaces.observation_space, spaces.action_space)
    observations = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    actions = np.zeros((4, 1), np.float32)
    expected = [
        apply(jnp.ones((1, 3)), row)[0].log_prob(action) for row, action in zip(observations, actions, strict=True)
    ]
    np.testing.assert_allclose(policy.log_prob(observations, actions), expected, atol=1e-5)


# A hub of our own: two files, and the three addresses by which the hub's library asks for them.


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves the files of one repository as the hub does."""

    commit = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, files: dict[str, bytes], *args: Any) -> None:
        self.files = files
        super().__init__(*args)

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        content, kind = b"", "application/octet-stream"
        if re.match(r"/api/models/me/agent(/revision/main)?(\?.*)?$", self.path):
            listed = [{"rfilename": name} for name in self.files]
            content = json.dumps({"id": "me/agent", "sha": self.commit, "siblings": listed, "private": False}).encode()
            kind = "application/json"
        elif re.match(r"/api/models/me/agent/tree/main", self.path):
            entries = [{"type": "file", "path": n, "size": len(c), "oid": "0"} for n, c in self.files.items()]
            content, kind = json.dumps(entries).encode(), "application/json"
        elif match := re.match(r"/me/agent/resolve/(?:main|[0-9a-f]{40})/([^?]+)", self.path):
            content = self.files.get(match[1], b"")
        if not content:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{abs(hash(self.path.split("/")[-1])):x}"')
        self.send_header("X-Repo-Commit", self.commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    files = {"ppo-CartPole-v1.zip": (AGENTS / "ppo-cartpole-v1.zip").read_bytes(), "README.md": b"hello"}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, files))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()


def test_models_of_the_hub(hub: Any, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    address, files = hub
    environment = {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "HF_ENDPOINT": address,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "*",
    }

    def run(policy: str) -> subprocess.CompletedProcess[str]:
        options = ["--env", "CartPole-v1", "--policy", policy, "--episodes", "4", "--seed", "0", "--json"]
        command = [sys.executable, "-m", "bpsearch", "evaluate", *options]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    done = run("hf://me/agent")
    assert done.returncode == 0, done.stderr
    expected = bps.evaluate(AGENTS / "ppo-cartpole-v1.zip", "CartPole-v1", episodes=4, seed=0).value
    assert json.loads(done.stdout)["value"] == expected
    files["other.zip"] = b"x"
    done = run("hf://me/agent")
    assert "must hold one .zip or .npz" in done.stderr
    assert run("hf://me/agent/ppo-CartPole-v1.zip").returncode == 0
    assert "cannot fetch" in run("hf://me/nothing").stderr


def test_episodes_as_a_dataframe() -> None:
    pytest.importorskip("pandas")
    result = bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", episodes=250, method="mc", seed=0)
    frame = result.to_dataframe()
    assert list(frame.columns) == ["batch", "return", "weight", "value"]
    assert frame["value"].mean() == pytest.approx(result.value)
    assert frame["batch"].value_counts().to_dict() == {0: 100, 1: 100, 2: 50}


@pytest.mark.filterwarnings("ignore")
def test_trackers_are_told(tmp_path: Path) -> None:
    def run(tracker: Any) -> bps.Estimate:
        with tracker:
            return bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", episodes=200, seed=0, on_batch=tracker)

    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(bps.integrations.TensorBoard(tmp_path / "board"))
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    logged = events.Scalars("bpsearch/value")
    assert [event.step for event in logged] == [100, 200]
    assert logged[-1].value == pytest.approx(result.value, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = bps.integrations.MLflow((tmp_path / "mlruns").as_uri())
    with tracker:
        result = bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", episodes=200, seed=0, on_batch=tracker)
    history = tracker._client.get_metric_history(tracker.run_id, "bpsearch/value")
    assert [metric.step for metric in history] == [100, 200]
    assert history[-1].value == pytest.approx(result.value)


@pytest.mark.filterwarnings("ignore")
def test_wandb_is_told_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    tracker = bps.integrations.WandB(mode="offline", dir=str(tmp_path), project="bpsearch")
    with tracker:
        bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", episodes=200, seed=0, on_batch=tracker)
        assert tracker._run.summary["bpsearch/episodes"] == 200
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_check_runner_of_gymnax() -> None:
    pytest.importorskip("gymnax")
    env: Any = bps.environment(adapt("gymnax:CartPole-v1"), horizon=30)

    def apply(parameters: Any, observation: Any) -> Any:
        return parameters @ observation

    check_runner(InProcess(env), bps.from_jax(apply, np.zeros((2, 4)), env.observation_space, env.action_space))
