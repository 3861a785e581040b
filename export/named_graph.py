"""What every exported graph is in PyTorch: a module whose inputs and outputs have names."""

from abc import ABC, abstractmethod

from torch import nn

__all__ = ["NamedGraph"]


class NamedGraph(nn.Module, ABC):
    """A module to trace; weights are named after their place in its `model`."""

    model: nn.Module

    @property
    @abstractmethod
    def input_names(self) -> list[str]:
        """The inputs' names, in the order `forward` takes them."""

    @property
    @abstractmethod
    def output_names(self) -> list[str]:
        """The outputs' names, in the order `forward` returns them."""
