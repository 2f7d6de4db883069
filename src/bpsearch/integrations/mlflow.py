"""MLflow as a tracker."""

from mlflow.tracking import MlflowClient

from bpsearch.integrations.tracking import Tracker


class MLflow(Tracker):
    """Logs metrics to a run.

    Args:
        tracking_uri: where: a server's address, or a file store, "file:///path".
        experiment: its name; made if there is none.
        run_id: of a run that is there; by default one is made, and ended by `close`.
    """

    def __init__(
        self, tracking_uri: str | None = None, experiment: str = "bpsearch", run_id: str | None = None
    ) -> None:
        self._client = MlflowClient(tracking_uri)
        self._owned = run_id is None
        if run_id is None:
            found = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if found is None else found.experiment_id
            run_id = self._client.create_run(number).info.run_id
        self.run_id = run_id

    def write(self, numbers: dict[str, float], episodes: int) -> None:
        """One metric each."""
        for name, number in numbers.items():
            self._client.log_metric(self.run_id, name, number, step=episodes)

    def close(self) -> None:
        """End the run, if it was made here."""
        if self._owned:
            self._client.set_terminated(self.run_id)
