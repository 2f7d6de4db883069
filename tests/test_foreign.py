"""What comes from outside: byte orders, kinds, sizes that are only claimed, and spaces that are only declared."""

import io
import json
import os
import subprocess
import sys
import zipfile

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import bpsearch as bps
from bpsearch._core.npz import read_npz
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError, PolicyFileError, SpaceMismatchError
from bpsearch.policies.files import MAX_DEPTH, request_of, save_policy
from bpsearch.sampling.npz import load_npz
from bpsearch.sampling.packing import pack, unpack
from tests.toy_envs import Toy

MDP = bps.envs.gridworld()
POLICY = bps.shipped_policy("gridworld-early")


@pytest.fixture(scope="module")
def batch():
    return bps.sample(MDP, POLICY, 50, seed=4)


def swapped(array):
    return array.astype(array.dtype.newbyteorder())


def valued(*batches):
    """The value of a study that was warmed up before it is told."""
    study = bps.Study(POLICY, "bpg", seed=1)
    for told in batches:
        study.tell(study.ask().number, told)
    return study.estimate().value


def test_arrays_of_the_other_byte_order_are_the_same_numbers(batch, tmp_path):
    """Compiled programs read memory as it lies: −29.5 became +74 for a second batch of big-endian states."""
    fields = ("observations", "actions", "rewards", "log_probs", "final_observations")
    turned = bps.Trajectories(**{name: swapped(getattr(batch, name)) for name in fields}, mask=batch.mask)
    assert all(getattr(turned, name).dtype.isnative for name in fields)
    arrays = {name: swapped(np.asarray(array)) for name, array in pack(batch).items() if name != "behavior_parameters"}
    np.savez(tmp_path / "big.npz", format="bpsearch trajectories 1", **arrays)
    read = load_npz(tmp_path / "big.npz").trajectories
    plain = bps.Trajectories(**{name: getattr(batch, name) for name in fields}, mask=batch.mask)
    assert valued(plain, plain) == valued(plain, turned) == valued(plain, read)


def test_policies_of_the_other_byte_order_are_the_same_policies(tmp_path):
    network = bps.shipped_policy("cartpole-swingup")
    turned = bps.GaussianMLP(
        tuple(map(swapped, network.weights)), tuple(map(swapped, network.biases)), swapped(network.log_std)
    )
    np.testing.assert_array_equal(turned.flat, network.flat)
    np.savez(tmp_path / "p.npz", format="bpsearch policy 1", kind="SoftmaxTable", logits=swapped(POLICY.logits))
    np.testing.assert_array_equal(bps.load_policy(tmp_path / "p.npz").logits, POLICY.logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": lambda a: a.astype(complex)}, "of at most 64 bit, got the type complex128"),
        ({"rewards": lambda a: a.astype("U9")}, "got the type <U9|one text of at most"),
        ({"rewards": lambda a: a.astype("datetime64[s]")}, "got the type datetime64"),
        ({"rewards": lambda a: a.astype(np.longdouble)}, "got the type float128"),
        ({"actions": lambda a: a.astype("S3")}, r"got the type \|S3"),
        ({"observations": lambda a: a.astype("timedelta64[s]")}, "got the type timedelta64"),
        ({"actions": lambda a: np.full(a.shape, np.nan)}, "action of episode 0, step 0 is nan"),
        ({"final_observations": lambda a: np.full(a.shape, np.nan)}, "final observation of episode 0 is nan"),
        ({"steps": lambda a: np.int64(10**7)}, "50 episodes padded to 10000000 steps would take"),
        ({"steps": lambda a: np.array([100, 100])}, "steps must be one whole number"),
        ({"steps": lambda a: np.float64(200)}, "steps must be one whole number"),
        (
            {"lengths": lambda a: np.full(4, 2**62), "steps": lambda a: np.int64(2**62)},
            "of the 18446744073709551616 steps",
        ),
        ({"behavior_parameters": lambda a: a.astype(int)}, "behavior_parameters must be an array of floats"),
        ({"seed": lambda a: np.array([[1]])}, "seed must be a vector"),
        ({"observations.a": lambda a: np.zeros(3)}, "one row for each of the|both an array and a dict"),
    ],
)
def test_what_no_episode_can_hold_is_refused_in_one_line(batch, change, message, tmp_path):
    arrays = pack(batch)
    for name, alter in change.items():
        arrays[name] = alter(arrays.get(name))
    np.savez(tmp_path / "bad.npz", format="bpsearch trajectories 1", **arrays)
    with pytest.raises(InvalidTrajectoriesError, match=message) as caught:
        load_npz(tmp_path / "bad.npz")
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidTrajectoriesError):
        unpack(arrays)


