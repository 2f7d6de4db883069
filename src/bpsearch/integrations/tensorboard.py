"""TensorBoard as a tracker."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from bpsearch.integrations.tracking import Tracker


class TensorBoard(Tracker):
    """Writes event files.

    Args:
        folder: where.
    """

    def __init__(self, folder: str | Path) -> None:
        self._writer = SummaryWriter(str(folder))

    def write(self, numbers: dict[str, float], episodes: int) -> None:
        """One scalar each."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, episodes)

    def close(self) -> None:
        """Flush the file."""
        self._writer.close()
