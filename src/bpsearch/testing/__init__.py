"""Conformance suites: does what you plug in keep its promises?"""

from bpsearch.testing.enumeration import Enumeration, enumerate_trajectories, random_mdp, random_policy
from bpsearch.testing.journals import check_journal
from bpsearch.testing.rooms import check_control_variate, check_estimator, check_policy, check_runner, check_search

__all__ = [
    "Enumeration",
    "check_control_variate",
    "check_estimator",
    "check_journal",
    "check_policy",
    "check_runner",
    "check_search",
    "enumerate_trajectories",
    "random_mdp",
    "random_policy",
]
