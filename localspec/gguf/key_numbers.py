"""Figures: whole numbers in a model file's header, single ones and lists for each layer, within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from localspec.gguf.reader import Numbers, Scalar
from localspec.gguf.tensors import GGUFFault

MAX_LAYERS = 512
MAX_HEADS = 1 << 16
MAX_SIZE = (1 << 31) - 1
MAX_WINDOW = 1 << 24


@dataclass(frozen=True)
class Figures:
    """Whole numbers of a file, by their keys without the architecture."""

    architecture: str
    scalars: Mapping[str, Scalar]
    arrays: Mapping[str, Numbers]

    def one(self, key: str, default: int, low: int, high: int) -> int:
        """A single number, `default` where there is none. Raises GGUFFault outside the bounds."""
        name = f"{self.architecture}.{key}"
        if name in self.arrays:
            raise GGUFFault(f"its {name} is a list, not a whole number")
        if name not in self.scalars:
            return default
        return self._checked(name, self.scalars[name], low, high)

    def required(self, key: str, low: int, high: int) -> None:
        """The same for one that must be there, or a list of such."""
        name = f"{self.architecture}.{key}"
        if name not in self.scalars and name not in self.arrays:
            raise GGUFFault(f"its {name} is missing")
        for value in self.arrays.get(name) or (self.scalars.get(name, low),):
            self._checked(name, value, low, high)

    def each(self, key: str, num_layers: int, default: int, low: int, high: int) -> tuple[int, ...]:
        """The numbers of all layers, which a single one stands for where they are alike."""
        name = f"{self.architecture}.{key}"
        values = self.arrays.get(name)
        if values is None:
            return (self.one(key, default, low, high),) * num_layers
        if len(values) != num_layers:
            raise GGUFFault(f"its {name} has {len(values)} numbers for {num_layers} layers")
        return tuple(self._checked(name, value, low, high, within=values) for value in values)

    def _checked(self, name: str, value: Scalar, low: int, high: int, within: Numbers = ()) -> int:
        shown = short(within) if within else f"{value!r}"[:40]
        if isinstance(value, bool) or not isinstance(value, int):
            raise GGUFFault(f"its {name} is {shown}, not a whole number")
        if not low <= value <= high:
            raise GGUFFault(f"its {name} is {shown}, and {low} to {high} are possible")
        return value


def short(values: Numbers) -> str:
    """A list as a fault shows it."""
    if not values:
        return "missing"
    return str(values[0]) if len({*values}) == 1 else f"{list(values)}"[:80]
