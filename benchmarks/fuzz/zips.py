"""Changed policy files: npz of bpsearch, and zips of Stable-Baselines3 with pickles that would run code."""

import base64
import io
import json
import pickle
import random
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps
from benchmarks.fuzz.mutations import flip_bytes, mutate, npz
from benchmarks.fuzz.tally import Tally
from bpsearch.policies.files import FORMAT, parts_of

MEGABYTE = 2**20
ALLOWED_GROWTH = 400  # MiB of all runs together


class Bomb:
    """A pickle that leaves a file behind when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def policies() -> list[dict[str, Any]]:
    one, other = (bps.SoftmaxTable(np.array([[0.0, slope]] * 3)) for slope in (1.0, 2.0))
    mixture = bps.Mixture(one, other, np.float64(0.5))
    kept = (bps.shipped_policy("gridworld-early"), bps.shipped_policy("cartpole-swingup"), mixture)
    return [{"format": FORMAT, **texts, **arrays} for texts, arrays in map(parts_of, kept)]


def sb3_members() -> dict[str, bytes]:
    from stable_baselines3 import PPO

    out = io.BytesIO()
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, policy_kwargs={"net_arch": [4]}).save(out)
    with zipfile.ZipFile(out) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def change_zip(members: dict[str, bytes], rng: random.Random, bomb: bytes) -> tuple[bytes, str]:
    members = dict(members)
    data = json.loads(members["data"])
    how = rng.choice(("pickle", "data", "tensors", "claims", "missing", "bytes", "member", "compressed"))
    if how == "pickle":
        encoded = base64.b64encode(bomb).decode()
        target = rng.choice(sorted(data))
        data[target] = {":type:": "<class 'x'>", ":serialized:": encoded}
        if rng.random() < 0.5:
            members["policy.pth"] = bomb
    elif how == "data":
        for _ in range(rng.choice((1, 3))):
            key = rng.choice(sorted(data))
            data[key] = rng.choice(
                [None, 5, "x", [], {}, {"__module__": "os"}, {"activation_fn": "<class 'os.system'>"}]
            )
    elif how == "tensors":
        import torch

        tensors = torch.load(io.BytesIO(members["policy.pth"]), weights_only=True)
        name = rng.choice(sorted(tensors))
        tensors[name] = rng.choice(
            [
                torch.zeros(1).expand(10**6, 10**6),
                torch.full((4, 4), torch.nan),
                torch.zeros(0),
                torch.zeros(()),
                torch.zeros(10**5, 1),
                torch.zeros(4, 4, dtype=torch.complex64),
                torch.zeros(2, 2).to_sparse(),
                "no tensor",
            ]
        )
        if rng.random() < 0.3:
            tensors[f"mlp_extractor.policy_net.{rng.choice([2, 99])}.weight"] = torch.zeros(10**5, 1)
        out = io.BytesIO()
        torch.save(tensors, out)
        members["policy.pth"] = out.getvalue()
    elif how == "missing":
        del members[rng.choice(sorted(members))]
    elif how == "member":
        name = rng.choice(sorted(members))
        members[name] = flip_bytes(members[name], rng)
    if "data" in members and how in ("pickle", "data"):
        members["data"] = json.dumps(data).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED if how == "compressed" else zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content + (bytes(2**28) if how == "compressed" and name == "policy.pth" else b""))
        if how == "claims":
            for info in archive.filelist:
                info.file_size = rng.choice((0, 2**31, 160 * 10**9))
    return flip_bytes(out.getvalue(), rng) if how == "bytes" else out.getvalue(), how


def run(runs: int, seed: int, folder: Path, tally: Tally) -> None:
    import warnings

    warnings.simplefilter("ignore")
    kept, members, owned = policies(), sb3_members(), folder / "owned"
    bomb = pickle.dumps(Bomb(str(owned)))
    at_first = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(runs):
        rng = random.Random(f"{seed} {number}")
        if rng.random() < 0.5:
            arrays = rng.choice(kept)
            changed, how = mutate(arrays, rng) if rng.random() < 0.7 else (arrays, "bytes")
            data = npz(changed, rng)
            file = folder / "p.npz"
            file.write_bytes(flip_bytes(data, rng) if how == "bytes" else data)
            tally.attempt(lambda file=file: bps.load_policy(file).flat, f"run {number} ({how})")  # type: ignore[misc]
        else:
            data, how = change_zip(members, rng, bomb)
            file = folder / "p.zip"
            file.write_bytes(data)
            tally.attempt(lambda file=file: bps.load_sb3(file, "CartPole-v1"), f"run {number} (zip: {how})")  # type: ignore[misc]
        if owned.exists():
            tally.complain("code of the file has run", f"run {number} ({how})")
            owned.unlink()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - at_first) * 1024 // MEGABYTE
    tally.counts[f"MiB of memory more than before (at most {ALLOWED_GROWTH})"] = grown
    if grown > ALLOWED_GROWTH:
        tally.complain(f"memory has grown by {grown} MiB", "all runs")
