"""Pictures of simulations: rounded segments on a white canvas, in plain NumPy."""

from typing import Any

import numpy as np

Point = tuple[float, float]
Color = tuple[int, int, int]


class Canvas:
    """A picture whose coordinates are those of the simulation: metres, the second axis pointing up."""

    def __init__(self, width: int, height: int, *, left: float, right: float, bottom: float) -> None:
        self._pixel = (right - left) / width
        self._x = left + (np.arange(width) + 0.5) * self._pixel
        self._y = bottom + (np.arange(height)[::-1, None] + 0.5) * self._pixel
        self._colors = np.full((height, width, 3), 255.0)

    def segment(self, start: Point, end: Point, radius: float, color: Color) -> None:
        """Paint all points within `radius` of the segment; its edge fades over one pixel."""
        along = np.subtract(end, start)
        squared_length = float(along @ along)
        x, y = self._x - start[0], self._y - start[1]
        share = np.clip((x * along[0] + y * along[1]) / squared_length, 0.0, 1.0) if squared_length > 0.0 else 0.0
        distance = np.hypot(x - share * along[0], y - share * along[1])
        cover = np.clip((radius - distance) / self._pixel + 0.5, 0.0, 1.0)[..., None]
        self._colors = self._colors * (1.0 - cover) + np.array(color) * cover

    def image(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """(height, width, 3), the picture so far."""
        return np.round(self._colors).astype(np.uint8)
