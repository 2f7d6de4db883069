"""Errors: one class per cause, all under `BPSearchError`; each message names the object and its value."""


class BPSearchError(Exception):
    """Base of every error that bpsearch raises on purpose."""


class InvalidArgumentError(BPSearchError, ValueError):
    """An argument lies outside the range that its function allows."""


class InvalidTrajectoriesError(BPSearchError, ValueError):
    """A batch of episodes holds a value that no episode can have (NaN, infinite, or of the wrong shape)."""


class SupportError(BPSearchError, ValueError):
    """The behavior policy gives probability 0 to an action that it took or that the evaluation policy takes."""


class SpaceMismatchError(BPSearchError, ValueError):
    """Policy and environment do not speak of the same observations or actions."""


class WeightOverflowError(BPSearchError, ArithmeticError):
    """An importance-weighted value is too large for a 64-bit float."""


class OnPolicyError(BPSearchError, ValueError):
    """An estimator that is unbiased only on-policy was given, or was to be used for, off-policy episodes."""


class BiasedEstimatorError(BPSearchError, ValueError):
    """A biased estimator was used where only an unbiased one makes sense."""


class ModelRequiredError(BPSearchError, ValueError):
    """An estimator with a control variate was used without the model that gives it, or the other way round."""


class DeterministicPolicyError(BPSearchError, ValueError):
    """A method that needs action probabilities was asked to evaluate a policy without action noise."""


class UnknownProbabilitiesError(BPSearchError, ValueError):
    """A method that needs action probabilities was asked to evaluate a policy that does not give them."""


class EpisodeCrashError(BPSearchError, RuntimeError):
    """An environment failed in an episode, and failed again when the episode was replayed with the same seed."""


class WorkerError(BPSearchError, RuntimeError):
    """Workers cannot do what they are for: they do not start, or end again and again in the same episodes."""


class UntrustedFileError(BPSearchError, ValueError):
    """A policy file cannot be read without running code that it contains, and the caller did not say `trust=True`."""


class PolicyFileError(BPSearchError, ValueError):
    """A policy file is missing, damaged, or not what it should be."""


class MissingStatisticsError(BPSearchError, ValueError):
    """A policy was trained with statistics of its observations that are not part of its file and were not found."""


class InvalidActionError(BPSearchError, ValueError):
    """A policy gave an action that the environment does not have."""


class NeverEndingError(BPSearchError, RuntimeError):
    """An episode did not end, and nothing limits its steps."""


class PoorOverlapError(BPSearchError, ValueError):
    """Episodes of another policy say next to nothing about the one that is to be evaluated."""


class MissingDependencyError(BPSearchError, ImportError):
    """An optional package that this feature needs is not installed."""


class RequestError(BPSearchError, ValueError):
    """A request was told or abandoned that the study has not asked, or that is told or abandoned already."""


class StoreLockedError(BPSearchError, RuntimeError):
    """A second writer came to a store, or a reader tried to write."""


class StoreError(BPSearchError, ValueError):
    """A store is missing, damaged, of another program or another version."""


class SettingsMismatchError(BPSearchError, ValueError):
    """A store holds a study with other settings than those with which it was opened."""
