"""SB3's own networks, built from the shapes of their tensors and the plain text of their settings: no code is run."""

import ast
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium
import torch
from stable_baselines3.common.policies import BasePolicy

from bpsearch.errors import MissingDependencyError

Tensors = Mapping[str, torch.Tensor]
Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]

# The modules in which the policies of SB3 and sb3-contrib are, and their classes for vectors, images and dicts.
_FAMILIES = {
    "stable_baselines3.common.policies": (
        "ActorCriticPolicy",
        "ActorCriticCnnPolicy",
        "MultiInputActorCriticPolicy",
    ),
    "stable_baselines3.sac.policies": ("SACPolicy", "CnnPolicy", "MultiInputPolicy"),
    "stable_baselines3.td3.policies": ("TD3Policy", "CnnPolicy", "MultiInputPolicy"),
    "stable_baselines3.dqn.policies": ("DQNPolicy", "CnnPolicy", "MultiInputPolicy"),
    "sb3_contrib.qrdqn.policies": ("QRDQNPolicy", "CnnPolicy", "MultiInputPolicy"),
    "sb3_contrib.tqc.policies": ("TQCPolicy", "CnnPolicy", "MultiInputPolicy"),
    "sb3_contrib.common.recurrent.policies": (
        "RecurrentActorCriticPolicy",
        "RecurrentActorCriticCnnPolicy",
        "RecurrentMultiInputActorCriticPolicy",
    ),
    "sb3_contrib.common.maskable.policies": (
        "MaskableActorCriticPolicy",
        "MaskableActorCriticCnnPolicy",
        "MaskableMultiInputActorCriticPolicy",
    ),
}
_ACTIVATIONS = ("Tanh", "ReLU", "ELU", "LeakyReLU", "SELU", "GELU", "SiLU", "Mish", "Softplus", "Sigmoid")
_EXTRACTORS = ("FlattenExtractor", "NatureCNN", "CombinedExtractor")
# Settings that do not shape the network, or whose effect is seen in its tensors.
_IGNORED = {
    "net_arch",
    "ortho_init",
    "log_std_init",
    "optimizer_class",
    "optimizer_kwargs",
    "full_std",
    "n_critics",
    "n_quantiles",
    "use_sde",
    "lstm_hidden_size",
    "n_lstm_layers",
    "shared_lstm",
    "enable_critic_lstm",
}
_PASSED_ON = {"normalize_images", "share_features_extractor", "use_expln", "squash_output", "clip_mean"}


SPARE_NUMBERS = 2**22  # that a network may have beyond twice those of its tensors


class NeedsTrustError(Exception):
    """Why the network cannot be built without running code from the file."""


def build(data: Mapping[str, Any], tensors: Tensors, spaces: Spaces) -> BasePolicy:
    """The policy that the file's plain text describes, before its tensors are loaded.

    Raises:
        NeedsTrustError: with the reason.
    """
    module = str(plain_parts(data.get("policy_class")).get("__module__", ""))
    if module not in _FAMILIES:
        raise NeedsTrustError(f"its policy is of a class of its own, from the module {module!r}")
    try:
        family = import_module(module)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "the policy is one of sb3-contrib; install it with: pip install 'bpsearch[sb3-contrib]'"
        ) from error
    of_vectors, of_images, of_dicts = _FAMILIES[module]
    has_images = any("features_extractor.cnn." in name for name in tensors)
    is_dict = isinstance(spaces[0], gymnasium.spaces.Dict)
    policy_class = getattr(family, of_dicts if is_dict else of_images if has_images else of_vectors)
    settings = _settings(plain_parts(data.get("policy_kwargs"))) | _shape(module, tensors, spaces)
    if data.get("use_sde"):
        settings["use_sde"] = True
        noise = tensors.get("log_std", tensors.get("actor.log_std"))
        if noise is not None and "stable_baselines3.common" in module:
            settings["full_std"] = noise.shape[-1] != 1 or spaces[1].shape == (1,)
    check_widths(tensors, spaces)
    if module.split(".")[1] == "common":
        settings["ortho_init"] = False  # of weights that will be replaced
    policy: BasePolicy = policy_class(*spaces, no_schedule, **settings)
    return policy


