"""Requests: behaviors that wait for their episodes."""

import dataclasses
import hashlib
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.clock import now
from bpsearch.policies.base import Policy


class Status(StrEnum):
    """What became of a request."""

    OPEN = "open"
    TOLD = "told"
    ABANDONED = "abandoned"


@dataclass(frozen=True, eq=False)
class Request:
    """A behavior policy that waits for its episodes.

    Attributes:
        number: the batch that it is for.
        behavior: the policy to run.
        identity: a hash of study, number and parameters, by which its episodes can be known again.
    """

    number: int
    behavior: Policy
    identity: str


@dataclass(frozen=True, eq=False)
class Entry:
    """What a study remembers of a request.

    Attributes:
        number: of the request and of its batch.
        identity: a hash of study, number and parameters.
        version: how many batches had been told when it was asked: which state of the search made the behavior and
            values the batch.
        asked: when.
        status: what became of it.
        position: how many batches were told before this one; None unless it was told.
        settled: when it was told or abandoned.
        reason: why it was abandoned.
    """

    number: int
    identity: str
    version: int
    asked: str
    status: Status = Status.OPEN
    position: int | None = None
    settled: str | None = None
    reason: str = ""

    @classmethod
    def ask(cls, number: int, parameters: NumpyArray, version: int, study: str) -> "Entry":
        """A new request."""
        data = f"{study} {number} {parameters.dtype.str} ".encode() + np.ascontiguousarray(parameters).tobytes()
        return cls(number, hashlib.blake2b(data, digest_size=16).hexdigest(), version, now())

    def tell(self, position: int) -> "Entry":
        """The entry once its episodes are there."""
        return dataclasses.replace(self, status=Status.TOLD, position=position, settled=now())

    def abandon(self, reason: str) -> "Entry":
        """The entry once nobody waits for it any more."""
        return dataclasses.replace(self, status=Status.ABANDONED, settled=now(), reason=reason)
