"""The ways in which people name a Gymnasium environment, and what can be learned from each."""

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
from gymnasium.vector import VectorEnv

from bpsearch._core.checks import check_type, quote
from bpsearch._core.texts import show
from bpsearch.errors import InvalidArgumentError, UntrustedFileError

Factory = Callable[[], gymnasium.Env[Any, Any]]


class HasSpaces(Protocol):
    """Whatever knows its spaces: a compiled environment, a sampler, a runner."""

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        ...

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        ...


GymnasiumSource = str | Factory | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]


class Make:
    """The factory of an environment's id; it can be sent to another process."""

    def __init__(self, env_id: str, kwargs: dict[str, Any] | None = None) -> None:
        self.env_id = env_id
        self.kwargs = kwargs or {}

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one environment."""
        try:
            return gymnasium.make(self.env_id, **self.kwargs)
        except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as error:
            raise InvalidArgumentError(f"cannot make the environment {self.env_id!r}: {error}") from error


class Checked:
    """A factory that a caller gave; what it makes must be an environment. It goes where the factory itself can go."""

    def __init__(self, factory: Factory) -> None:
        self.factory = factory

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make one environment."""
        return check_type("what the factory makes", self.factory(), gymnasium.Env, "a gymnasium.Env")


def check_imports_nothing(env_id: object) -> None:
    """Refuse an environment that a file names if making it would import what the file chooses.

    Gymnasium imports the module in an id like "module:Id-v0"; whoever can write the file would choose what runs here.

    Raises:
        UntrustedFileError: the id names a module.
    """
    if not isinstance(env_id, str) or ":" in env_id:
        raise UntrustedFileError(
            f"the file names the environment {show(env_id)!r}, and making it would import that module: if you trust "
            f"the file, say trust=True (--trust)"
        )


def factory_of(env: GymnasiumSource, env_kwargs: dict[str, Any] | None = None) -> Factory | None:
    """What makes one more environment like `env`; None for one that is open already."""
    if env_kwargs and not isinstance(env, str):
        raise InvalidArgumentError(f"env_kwargs belong to an environment's id, but env is {env!r}")
    if isinstance(env, str):
        return Make(env, env_kwargs)
    if isinstance(env, gymnasium.Env | VectorEnv):
        return None
    if isinstance(env, Make | Checked):  # as a worker is sent one: an id is still known as such
        return env
    if callable(env):
        return Checked(env)
    raise InvalidArgumentError(
        f"env must be an environment's id, a factory, a gymnasium.Env or a gymnasium.vector.VectorEnv, got {quote(env)}"
    )


def adapt(env: Any) -> Any:
    """What another library's environment is here: a compiled environment, or one of Gymnasium; itself if it is none."""
    from bpsearch.integrations import find_environment

    found = find_environment(env)
    return env if found is None else found


def spaces_of(
    env: GymnasiumSource | HasSpaces, env_kwargs: dict[str, Any] | None = None
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """The observation space and the action space of one environment."""
    env = adapt(env)
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    if hasattr(env, "observation_space") and hasattr(env, "action_space"):
        return env.observation_space, env.action_space
    factory = factory_of(env, env_kwargs)
    assert factory is not None
    made = factory()
    try:
        return made.observation_space, made.action_space
    finally:
        made.close()
