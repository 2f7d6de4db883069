"""An estimate as a table of its episodes."""

from typing import Any

import numpy as np

from bpsearch.errors import MissingDependencyError
from bpsearch.inference.estimate import Estimate


def to_dataframe(estimate: Estimate) -> Any:
    """See `Estimate.to_dataframe`."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise MissingDependencyError("to_dataframe needs pandas; install it with: pip install pandas") from error
    data, ends = estimate.data, estimate.history.episodes
    columns = {
        "batch": np.searchsorted(ends, np.arange(estimate.episodes), side="right"),
        "return": data.returns,
        "weight": np.exp(data.log_weights),
        "value": data.values,
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(estimate.episodes, name="episode"))
