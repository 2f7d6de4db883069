"""The versions that a result depends on."""

import platform
from importlib import metadata

_PACKAGES = ("bpsearch", "jax", "numpy", "scipy", "gymnasium", "torch", "stable-baselines3")


def versions() -> dict[str, str]:
    """Of Python and of those packages that are installed, by name."""
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
