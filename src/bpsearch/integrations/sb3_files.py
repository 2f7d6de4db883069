"""Stable-Baselines3 files: read without running code that they contain, unless the caller trusts them.

An SB3 file is a zip of tensors (`policy.pth`) and of JSON (`data`), in which whatever JSON cannot hold is a pickle:
loading it the usual way runs any code that its author chose. Here the tensors are read as tensors only, the plain parts
of the JSON as text, and the network is built anew from the shapes of its tensors.
"""

import io
import json
import math
import pickle
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import torch
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    BasePolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.sac.policies import MultiInputPolicy, SACPolicy

from bpsearch._core.npz import check_members
from bpsearch._core.texts import shown
from bpsearch.envs.resolve import GymnasiumSource, HasSpaces, spaces_of
from bpsearch.errors import PolicyFileError, SpaceMismatchError, UntrustedFileError
from bpsearch.integrations.sb3 import Spaces, of_policy
from bpsearch.integrations.torch import TorchPolicy
from bpsearch.policies.files import LARGEST_EXPANSION, MAX_POLICY_BYTES
from bpsearch.policies.function import FunctionPolicy

_ACTIVATIONS = ("Tanh", "ReLU", "ELU", "LeakyReLU", "SELU", "GELU", "SiLU", "Mish", "Softplus", "Sigmoid")
# Settings that do not shape the network, or whose effect is seen in its tensors.
_IGNORED = {
    "net_arch",
    "ortho_init",
    "log_std_init",
    "optimizer_class",
    "optimizer_kwargs",
    "full_std",
    "use_expln",
    "n_critics",
    "clip_mean",
}
_WEIGHT = r"\.(\d+)\.weight"
_LAYER = r"(mlp_extractor\.(policy|value)_net|actor\.latent_pi|critic\.qf\d+)" + r"\.\d+\.weight"
MAX_DATA_BYTES = 2**26  # of the JSON in a file
_DAMAGES = (ValueError, RuntimeError, EOFError, KeyError, TypeError, OSError, RecursionError, zipfile.BadZipFile)
_PASSED_ON = {"normalize_images", "share_features_extractor"}


def load_sb3(
    path: str | Path,
    env: GymnasiumSource | HasSpaces,
    *,
    env_kwargs: dict[str, Any] | None = None,
    normalize: VecNormalize | str | Path | None = None,
    adapt: str | Sequence[str] | None = None,
    trust: bool = False,
) -> TorchPolicy | FunctionPolicy:
    """The policy in a Stable-Baselines3 file.

    Without trust no code from the file runs. PPO, A2C and SAC with SB3's own networks can be read so; for others the
    error says that trust is needed.

    Args:
        path: the .zip.
        env: the environment in which the policy is to be evaluated: its spaces are the policy's.
        env_kwargs: what `gymnasium.make` is given besides an id.
        normalize: the statistics of `VecNormalize` with which the policy was trained, or the path of their pickle,
            which is read only with trust. The policy's file does not tell whether there were any.
        adapt: the parameters that a search may change; see `from_sb3`.
        trust: whether code in the file may run. Say True only for files whose author you trust.

    Raises:
        PolicyFileError: the file is missing, damaged or not of Stable-Baselines3.
        UntrustedFileError: the file cannot be read without running code from it.
        SpaceMismatchError: the policy was not made for the environment's spaces.
    """
    spaces = spaces_of(env, env_kwargs)
    file = _existing(path)
    statistics = _statistics(normalize, trust)
    policy = _trusted(file) if trust else _rebuilt(file, spaces)
    for what, of_env, of_policy_ in (
        ("observation", spaces[0], policy.observation_space),
        ("action", spaces[1], policy.action_space),
    ):
        if of_env != of_policy_:
            raise SpaceMismatchError(
                f"the {what} spaces differ: the environment has {of_env}, the policy has {of_policy_}"
            )
    return of_policy(policy, spaces, statistics, adapt)


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
        raise PolicyFileError(f"{str(file)!r} is damaged: {shown(error)}") from error
    if missing:
        raise PolicyFileError(f"{str(file)!r} is not a Stable-Baselines3 file: it has no {' and no '.join(missing)}")
    return file


def _statistics(normalize: VecNormalize | str | Path | None, trust: bool) -> VecNormalize | None:
    if normalize is None or isinstance(normalize, VecNormalize):
        return normalize
    if not trust:
        raise UntrustedFileError(
            f"{str(normalize)!r} is a pickle: reading it runs any code that its author put into it. If you trust it, "
            f"say trust=True (--trust)"
        )
    try:
        statistics = pickle.loads(Path(normalize).read_bytes())
    except (OSError, pickle.UnpicklingError, EOFError) as error:
        raise PolicyFileError(f"cannot read the statistics {str(normalize)!r}: {error}") from error
    if not isinstance(statistics, VecNormalize):
        raise PolicyFileError(f"{str(normalize)!r} holds no VecNormalize, got {type(statistics).__name__}")
    return statistics


def _trusted(file: Path) -> BasePolicy:
    data, parameters, _ = load_from_zip_file(file, device="cpu")
    assert data is not None
    settings = dict(data["policy_kwargs"])
    if data.get("use_sde"):
        settings["use_sde"] = True
    policy: BasePolicy = data["policy_class"](data["observation_space"], data["action_space"], _no_schedule, **settings)
    state: Any = parameters["policy"]
    policy.load_state_dict(state)
    return policy


