"""Models on the Hugging Face Hub: "hf://owner/name", or "hf://owner/name/file.zip"."""

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from bpsearch.errors import PolicyFileError

PREFIX = "hf://"
_BESIDE = ("vec_normalize.pkl", "vecnormalize.pkl")


def fetch(source: str) -> Path:
    """The file of the policy, in the hub's own cache, with the statistics of its observations beside it.

    Nothing of what is fetched is run: files are read as all others are, and need trust for the same reasons.
    """
    owner, _, rest = source.removeprefix(PREFIX).partition("/")
    name, _, file = rest.partition("/")
    if not owner or not name:
        raise PolicyFileError(
            f"a model on the hub is named hf://owner/name or hf://owner/name/file.zip, got {source!r}"
        )
    repository = f"{owner}/{name}"
    try:
        held = huggingface_hub.list_repo_files(repository)
        model = file or _only_model(source, held)
        wanted = [model, *(f for f in held if Path(f).name in _BESIDE and Path(f).parent == Path(model).parent)]
        paths = [Path(huggingface_hub.hf_hub_download(repository, wanted_file)) for wanted_file in wanted]
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise PolicyFileError(f"cannot fetch {source!r}: {error}") from error
    return paths[0]


def _only_model(source: str, held: list[str]) -> str:
    models = [file for file in held if file.endswith((".zip", ".npz"))]
    top = [file for file in models if "/" not in file] or models
    if len(top) != 1:
        listed = ", ".join(top) or "none"
        raise PolicyFileError(f"{source!r} must hold one .zip or .npz, it holds {listed}; name it, {source}/file.zip")
    return top[0]
