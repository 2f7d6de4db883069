"""What travels to a worker and back: a few numbered episodes of a behavior in a place."""

import faulthandler
import hashlib
import pickle
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.resolve import Factory
from bpsearch.errors import InvalidArgumentError, WorkerError
from bpsearch.policies.base import Policy
from bpsearch.sampling import GymnasiumSampler, sample, stream_size
from bpsearch.sampling.trajectories import Trajectories

PLACES = 4  # that a worker keeps ready
BEHAVIORS = 8  # the same; those of the last batches may still be needed with a lag


@dataclass(frozen=True)
class Place:
    """Where episodes run, in a form that another process can open.

    Attributes:
        env: a compiled environment, or what makes one Gymnasium environment.
        horizon: of a Gymnasium sampler, as for the next.
        num_envs: how many environments a worker runs side by side; None for the default.
    """

    env: CompiledEnv | Factory
    horizon: int | None = None
    num_envs: int | None = None

    def open(self) -> CompiledEnv | GymnasiumSampler:
        """The environment, ready to run; a sampler is to be closed."""
        if isinstance(self.env, CompiledEnv):
            return self.env
        return GymnasiumSampler(self.env, horizon=self.horizon, num_envs=self.num_envs, priced=False)

    def grain(self, repeats: int) -> int:
        """Episodes that cannot be run apart: those of one random stream, or those that share a start."""
        return stream_size(repeats) if isinstance(self.env, CompiledEnv) else repeats


@dataclass(frozen=True)
class Piece:
    """Episodes `first` to `first + episodes − 1` of a batch.

    Attributes:
        batch: number of the batch.
        first: number of the first episode.
        episodes: how many.
    """

    batch: int
    first: int
    episodes: int

    @property
    def numbers(self) -> range:
        """Those of the episodes, in their batch."""
        return range(self.first, self.first + self.episodes)

    @property
    def named(self) -> str:
        """The episodes, for a message."""
        last = self.numbers[-1]
        numbers = f"episode {last}" if self.episodes == 1 else f"episodes {self.first} to {last}"
        return f"{numbers} of batch {self.batch}"


@dataclass(frozen=True)
class Chunk:
    """Episodes of one batch, or of several by the same behavior, with the digests of the bytes of place and behavior.

    Attributes:
        place: digest of the place.
        behavior: digest of the behavior.
        seed: of the study.
        pieces: which episodes of which batches.
        repeats: see `Runner.run`.
        resets: see `Runner.run`.
        time_limit: seconds after which the worker gives up and ends itself; None for no limit.
    """

    place: str
    behavior: str
    seed: int
    pieces: tuple[Piece, ...]
    repeats: int = 1
    resets: int = 0
    time_limit: float | None = None

    @property
    def episodes(self) -> int:
        """How many, of all pieces."""
        return sum(piece.episodes for piece in self.pieces)


@dataclass(frozen=True)
class Answer:
    """What a worker makes of a chunk.

    Attributes:
        episodes: those of each piece, if they could be run.
        error: what was raised in the place of that.
        missing: digests whose bytes the worker does not have; it needs them to begin.
        seconds: that the episodes took, without opening the place.
        together: how many episodes cost about as much as one: fewer in a chunk would save nothing.
    """

    episodes: tuple[Trajectories, ...] | None = None
    error: BaseException | None = None
    missing: tuple[str, ...] = ()
    seconds: float = 0.0
    together: int = 1


def encode(thing: Any, what: str) -> bytes:
    """The bytes of a place or a policy; functions and classes of a script travel whole.

    Raises:
        InvalidArgumentError: it cannot leave this process.
    """
    try:
        data: bytes = cloudpickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
        return data
    except Exception as error:
        raise InvalidArgumentError(
            f"the {what} cannot be sent to workers ({type(error).__name__}: {error}); give one that can be pickled: a "
            f"policy without open files, locks or connections, an environment's id or a factory that makes it; or "
            f"leave out workers"
        ) from error


