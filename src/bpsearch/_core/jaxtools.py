"""How the package uses JAX: 64 bit without a global flag, frozen dataclasses as pytrees, NumPy at the edges."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=type)
D = TypeVar("D")


def in_64_bit(function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with JAX's 64-bit types enabled, whatever the process-wide setting is.

    Importance weights are sums of many log-ratios: in 32 bit they lose the digits that the estimate needs.
    Flipping the global flag at import would change the user's own programs, so every public entry point to a
    JAX kernel carries this decorator instead.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapper


_TURN = threading.RLock()


def in_turn(program: Callable[P, R]) -> Callable[P, R]:
    """A compiled function that several threads may call: one of them at a time, each until its result is there.

    XLA runs the parts of a program on one pool of threads, as many as there are cores. A loop whose body has parts of
    its own holds one of those threads while it waits for them: as many such programs as cores, and nobody is left to
    run a part. Whatever loops over steps or solves systems therefore takes turns; no code of users runs meanwhile.
    """

    @functools.wraps(program)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with _TURN:
            result: R = jax.block_until_ready(program(*args, **kwargs))  # type: ignore[no-untyped-call]
            return result

    return wrapper


def pytree(*, static: Iterable[str] = ()) -> Callable[[T], T]:
    """Class decorator: make a frozen dataclass a JAX pytree whose `static` fields are compile-time constants.

    Unflattening bypasses `__init__`, so a class can check its values in `__post_init__` and still travel through
    `jit`, `vmap` and `scan`, where its fields are tracers.
    """
    static_names = tuple(static)

    def register(cls: T) -> T:
        names = tuple(f.name for f in dataclasses.fields(cls) if f.name not in static_names)

        def flatten_with_keys(instance: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
            leaves = [(jax.tree_util.GetAttrKey(name), getattr(instance, name)) for name in names]
            return leaves, tuple(getattr(instance, name) for name in static_names)

        def unflatten(constants: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
            instance: Any = object.__new__(cls)
            for name, value in [*zip(static_names, constants, strict=True), *zip(names, leaves, strict=True)]:
                object.__setattr__(instance, name, value)
            return instance

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten)
        return cls

    return register


def replace(instance: D, **changes: Any) -> D:
    """`dataclasses.replace` for a pytree, without its constructor: the values may be tracers."""
    changed: D = object.__new__(type(instance))
    for field in dataclasses.fields(instance):  # type: ignore[arg-type]
        object.__setattr__(changed, field.name, changes.pop(field.name, getattr(instance, field.name)))
    if changes:
        raise TypeError(f"{type(instance).__name__} has no field {next(iter(changes))!r}")
    return changed


def to_numpy(tree: Any) -> Any:
    """Every array leaf of `tree` as a NumPy array."""
    return jax.tree_util.tree_map(np.asarray, tree)


def at_the_edge(tree: R) -> R:
    """`tree` as NumPy arrays, unless it is being traced: what a public function gives back.

    A 64-bit JAX array that leaves `in_64_bit` would lose its digits in the user's next operation.
    """
    leaves = jax.tree_util.tree_leaves(tree)
    traced: R = tree if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves) else to_numpy(tree)
    return traced
