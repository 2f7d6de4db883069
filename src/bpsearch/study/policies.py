"""The evaluation policy of a stored study."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.texts import show
from bpsearch.errors import PolicyFileError, StoreError
from bpsearch.policies.base import Policy
from bpsearch.policies.files import of_parts, parts_of
from bpsearch.study.codec import digest


def policy_setting(policy: Policy) -> dict[str, Any]:
    """What tells policies apart: the kind, the spaces, and a digest of all that the policy computes with."""
    texts, _ = parts_of(policy)
    leaves = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(policy)]
    digests = [digest(leaf) for leaf in leaves] + [f"{name} {digest(a)}" for name, a in policy.constants.items()]
    return {
        **texts,
        "observation_space": str(policy.observation_space),
        "action_space": str(policy.action_space),
        "digest": hashlib.blake2b(" ".join(digests).encode(), digest_size=8).hexdigest(),
    }


def policy_kind(settings: Mapping[str, Any]) -> str:
    """Of which kind the policy of a stored study is.

    Raises:
        StoreError: the settings do not say it.
    """
    policy = settings.get("policy")
    kind = policy.get("kind") if isinstance(policy, Mapping) else None
    if not isinstance(kind, str):
        raise StoreError(f"the study does not say of which kind its policy is, got {show(repr(policy))}")
    return kind


def policy_arrays(policy: Policy) -> dict[str, NumpyArray]:
    """What a store keeps of a policy."""
    return parts_of(policy)[1]


def stored_policy(setting: Mapping[str, Any], arrays: Mapping[str, NumpyArray]) -> Policy:
    """The policy of a stored study.

    Raises:
        StoreError: the store has only the parameters of the policy, and it must be given.
    """
    policy_kind({"policy": setting})
    try:
        return of_parts(setting, arrays)
    except PolicyFileError as error:
        raise StoreError(f"the study's policy must be given to open it: {error}") from error