def test_masked_arrays_and_masks_that_are_none_are_refused(batch):
    fields = {name: getattr(batch, name) for name in ("observations", "actions", "rewards", "log_probs", "mask")}
    hidden = np.ma.MaskedArray(batch.rewards, batch.rewards < -5)
    with pytest.raises(InvalidTrajectoriesError, match="got a masked array"):
        bps.Trajectories(**fields | {"rewards": hidden})
    with pytest.raises(InvalidTrajectoriesError, match="mask must be"):
        bps.Trajectories(**fields | {"mask": np.full(batch.mask.shape, "False")})
    with pytest.raises(InvalidTrajectoriesError, match="mask must be True or False"):
        bps.Trajectories(**fields | {"mask": batch.mask * 0.5})


def test_what_else_a_file_holds_is_of_no_concern(batch, tmp_path):
    np.savez(tmp_path / "a.npz", format="bpsearch trajectories 1", note="by the robot", **pack(batch))
    assert len(load_npz(tmp_path / "a.npz").trajectories) == 50


def test_unsigned_states_are_states(batch):
    """JAX makes floats of unsigned and signed 64-bit numbers, and a table cannot be looked up by those."""
    fields = {name: getattr(batch, name) for name in ("rewards", "log_probs", "mask")}
    unsigned = {name: getattr(batch, name).astype(np.uint64) for name in ("observations", "actions")}
    study = bps.Study(POLICY, "bpg", seed=1)
    study.tell(study.ask().number, bps.Trajectories(**fields, **unsigned))
    assert study.estimate().value == valued(batch)
    with pytest.raises(InvalidTrajectoriesError, match="observations must be below 2"):
        bps.Trajectories(**fields, **unsigned | {"observations": unsigned["observations"] + np.uint64(2**63)})


@pytest.mark.parametrize(("finals", "told"), [(99, "99"), (-1, "-1")])
def test_told_final_observations_must_be_of_the_space(batch, finals, told):
    bad = bps.Trajectories(
        batch.observations, batch.actions, batch.rewards, batch.log_probs, batch.mask,
        np.full_like(batch.final_observations, finals),
    )  # fmt: skip
    study = bps.Study(POLICY, "mc", seed=1)
    study.ask()
    with pytest.raises(InvalidTrajectoriesError, match=f"final observation of episode 0 must be one of .*{told}"):
        study.tell(0, bad)
    assert study.episodes == 0


# Files that claim more than they hold.


