"""Episodes as a Minari dataset, with the behavior's log-probabilities among the infos of each step."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch._core.arrays import Array
from bpsearch.errors import InvalidTrajectoriesError, MissingDependencyError
from bpsearch.sampling.npz import Delivery
from bpsearch.sampling.trajectories import Trajectories

LOG_PROB = "log_prob"
_FORMAT = "hdf5"
_ORIGIN = ("behavior_parameters", "seed")


def save_minari(
    path: str | Path,
    trajectories: Trajectories,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    dataset_id: str = "bpsearch/episodes-v0",
    request: str = "",
) -> Path:
    """Write episodes as a Minari dataset (HDF5) into the new directory `path`.

    Minari keeps what it calls infos for each observation, the last one included: `infos["log_prob"][t]` belongs to the
    action of step t, and the one after the last step is 0. Actions are as the policy drew them, which for a Gaussian
    may lie outside of the action space; whether an episode ended by itself or was cut is not part of `Trajectories`:
    the last step is marked as terminated. The metadata hold the request that the episodes answer
    ("bpsearch_request"), the behavior's parameters and the seed, where they are known.

    Raises:
        InvalidTrajectoriesError: there is a dataset already, or the last observations were not recorded, which Minari
            requires.
    """
    storage_class, buffer_class, version = _minari()
    path = Path(path).resolve()  # Minari loses its way with a relative one
    if trajectories.final_observations is None:
        raise InvalidTrajectoriesError(
            "a Minari dataset holds the observation after the last step of every episode, but the batch has no "
            "final_observations"
        )
    if path.exists() and any(path.iterdir()):
        raise InvalidTrajectoriesError(f"a Minari dataset is written into a new directory, but {path} is not empty")
    path.mkdir(parents=True, exist_ok=True)
    storage = storage_class.new(path, observation_space, action_space, data_format=_FORMAT, jpeg_encoding=False)
    metadata: dict[str, Any] = {"dataset_id": dataset_id, "minari_version": version, "bpsearch_request": request}
    for name in _ORIGIN:
        value = getattr(trajectories, name)
        if value is not None:
            metadata[f"bpsearch_{name}"] = {"dtype": str(np.asarray(value).dtype), "values": np.asarray(value).tolist()}
    storage.update_metadata(metadata)
    storage.update_episodes([_episode(buffer_class, trajectories, n) for n in range(len(trajectories))])
    return path


def load_minari(path: str | Path) -> Delivery:
    """The episodes of a Minari dataset in a directory whose infos hold the log-probabilities; see `save_minari`.

    Raises:
        InvalidTrajectoriesError: there is no such dataset, or an episode has no log-probabilities.
    """
    storage_class, _, _ = _minari()
    try:
        storage = storage_class.read(Path(path).resolve())
        metadata = storage_class.read_raw_metadata(path)
        episodes = list(storage.get_episodes(range(storage.total_episodes)))
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise InvalidTrajectoriesError(f"cannot read a Minari dataset from {path}: {error}") from error
    if not episodes:
        raise InvalidTrajectoriesError(f"the Minari dataset {path} has no episodes")
    for number, episode in enumerate(episodes):
        if LOG_PROB not in (episode["infos"] or {}):
            raise InvalidTrajectoriesError(
                f"episode {number} of {path} has no infos[{LOG_PROB!r}]: without the probability of each action under "
                "the behavior that drew it, an episode cannot be weighted"
            )
    lengths = np.array([len(episode["rewards"]) for episode in episodes])
    horizon = int(lengths.max())

    def padded(rows: list[Array]) -> Array:
        result = np.zeros((len(rows), horizon, *np.shape(rows[0])[1:]), np.asarray(rows[0]).dtype)
        for n, row in enumerate(rows):
            result[n, : lengths[n]] = row[: lengths[n]]
        return result

    observations = [episode["observations"] for episode in episodes]
    origin = {
        name: np.array(metadata[f"bpsearch_{name}"]["values"], metadata[f"bpsearch_{name}"]["dtype"])
        for name in _ORIGIN
        if f"bpsearch_{name}" in metadata
    }
    trajectories = Trajectories(
        observations=jax.tree_util.tree_map(lambda *rows: padded(list(rows)), *observations),
        actions=padded([episode["actions"] for episode in episodes]),
        rewards=padded([episode["rewards"] for episode in episodes]),
        log_probs=padded([episode["infos"][LOG_PROB] for episode in episodes]),
        mask=np.arange(horizon) < lengths[:, None],
        final_observations=jax.tree_util.tree_map(lambda *rows: np.stack([row[-1] for row in rows]), *observations),
        **origin,
    )
    return Delivery(trajectories, str(metadata.get("bpsearch_request", "")))


def _episode(buffer_class: Any, trajectories: Trajectories, n: int) -> Any:
    length = int(trajectories.lengths[n])
    last = np.arange(length) == length - 1
    finals: Any = trajectories.final_observations
    return buffer_class(
        observations=jax.tree_util.tree_map(
            lambda array, final: np.concatenate([array[n, :length], final[n][None]]), trajectories.observations, finals
        ),
        actions=trajectories.actions[n, :length],
        rewards=trajectories.rewards[n, :length],
        terminations=last,
        truncations=np.zeros(length, bool),
        infos={LOG_PROB: np.append(trajectories.log_probs[n, :length], 0.0)},
    )


def _minari() -> tuple[Any, Any, str]:
    try:
        import h5py  # noqa: F401
        import minari
        from minari.data_collector.episode_buffer import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage
    except ModuleNotFoundError as error:
        if error.name not in ("minari", "h5py"):
            raise
        raise MissingDependencyError(
            f"Minari datasets need the package {error.name}; install it with: pip install 'bpsearch[minari]'"
        ) from error
    return MinariStorage, EpisodeBuffer, minari.__version__
