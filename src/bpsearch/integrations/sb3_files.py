"""Stable-Baselines3 files: read without running code that they contain, unless the caller trusts them.

An SB3 file is a zip of tensors (`policy.pth`) and of JSON (`data`), in which whatever JSON cannot hold is a pickle:
loading it the usual way runs any code that its author chose. Here the tensors are read as tensors only, the plain parts
of the JSON as text, and the network is built again from the shapes of its tensors.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file

from bpsearch._core.npz import check_members
from bpsearch._core.texts import show
from bpsearch.envs.resolve import GymnasiumSource, HasSpaces, spaces_of
from bpsearch.errors import PolicyFileError, SpaceMismatchError, UntrustedFileError
from bpsearch.integrations.sb3 import Spaces, of_policy
from bpsearch.integrations.sb3_actors import seen_space
from bpsearch.integrations.sb3_networks import NeedsTrustError, build, no_schedule
from bpsearch.integrations.sb3_statistics import Normalize, find_statistics
from bpsearch.integrations.torch import TorchPolicy
from bpsearch.policies.files import LARGEST_EXPANSION, MAX_POLICY_BYTES
from bpsearch.policies.function import FunctionPolicy

MAX_DATA_BYTES = 2**26  # of the JSON in a file
_DAMAGES = (ValueError, RuntimeError, EOFError, KeyError, TypeError, OSError, RecursionError, zipfile.BadZipFile)


def load_sb3(
    path: str | Path,
    env: GymnasiumSource | HasSpaces,
    *,
    env_kwargs: dict[str, Any] | None = None,
    normalize: Normalize = None,
    adapt: str | Sequence[str] | None = None,
    trust: bool = False,
) -> TorchPolicy | FunctionPolicy:
    """The policy in a Stable-Baselines3 file.

    Without trust no code from the file runs. All algorithms of Stable-Baselines3, and TRPO, RecurrentPPO, MaskablePPO,
    QRDQN and TQC of sb3-contrib, can be read so if their networks are SB3's own; else the error says why not.

    Args:
        path: the .zip.
        env: the environment in which the policy is to be evaluated: its spaces are the policy's.
        env_kwargs: what `gymnasium.make` is given besides an id.
        normalize: the statistics of `VecNormalize` with which the policy was trained, or the path of their pickle,
            which is read without running code from it. By default they are looked for beside the file, and in a folder
            beside it as rl_zoo3 has it, if the file shows that there were any; False says that there were none.
        adapt: the parameters that a search may change; see `from_sb3`.
        trust: whether code in the file may run. Say True only for files whose author you trust.

    Raises:
        PolicyFileError: the file is missing, damaged or not of Stable-Baselines3.
        UntrustedFileError: the file cannot be read without running code from it.
        MissingStatisticsError: the policy was trained with statistics of `VecNormalize` that are not there.
        SpaceMismatchError: the policy was not made for the environment's spaces.
    """
    spaces = spaces_of(env, env_kwargs)
    file = _existing(path)
    # Images whose channels come last are transposed for the policy, as SB3 does.
    seen = (seen_space(spaces[0]), spaces[1])
    data = _data(file)
    policy = _load_trusted(file) if trust else _rebuild(file, data, seen)
    statistics, note = find_statistics(file, data, normalize, trust=trust)
    if statistics is not None:
        statistics.check(spaces[0], "beside the file" if note else str(normalize))
    for what, of_env, of_policy_ in (
        ("observation", seen[0], policy.observation_space),
        ("action", spaces[1], policy.action_space),
    ):
        if of_env != of_policy_:
            raise SpaceMismatchError(
                f"the {what} spaces differ: the environment has {of_env}, the policy has {of_policy_}"
            )
    return of_policy(policy, spaces, statistics, adapt, [note] if note else [], copies=False)


def _existing(path: str | Path) -> Path:
    file = Path(path)
    if not file.exists() and file.with_name(file.name + ".zip").exists():
        file = file.with_name(file.name + ".zip")
    if not file.is_file():
        raise PolicyFileError(f"there is no policy file {str(path)!r}")
    if not zipfile.is_zipfile(file):
        raise PolicyFileError(f"{str(file)!r} is not a Stable-Baselines3 file: it is not a zip archive")
    try:
        with zipfile.ZipFile(file) as archive:
            missing = {"data", "policy.pth"} - set(archive.namelist())
            check_members(archive, file.stat().st_size, MAX_POLICY_BYTES, LARGEST_EXPANSION)
            if not missing and archive.getinfo("data").file_size > MAX_DATA_BYTES:
                raise ValueError(f"its data are larger than {MAX_DATA_BYTES} bytes")
    except (ValueError, zipfile.BadZipFile, NotImplementedError, OSError) as error:
        raise PolicyFileError(f"{str(file)!r} is damaged: {show(error)}") from error
    if missing:
        raise PolicyFileError(f"{str(file)!r} is not a Stable-Baselines3 file: it has no {' and no '.join(missing)}")
    return file


def _load_trusted(file: Path) -> BasePolicy:
    data, parameters, _ = load_from_zip_file(file, device="cpu")
    assert data is not None
    settings = dict(data["policy_kwargs"])
    if data.get("use_sde"):
        settings["use_sde"] = True
    policy: BasePolicy = data["policy_class"](data["observation_space"], data["action_space"], no_schedule, **settings)
    state: Any = parameters["policy"]
    policy.load_state_dict(state)
    return policy


def _data(file: Path) -> dict[str, Any]:
    """The plain JSON of a file."""
    try:
        with zipfile.ZipFile(file) as archive:
            data = json.loads(archive.read("data"))
    except _DAMAGES as error:
        raise PolicyFileError(f"{str(file)!r} is damaged: {show(error) or type(error).__name__}") from error
    if not isinstance(data, dict):
        raise PolicyFileError(f"{str(file)!r} is damaged: its data are no JSON object")
    return data


def _rebuild(file: Path, data: dict[str, Any], spaces: Spaces) -> BasePolicy:
    try:
        with zipfile.ZipFile(file) as archive:
            tensors = _tensors(archive.read("policy.pth"))
    except pickle.UnpicklingError as error:
        raise _refuse(file, "its policy.pth holds more than tensors") from error
    except _DAMAGES as error:
        raise PolicyFileError(f"{str(file)!r} is damaged: {show(error) or type(error).__name__}") from error
    try:
        policy = build(data, tensors, spaces)
    except NeedsTrustError as error:
        raise _refuse(file, show(error)) from None
    except (AssertionError, TypeError, ValueError, RuntimeError) as error:
        raise _misfit(file, spaces, error) from error
    try:
        policy.load_state_dict(tensors)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        raise _misfit(file, spaces, error) from error
    return policy


def _misfit(file: Path, spaces: Spaces, error: Exception) -> SpaceMismatchError:
    return SpaceMismatchError(
        f"the tensors of {str(file)!r} do not fit SB3's own network for the observation space {spaces[0]} and the "
        f"action space {spaces[1]} of the environment; is it the environment for which the policy was trained? If "
        f"its network is one of its own and you trust the file, say trust=True (--trust). {show(error, 1000)}"
    )


def _tensors(raw: bytes) -> dict[str, torch.Tensor]:
    """What `torch.save` wrote, none of it larger than its bytes.

    The older format of torch (before 1.6), which is no zip, takes memory for whatever size it claims.

    Raises:
        ValueError: they claim more than they are.
    """
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        check_members(archive, len(raw), len(raw), expansion=1)
    found = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    if not isinstance(found, dict):
        raise ValueError(f"policy.pth holds a {type(found).__name__}, expected tensors by name")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            raise ValueError("policy.pth holds something else than tensors by name")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"the tensor {name!r} of the shape {tuple(tensor.shape)} repeats the bytes that it has")
        if tensor.numel() and not torch.isfinite(torch.stack(torch.aminmax(tensor))).all():
            raise ValueError(f"the tensor {name!r} has numbers that are not finite")
    return found


def _refuse(file: Path, reason: str) -> UntrustedFileError:
    return UntrustedFileError(
        f"{str(file)!r} cannot be read without running code from it: {reason}. If you trust its author, say trust=True "
        f"(--trust)"
    )