def digest_of(data: bytes) -> str:
    """A name for some bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Site:
    """One worker's memory: behaviors and open places, the last few of each."""

    def __init__(self) -> None:
        self._behaviors: OrderedDict[str, Policy] = OrderedDict()
        self._places: OrderedDict[str, CompiledEnv | GymnasiumSampler] = OrderedDict()

    def run(self, chunk: Chunk, blobs: Mapping[str, bytes]) -> Answer:
        """Run a chunk. Whatever goes wrong is part of the answer.

        A time limit ends this process if it is passed: a C thread does it, even where an environment holds the
        interpreter's lock.
        """
        try:
            missing = self._missing(chunk, blobs)
            if missing:
                return Answer(missing=missing)
            place = self._place(chunk.place, blobs)
            behavior = self._behavior(chunk.behavior, blobs)
            start = time.perf_counter()
            if chunk.time_limit is not None:
                faulthandler.dump_traceback_later(chunk.time_limit, exit=True, file=2)
            try:
                episodes = tuple(_run(place, behavior, chunk))
            finally:
                if chunk.time_limit is not None:
                    faulthandler.cancel_dump_traceback_later()
            seconds = time.perf_counter() - start
            return Answer(episodes, seconds=seconds, together=getattr(place, "together", 1))
        except Exception as error:
            return Answer(error=_portable(error))

    def close(self) -> None:
        """Close what is open."""
        for place in self._places.values():
            _close(place)
        self._places.clear()

    def _missing(self, chunk: Chunk, blobs: Mapping[str, bytes]) -> tuple[str, ...]:
        wanted = ((chunk.place, self._places), (chunk.behavior, self._behaviors))
        return tuple(digest for digest, kept in wanted if digest not in kept and digest not in blobs)

    def _place(self, digest: str, blobs: Mapping[str, bytes]) -> CompiledEnv | GymnasiumSampler:
        if digest not in self._places:
            self._places[digest] = pickle.loads(blobs[digest]).open()
            while len(self._places) > PLACES:
                _close(self._places.popitem(last=False)[1])
        self._places.move_to_end(digest)
        return self._places[digest]

    def _behavior(self, digest: str, blobs: Mapping[str, bytes]) -> Policy:
        if digest not in self._behaviors:
            self._behaviors[digest] = pickle.loads(blobs[digest])
            while len(self._behaviors) > BEHAVIORS:
                self._behaviors.popitem(last=False)
        self._behaviors.move_to_end(digest)
        return self._behaviors[digest]


_local = threading.local()


def run_chunk(chunk: Chunk, blobs: Mapping[str, bytes]) -> Answer:
    """Run a chunk in whatever thread of whatever process this is called in, which remembers places and behaviors."""
    if not hasattr(_local, "site"):
        _local.site = Site()
    site: Site = _local.site
    return site.run(chunk, blobs)


def _run(place: CompiledEnv | GymnasiumSampler, behavior: Policy, chunk: Chunk) -> list[Trajectories]:
    """The pieces of a chunk: together in a sampler, so that no environment waits for the next batch."""
    numbers: dict[str, Any] = {"seed": chunk.seed, "repeats": chunk.repeats, "resets": chunk.resets}
    if isinstance(place, GymnasiumSampler) and len(chunk.pieces) > 1:
        return place.sample_batches(behavior, [(piece.batch, piece.numbers) for piece in chunk.pieces], **numbers)
    return [
        sample(place, behavior, piece.episodes, batch=piece.batch, first=piece.first, **numbers)
        for piece in chunk.pieces
    ]


def _close(place: CompiledEnv | GymnasiumSampler) -> None:
    if isinstance(place, GymnasiumSampler):
        place.close()


def _portable(error: Exception) -> BaseException:
    """The error as it can be sent, with the worker's own traceback as a note."""
    note = "in a worker:\n" + "".join(traceback.format_exception(error))
    try:
        sent = pickle.loads(pickle.dumps(error))
        same = type(sent) is type(error)
    except Exception:
        same = False
    portable = error if same else WorkerError(f"{type(error).__name__}: {error}")
    portable.__cause__ = portable.__context__ = None
    portable = portable.with_traceback(None)
    portable.add_note(note)
    return portable
