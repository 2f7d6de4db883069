"""Pages and figures need two packages beside those that everything needs: the extra `report`."""

from importlib.util import find_spec

from bpsearch.errors import MissingDependencyError

PACKAGES = ("jinja2", "matplotlib")


def require_report() -> None:
    """Refuse, with the command that helps, if pages and figures cannot be made: before episodes are run, not after."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"pages and figures need {' and '.join(missing)}; install with: pip install 'bpsearch[report]'"
        )
