"""What every head in training is to the trainer."""

from abc import abstractmethod

from torch import Tensor, nn

from spec_trt.training.draft_targets import Accuracy

__all__ = ["HeadModule"]


class HeadModule(nn.Module):
    """A head, what it learns from, and its loss.

    Attributes:
        labels: Names what is measured: heads or unrolled steps.
    """

    labels: list[str]

    @abstractmethod
    def forward(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> dict[str, Tensor]:
        """The loss of a batch.

        Args:
            input_ids: [batch, nodes], padded on the right.
            attention_mask: [batch, nodes] bool: false for padding.
            loss_mask: [batch, nodes] bool: the tokens to predict.
            index: [batch]: the sequences' places among all.
        """

    @abstractmethod
    def measure(self, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor, index: Tensor) -> Accuracy:
        """What the head gets right in a batch, for the arguments of `forward`."""
