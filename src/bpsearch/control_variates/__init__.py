"""Control variates: what may be subtracted from an episode's value without bias."""

from bpsearch.control_variates.advantages import TabularAdvantages
from bpsearch.control_variates.base import ControlVariate, Evidence
from bpsearch.control_variates.forecast import Forecast, ForecastModel
from bpsearch.control_variates.modeled import ModeledEstimator
from bpsearch.control_variates.scores import Scores
from bpsearch.control_variates.starts import Starts, StartStates
from bpsearch.control_variates.tabular_model import TabularModel, TabularModelState, Use

__all__ = [
    "ControlVariate",
    "Evidence",
    "Forecast",
    "ForecastModel",
    "ModeledEstimator",
    "Scores",
    "StartStates",
    "Starts",
    "TabularAdvantages",
    "TabularModel",
    "TabularModelState",
    "Use",
]
