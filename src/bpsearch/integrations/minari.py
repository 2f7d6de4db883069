"""Episodes as a Minari dataset, with the behavior's log-probabilities among the infos of each step."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from bpsearch._core.arrays import Array, NumpyArray
from bpsearch._core.foreign import MAX_BYTES
from bpsearch._core.npz import LARGEST_EXPANSION
from bpsearch._core.texts import show
from bpsearch.errors import InvalidTrajectoriesError, MissingDependencyError, SupportError
from bpsearch.sampling.npz import Delivery
from bpsearch.sampling.packing import name_arrays, unpack
from bpsearch.sampling.trajectories import Trajectories

LOG_PROB = "log_prob"
MAX_GROUPS = 1_000_000  # in the file of a dataset: two for each episode
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
        metadata = storage_class.read_raw_metadata(path)
        if metadata.get("data_format", _FORMAT) != _FORMAT:
            raise ValueError(f"its data_format must be {_FORMAT}, got {metadata['data_format']!r:.80}")
        _check_hdf5(Path(path) / "main_data.hdf5")
        storage = storage_class.read(Path(path).resolve())
        episodes = list(storage.get_episodes(range(storage.total_episodes)))
        return _delivery(path, episodes, metadata)
    except (InvalidTrajectoriesError, SupportError):
        raise
    except Exception as error:  # Minari, h5py and Gymnasium have no class of their own for what a file does wrong
        raise InvalidTrajectoriesError(
            f"cannot read a Minari dataset from {path}: {show(error) or type(error).__name__}"
        ) from error


def _check_hdf5(file: Path) -> None:
    """Refuse data that claim more than they hold, or that lie in other files.

    Raises:
        ValueError: naming what is wrong.
    """
    import h5py

    total = 0
    pending: list[Any] = []
    with h5py.File(file, "r") as root:
        pending.append(root)
        while pending:
            group = pending.pop()
            for key in group:
                link = group.get(key, getlink=True)
                if not isinstance(link, h5py.HardLink):
                    raise ValueError(f"{show(key)} is a link to somewhere else")
                found = group[key]
                if isinstance(found, h5py.Group):
                    pending.append(found)
                    if len(pending) > MAX_GROUPS:
                        raise ValueError(f"it has more than {MAX_GROUPS} groups")
                    continue
                if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
                    raise ValueError(f"{show(key)} lies in another file")
                total += found.nbytes
                if found.nbytes > LARGEST_EXPANSION * (found.id.get_storage_size() + 64) or total > MAX_BYTES:
                    raise ValueError(f"{show(key)} claims {found.nbytes} bytes, which are not there or too many")


def _delivery(path: str | Path, episodes: list[Any], metadata: dict[str, Any]) -> Delivery:
    if not episodes:
        raise InvalidTrajectoriesError(f"the Minari dataset {path} has no episodes")
    for number, episode in enumerate(episodes):
        if LOG_PROB not in (episode["infos"] or {}):
            raise InvalidTrajectoriesError(
                f"episode {number} of {path} has no infos[{LOG_PROB!r}]: without the probability of each action under "
                "the behavior that drew it, an episode cannot be weighted"
            )
    lengths = np.array([len(episode["rewards"]) for episode in episodes])
    observations = [episode["observations"] for episode in episodes]

    def join(rows: list[Array], extra: int = 0) -> NumpyArray:
        for n, row in enumerate(rows):
            if np.ndim(row) == 0 or len(row) != lengths[n] + extra or np.shape(row)[1:] != np.shape(rows[0])[1:]:
                raise InvalidTrajectoriesError(
                    f"episode {n} of {path} has {lengths[n]} rewards, but an array of the shape {np.shape(row)}"
                )
        return np.concatenate([np.asarray(row)[: lengths[n]] for n, row in enumerate(rows)])

    origin = {
        name: np.array(metadata[f"bpsearch_{name}"]["values"], metadata[f"bpsearch_{name}"]["dtype"])
        for name in _ORIGIN
        if f"bpsearch_{name}" in metadata
    }
    arrays = {
        "lengths": lengths,
        "actions": join([episode["actions"] for episode in episodes]),
        "rewards": join([episode["rewards"] for episode in episodes]),
        "log_probs": join([episode["infos"][LOG_PROB] for episode in episodes], extra=1),
        **origin,
    }
    seen = jax.tree_util.tree_map(lambda *rows: join(list(rows), extra=1), *observations)
    finals = jax.tree_util.tree_map(lambda *rows: np.stack([row[-1] for row in rows]), *observations)
    arrays |= name_arrays("observations", seen) | name_arrays("final_observations", finals)
    return Delivery(unpack(arrays), str(metadata.get("bpsearch_request", "")))


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