def claiming(shape, *, dtype="<f8", payload=b""):
    """An .npy whose header claims a shape."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue() + payload


def zipped(members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    out.seek(0)
    return out


def test_sizes_are_known_before_memory_is_taken():
    with pytest.raises(ValueError, match="has 0 bytes, but its header claims 160000000000"):
        read_npz(zipped({"logits.npy": claiming((20_000_000_000,))}))
    with pytest.raises(ValueError, match="would take 8000000 bytes of memory, at most 1000000 are allowed"):
        read_npz(zipped({"logits.npy": claiming((10**6,), payload=bytes(8 * 10**6))}), limit=10**6)
    with pytest.raises(ValueError, match="has 8 bytes, but its header claims 16"):
        read_npz(zipped({"logits.npy": claiming((2,), payload=bytes(8))}))
    with pytest.raises(ValueError, match="other means than deflate"):
        read_npz(zipped({"logits.npy": claiming((2,), payload=bytes(16))}, zipfile.ZIP_LZMA))
    with pytest.raises(ValueError, match="is not a NumPy array"):
        read_npz(zipped({"logits.npy": b"\x93NUMPY\x02\x00" + b"\xff" * 100}))
    with pytest.raises(ValueError, match="members, at most"):
        read_npz(zipped({f"{i}.npy": b"" for i in range(10_001)}))
    with pytest.raises(ValueError, match=r"\\x1b\[31m.npy is not a NumPy array"):
        read_npz(zipped({"\x1b[31m.npy": b""}))


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(PolicyFileError, match="is not a file"):
        bps.load_policy(tmp_path / "pipe.npz")
    with pytest.raises(InvalidTrajectoriesError, match="is not a file"):
        load_npz(tmp_path / "pipe.npz")


def test_mixtures_are_nested_only_so_deep(tmp_path):
    def nested(depth):
        if depth == 0:
            return {"kind": "SoftmaxTable", "logits": np.zeros((2, 2))}
        parts = {f"{name}.{key}": part for name in ("evaluation", "component") for key, part in nested(0).items()}
        parts |= {f"evaluation.{key}": part for key, part in nested(depth - 1).items()}
        return {"kind": "Mixture", "share": 0.5, **parts}

    np.savez(tmp_path / "one.npz", format="bpsearch policy 1", **nested(1))
    assert isinstance(bps.load_policy(tmp_path / "one.npz"), bps.Mixture)
    np.savez(tmp_path / "deep.npz", format="bpsearch policy 1", **nested(40))
    with pytest.raises(PolicyFileError, match=f"nested {MAX_DEPTH} times at most"):
        bps.load_policy(tmp_path / "deep.npz")
    for share in (np.nan, 2.0, np.zeros(3), np.zeros((3, 2))):
        np.savez(tmp_path / "one.npz", format="bpsearch policy 1", **nested(1) | {"share": share})
        with pytest.raises(PolicyFileError, match=r"^.*share of a mixture[^\n]*$"):
            bps.load_policy(tmp_path / "one.npz")


LOADING = """
import resource, sys
import bpsearch as bps
bps.load_policy(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    bps.load_policy(sys.argv[2])
except bps.errors.BPSearchError as error:
    print(error, file=sys.stderr)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts other units elsewhere")
@pytest.mark.slow
def test_a_policy_file_takes_at_most_twice_what_it_holds(tmp_path):
    """And 32 MiB; a file that would unpack to more than 64 times its size takes nothing."""
    save_policy(POLICY, tmp_path / "small.npz")
    for rows, save, held in ((800_000, np.savez, 64), (10_000_000, np.savez_compressed, 0)):
        path = tmp_path / f"{rows}.npz"
        logits = np.zeros((rows, 10), np.int8 if held == 0 else np.float64)
        save(path, format="bpsearch policy 1", kind="SoftmaxTable", logits=logits)
        command = [sys.executable, "-c", LOADING, str(tmp_path / "small.npz"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert int(done.stdout) < 1024 * (2 * held + 32), (done.stdout, done.stderr)
        assert ("would take 8000001" in done.stderr) == (held == 0), done.stderr
        path.unlink()
    assert request_of(tmp_path / "small.npz") == ""


LOADING_SB3 = """
import resource, sys
from stable_baselines3 import PPO
import bpsearch as bps
arguments = {"device": "cpu", "n_steps": 8, "batch_size": 8}
for width in (2, 1500):
    network = {"net_arch": [width, width], "ortho_init": False}
    model = PPO("MlpPolicy", "CartPole-v1", policy_kwargs=network, **arguments)
    model.save(f"{sys.argv[1]}/{width}")
    numbers = sum(parameter.numel() for parameter in model.policy.parameters())
    del model
    if width > 2:
        # The peak of making it is not to hide that of reading it.
        open("/proc/self/clear_refs", "w").write("5")
    status = open("/proc/self/status").read()
    before = int(status.split("VmHWM:")[1].split()[0])
    bps.load_sb3(f"{sys.argv[1]}/{width}", "CartPole-v1")
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) - before, 8 * numbers // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.slow
def test_an_sb3_file_takes_at_most_twice_what_it_holds(tmp_path):
    """In 64 bit, and 64 MiB."""
    pytest.importorskip("stable_baselines3")
    command = [sys.executable, "-c", LOADING_SB3, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    more, held = map(int, done.stdout.split())
    assert more < 2 * held + 64 * 1024, (more, held)


def test_sb3_files_that_claim_more_than_they_hold_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("stable_baselines3")
    data = {"policy_class": {"__module__": "stable_baselines3.common.policies"}, "policy_kwargs": {}}

    def written(tensors, method=zipfile.ZIP_STORED):
        out = io.BytesIO()
        torch.save(tensors, out)
        path = tmp_path / "ppo.zip"
        path.write_bytes(zipped({"data": json.dumps(data), "policy.pth": out.getvalue()}, method).getvalue())
        return path

    wide = {"action_net.weight": torch.zeros(1).expand(2, 100_000)}
    with pytest.raises(PolicyFileError, match="repeats the bytes that it has"):
        bps.load_sb3(written(wide), "CartPole-v1")
    # Two thin tensors whose widths would ask for a layer of 40 GB.
    thin = {f"mlp_extractor.policy_net.{i}.weight": torch.zeros(100_000, 1) for i in (0, 2)}
    with pytest.raises(
        SpaceMismatchError, match=r"policy_net.0.weight has the shape \(100000, 1\), expected \(any, 4\)"
    ):
        bps.load_sb3(written(thin | {"action_net.weight": torch.zeros(2, 4)}), "CartPole-v1")
    with pytest.raises(PolicyFileError, match=r"would take .* bytes, at most"):
        bps.load_sb3(written({"a": torch.zeros(40_000_000)}, zipfile.ZIP_DEFLATED), "CartPole-v1")
    with pytest.raises(PolicyFileError, match="numbers that are not finite"):
        bps.load_sb3(written({"action_net.weight": torch.full((2, 4), torch.nan)}), "CartPole-v1")


def test_minari_datasets_that_claim_more_than_they_hold_are_refused(batch, tmp_path):
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("minari")
    from bpsearch.integrations import load_minari, save_minari

    path = save_minari(tmp_path / "d", batch, POLICY.observation_space, POLICY.action_space)
    with h5py.File(path / "main_data.hdf5", "r+") as file:
        del file["episode_0/rewards"]
        file["episode_0"].create_dataset("rewards", (10**9,), "f8", chunks=(10**6,))
    with pytest.raises(InvalidTrajectoriesError, match="rewards claims 8000000000 bytes"):
        load_minari(path)
    with h5py.File(path / "main_data.hdf5", "r+") as file:
        del file["episode_0/rewards"]
        file["episode_0/rewards"] = h5py.ExternalLink("/etc/passwd", "x")
    with pytest.raises(InvalidTrajectoriesError, match="rewards is a link to somewhere else"):
        load_minari(path)


# Environments that do not keep to the space that they declare.


class Liar(Toy):
    """Shows, pays or declares something else than it should, from its third step on."""

    def __init__(self, space, lie, honest=0, reward=1.0):
        super().__init__()
        self.observation_space, self.lie, self.honest, self.paid = space, lie, honest, reward

    def observe(self):
        return self.lie if self.steps >= 3 else self.honest

    def reward(self, action):
        return self.paid


STATES = gymnasium.spaces.Discrete(5)
TWO = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize("vector", [False, True], ids=["single", "vector"])
@pytest.mark.parametrize(
    ("space", "honest", "lie", "message"),
    [
        (STATES, 0, 99, r"observation of episode 0, step 3 is 99: every observation must be one of Discrete\(5\)"),
        (STATES, 0, -1, r"observation of episode 0, step 3 is -1"),
        (STATES, 0, 2.7, "gave float64 in episode 0, step 3, but declares the type int64"),
        (STATES, 0, "3", "but declares the type int64"),
        (STATES, 0, np.array([3]), r"gave \(1,\) in episode 0, step 3, but declares the shape \(\)"),
        (TWO, np.zeros(2, np.float32), 0.5, r"gave \(\) in episode 0, step 3, but declares the shape \(2,\)"),
        (TWO, np.zeros(2, np.float32), np.zeros(1), r"but declares the shape \(2,\)"),
        (TWO, np.zeros(2, np.float32), np.array([0.0, np.nan]), r"every observation must be finite"),
        (gymnasium.spaces.MultiDiscrete([2, 3]), np.zeros(2, int), np.array([0, 3]), r"must be one of MultiDiscrete"),
        (gymnasium.spaces.MultiBinary(2), np.zeros(2, np.int8), np.array([0, 2], np.int8), r"must be one of MultiBin"),
    ],
)  # fmt: skip
def test_an_environment_that_breaks_its_own_space_is_refused(space, honest, lie, message, vector):
    def factory():
        return Liar(space, lie, honest)

    def act(observation):
        return 0

    # A vector environment of Gymnasium joins observations by itself, and broadcasts what does not fit.
    if vector and (np.shape(lie) != np.shape(honest) or isinstance(lie, str | float)):
        pytest.skip("joined by Gymnasium")
    env = SyncVectorEnv([factory] * 2) if vector else factory
    policy = bps.FunctionPolicy(act, (space, Liar.action_space))
    with pytest.raises(InvalidTrajectoriesError, match=message):
        bps.sample(env, policy, 4)


@pytest.mark.parametrize("reward", [np.ones(2), "1", None, 1j])
def test_a_reward_is_one_number(reward):
    policy = bps.FunctionPolicy(lambda observation: 0, (STATES, Liar.action_space))
    with pytest.raises(InvalidTrajectoriesError, match="but declares a number as reward"):
        bps.sample(lambda: Liar(STATES, 0, reward=reward), policy, 2)


def test_dict_observations_have_the_declared_keys():
    space = gymnasium.spaces.Dict(a=STATES)
    policy = bps.FunctionPolicy(lambda observation: 0, (space, Liar.action_space))
    with pytest.raises(
        InvalidTrajectoriesError, match=r"gave \['b'\] in episode 0, step 3, but declares the keys \['a'\]"
    ):
        bps.sample(lambda: Liar(space, {"b": 1}, {"a": 1}), policy, 2)


def test_arrays_of_other_kinds_make_no_policy():
    for logits in (np.zeros((2, 2), complex), [["a", "b"]], [[1, 2], [3]], None, np.zeros((2, 2), object)):
        with pytest.raises(InvalidArgumentError, match="logits must be an array"):
            bps.SoftmaxTable(logits)