def check_widths(tensors: Tensors, spaces: Spaces) -> None:
    """Refuse layers that do not follow from each other, before memory is taken for a network of their widths.

    Raises:
        ValueError: a network of these widths would have far more numbers than the tensors.
    """
    layers: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if (match := re.fullmatch(r"(.+)\.(\d+)\.weight", name)) and tensor.ndim == 2:
            layers.setdefault(match[1], {})[int(match[2])] = tensor
    # Without convolutions and memory the first layers take the observations, those of critics the actions as well.
    seen, acted = (int(gymnasium.spaces.flatdim(space)) for space in spaces)
    plain = not any("features_extractor." in name or "lstm_" in name for name in tensors)
    widest = max((len(t) for n, t in tensors.items() if ".linear.0.weight" in n or "lstm_" in n), default=0)
    size = 0
    for prefix, found in layers.items():
        inputs = seen + acted if prefix.startswith("critic") else seen
        for at, layer in enumerate(sorted(found)):
            rows, columns = found[layer].shape
            # With state-dependent noise the last layer of SAC's actor is a list of one.
            known = plain and not (prefix == "actor.mu" and "actor.latent_pi.0.weight" in tensors)
            if columns != inputs and (at or known):
                raise ValueError(f"{prefix}.{layer}.weight has the shape {(rows, columns)}, expected (any, {inputs})")
            size += rows * (columns if at or plain else max(columns, widest))
            inputs = rows
    size += sum(t.shape[-1] * len(t) for n, t in tensors.items() if ".weight_hh_l" in n or n.startswith("lstm_"))
    critics = {n.split(".")[1] for n in tensors if re.match(r"critic\.qf\d+\.", n)}
    shapes = [sorted(tuple(t.shape) for n, t in tensors.items() if n.startswith(f"critic.{c}.")) for c in critics]
    if any(one != shapes[0] for one in shapes):
        raise ValueError("its critics are not of the same size")
    hidden = tensors.get("lstm_actor.weight_hh_l0")
    if hidden is not None and tuple(hidden.shape) != (4 * hidden.shape[-1], hidden.shape[-1]):
        raise ValueError(f"lstm_actor.weight_hh_l0 has the shape {tuple(hidden.shape)}, expected (4 n, n)")
    held = sum(tensor.numel() for tensor in tensors.values())
    if size > 2 * held + SPARE_NUMBERS:
        raise ValueError(f"a network of its widths has {size} numbers or more, but there are only {held}")


def plain_parts(entry: Any) -> dict[str, Any]:
    """The plain parts of an entry of `data`."""
    return {key: value for key, value in entry.items() if not key.startswith(":")} if isinstance(entry, dict) else {}


def _shape(module: str, tensors: Tensors, spaces: Spaces) -> dict[str, Any]:
    """The widths of the layers, and what else the tensors' shapes tell."""

    def widths(prefix: str) -> list[int]:
        found = {int(m[1]): len(t) for n, t in tensors.items() if (m := re.fullmatch(prefix + r"\.(\d+)\.weight", n))}
        return [found[layer] for layer in sorted(found)]

    shape: dict[str, Any] = _extractor(tensors)
    kind = module.split(".")[1]
    if kind == "common":
        shape["net_arch"] = {"pi": widths("mlp_extractor.policy_net"), "vf": widths("mlp_extractor.value_net")}
        if "recurrent" in module:
            layers = [name for name in tensors if re.fullmatch(r"lstm_actor\.weight_hh_l\d+", name)]
            shape["n_lstm_layers"] = len(layers)
            shape["lstm_hidden_size"] = tensors["lstm_actor.weight_hh_l0"].shape[1] if layers else 0
            shape["enable_critic_lstm"] = "lstm_critic.weight_hh_l0" in tensors
            shape["shared_lstm"] = not shape["enable_critic_lstm"] and "critic.weight" not in tensors
    elif kind in ("dqn", "qrdqn"):
        net = "q_net.q_net" if kind == "dqn" else "quantile_net.quantile_net"
        *hidden, outputs = widths(net) or [0]
        shape["net_arch"] = hidden
        if kind == "qrdqn":
            shape["n_quantiles"] = outputs // max(int(getattr(spaces[1], "n", 1)), 1)
    else:
        pi = widths("actor.mu")[:-1] if kind == "td3" else widths("actor.latent_pi")
        *hidden, outputs = widths("critic.qf0") or [0]
        shape["net_arch"] = {"pi": pi, "qf": hidden}
        shape["n_critics"] = sum(bool(re.fullmatch(r"critic\.qf\d+\.0\.weight", name)) for name in tensors)
        if kind == "tqc":
            shape["n_quantiles"] = outputs
    return shape


def _extractor(tensors: Tensors) -> dict[str, Any]:
    """The width of the layer that follows SB3's own convolutions, where there are any."""
    for name, tensor in tensors.items():
        if name.endswith("features_extractor.linear.0.weight"):
            return {"features_extractor_kwargs": {"features_dim": len(tensor)}}
        if re.search(r"features_extractor\.extractors\.[^.]+\.linear\.0\.weight$", name):
            return {"features_extractor_kwargs": {"cnn_output_dim": len(tensor)}}
    return {}


def _settings(text: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in text.items():
        if name == "activation_fn":
            match = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", str(value))
            if match is None or match[1] not in _ACTIVATIONS:
                raise NeedsTrustError(f"its activation function is {value!r}")
            settings[name] = getattr(torch.nn, match[1])
        elif name == "features_extractor_class":
            match = re.fullmatch(r"<class 'stable_baselines3\.common\.torch_layers\.(\w+)'>", str(value))
            if match is None or match[1] not in _EXTRACTORS:
                raise NeedsTrustError(f"its network was made with {name}={value!r}")
        elif name == "features_extractor_kwargs":
            _check_extractor(value)
        elif name in _PASSED_ON and isinstance(value, bool | int | float):
            settings[name] = value
        elif name not in _IGNORED and value not in (False, None):
            raise NeedsTrustError(f"its network was made with {name}={value!r}")
    return settings


def _check_extractor(value: Any) -> None:
    """Accept the widths, which the tensors tell as well, and nothing else."""
    try:
        given = ast.literal_eval(value) if isinstance(value, str) else value or {}
    except (ValueError, SyntaxError):
        given = None
    if not isinstance(given, dict) or not set(given) <= {"features_dim", "cnn_output_dim"}:
        raise NeedsTrustError(f"its network was made with features_extractor_kwargs={value!r}")


def no_schedule(_: float) -> float:
    """The learning rate that SB3's constructors ask for."""
    return 0.0
