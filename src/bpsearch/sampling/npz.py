"""Episodes as NumPy's npz: a file that any program can write, and that can run no code when it is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bpsearch._core.npz import open_file, read_npz
from bpsearch._core.texts import show
from bpsearch.errors import InvalidTrajectoriesError
from bpsearch.sampling.packing import pack, unpack
from bpsearch.sampling.trajectories import Trajectories

FORMAT = "bpsearch trajectories 1"


@dataclass(frozen=True, eq=False)
class Delivery:
    """Episodes on their way to a study.

    Attributes:
        trajectories: the episodes.
        request: the identity of the request that they answer; empty if the file does not say.
    """

    trajectories: Trajectories
    request: str = ""


def save_npz(path: str | Path, trajectories: Trajectories, *, request: str = "") -> Path:
    """Write episodes to `path`, compressed.

    The file holds these arrays; whoever writes one by other means needs only the first six.

    - `format`: "bpsearch trajectories 1".
    - `lengths`: (N,), the number of steps of each episode.
    - `observations`, `actions`, `rewards`, `log_probs`: (Σ lengths, ...), the steps of all episodes one after the
      other. `log_probs` are the behavior's, as computed when it drew the action. Dict observations have one array per
      key, named `observations.key`.
    - `final_observations`: (N, ...), what was seen after the last step.
    - `resets`: (N, r, ...), what r further resets for each episode showed, if there were any.
    - `request`: the identity of the request that the episodes answer, as the policy's file has it.
    - `steps`, `behavior_parameters`, `seed`: see `Trajectories`; `steps` is the T of its arrays.
    """
    path = Path(path)
    arrays: dict[str, Any] = {"format": FORMAT} | ({"request": request} if request else {}) | pack(trajectories)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path


def load_npz(path: str | Path) -> Delivery:
    """The episodes in a file that `save_npz`, or another program, wrote.

    Raises:
        InvalidTrajectoriesError: the file is missing, damaged, of another format, or its arrays are no episodes.
    """
    try:
        with open_file(path) as file:
            found, arrays = read_npz(file)
            request = str(arrays.pop("request", ""))
    except (OSError, ValueError) as error:
        raise InvalidTrajectoriesError(f"cannot read episodes from {path}: {error}") from error
    if found != FORMAT:
        raise InvalidTrajectoriesError(
            f"{path} does not hold episodes: expected the format {FORMAT!r}, got {show(found)!r}"
        )
    try:
        return Delivery(unpack(arrays), request)
    except InvalidTrajectoriesError as error:
        raise InvalidTrajectoriesError(f"{path}: {error}") from error