def _rebuilt(file: Path, spaces: Spaces) -> BasePolicy:
    try:
        with zipfile.ZipFile(file) as archive:
            raw_data, raw_tensors = archive.read("data"), archive.read("policy.pth")
        data = json.loads(raw_data)
        tensors = _tensors(raw_tensors)
    except pickle.UnpicklingError as error:
        raise _untrusted(file, "its policy.pth holds more than tensors") from error
    except _DAMAGES as error:
        raise PolicyFileError(f"{str(file)!r} is damaged: {shown(error) or type(error).__name__}") from error
    if not isinstance(data, dict):
        raise PolicyFileError(f"{str(file)!r} is damaged: its data are no JSON object")
    module = _text(data.get("policy_class")).get("__module__", "")
    if not str(module).startswith("stable_baselines3."):
        raise _untrusted(file, f"its policy is of a class of its own, from the module {shown(module)!r}")
    if data.get("use_sde"):
        raise _untrusted(file, "it uses state-dependent exploration (use_sde)")
    settings = _settings(file, _text(data.get("policy_kwargs")))
    try:
        policy_class, layers = _shape(file, tensors, spaces[0])
        _check_widths(policy_class, spaces, layers, tensors)
        policy = policy_class(*spaces, _no_schedule, **layers, **settings)
        policy.load_state_dict(tensors)
    except UntrustedFileError:
        raise
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        raise SpaceMismatchError(
            f"the tensors of {str(file)!r} do not fit SB3's own network for the observation space {spaces[0]} and the "
            f"action space {spaces[1]} of the environment; is it the environment for which the policy was trained? If "
            f"its network is one of its own and you trust the file, say trust=True (--trust). {shown(error, 1000)}"
        ) from error
    return policy


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
        if not torch.isfinite(tensor).all():
            raise ValueError(f"the tensor {name!r} has numbers that are not finite")
    return found


def _check_widths(
    policy_class: type[BasePolicy], spaces: Spaces, layers: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    """Refuse layers that do not follow from each other, before memory is taken for a network of their widths.

    What comes before the first layer depends on the environment's spaces alone: a policy without layers tells it.
    """
    none: dict[str, Any] = {"net_arch": {name: [] for name in layers["net_arch"]}}
    bare: Any = policy_class(*spaces, _no_schedule, **none)
    actor = bare if hasattr(bare, "features_dim") else bare.actor
    actions = math.prod(spaces[1].shape or ())
    for prefix in sorted({name.rsplit(".", 2)[0] for name in tensors if re.fullmatch(_LAYER, name)}):
        inputs = actor.features_dim + (actions if prefix.startswith("critic.") else 0)
        found = {int(m[1]): t for n, t in tensors.items() if (m := re.fullmatch(re.escape(prefix) + _WEIGHT, n))}
        for layer in sorted(found):
            shape = tuple(found[layer].shape)
            if len(shape) != 2 or shape[1] != inputs:
                raise ValueError(f"{prefix}.{layer}.weight has the shape {shape}, expected (any, {inputs})")
            inputs = shape[0]
    by_critic: dict[str, set[tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"critic\.(qf\d+)\.(.*)", name):
            by_critic.setdefault(match[1], set()).add((int(match[2].split(".")[0]), *tensor.shape))
    if any(shapes != by_critic.get("qf0") for shapes in by_critic.values()):
        raise ValueError("its critics are not of the same size")


def _untrusted(file: Path, reason: str) -> UntrustedFileError:
    return UntrustedFileError(
        f"{str(file)!r} cannot be read without running code from it: {reason}. If you trust its author, say trust=True "
        f"(--trust)"
    )


def _text(entry: Any) -> dict[str, Any]:
    """The plain parts of an entry of `data`."""
    return {key: value for key, value in entry.items() if not key.startswith(":")} if isinstance(entry, dict) else {}


def _shape(
    file: Path, tensors: dict[str, torch.Tensor], observation_space: gymnasium.Space[Any]
) -> tuple[type[BasePolicy], dict[str, Any]]:
    """Which of SB3's policies has these tensors, and the widths of its layers."""

    def widths(prefix: str) -> list[int]:
        found = {int(m[1]): len(t) for n, t in tensors.items() if (m := re.fullmatch(prefix + r"\.(\d+)\.weight", n))}
        return [found[layer] for layer in sorted(found)]

    is_dict = isinstance(observation_space, gymnasium.spaces.Dict)
    if "action_net.weight" in tensors:
        layers = {"pi": widths("mlp_extractor.policy_net"), "vf": widths("mlp_extractor.value_net")}
        has_images = any(name.startswith("features_extractor.cnn.") for name in tensors)
        plain = ActorCriticCnnPolicy if has_images else ActorCriticPolicy
        return MultiInputActorCriticPolicy if is_dict else plain, {"net_arch": layers}
    if {"actor.mu.weight", "actor.log_std.weight"} <= set(tensors):
        layers = {"pi": widths("actor.latent_pi"), "qf": widths("critic.qf0")[:-1]}
        critics = sum(bool(re.fullmatch(r"critic\.qf\d+\.0\.weight", name)) for name in tensors)
        return MultiInputPolicy if is_dict else SACPolicy, {"net_arch": layers, "n_critics": critics}
    raise _untrusted(file, "its tensors are not those of PPO, A2C or SAC")


def _settings(file: Path, text: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in text.items():
        name = shown(name)
        if name == "activation_fn":
            match = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", str(value))
            if match is None or match[1] not in _ACTIVATIONS:
                raise _untrusted(file, f"its activation function is {shown(repr(value))}")
            settings[name] = getattr(torch.nn, match[1])
        elif name in _PASSED_ON and isinstance(value, bool):
            settings[name] = value
        elif name not in _IGNORED and value not in (False, None):
            raise _untrusted(file, f"its network was made with {name}={shown(repr(value))}")
    return settings


def _no_schedule(_: float) -> float:
    """The learning rate that SB3's constructors ask for."""
    return 0.0
