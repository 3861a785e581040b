"""The base graph: the whole target model over one tree, as DESIGN's interface has it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spec_trt import names
from spec_trt.export.attention import Attend, TreePass
from spec_trt.export.named_graph import NamedGraph

__all__ = ["BaseGraph", "decoder_layers"]


class BaseGraph(NamedGraph):
    """A causal language model as a function of a tree and a cache buffer.

    The model's own forward runs unchanged; three hooks see to the rest: the input of the lm_head
    is recorded as `hidden_states` and narrowed to `logits_rows`, so whatever the family does after
    the lm_head (scale, softcap) applies to the asked rows alone; the inputs of three layers are
    recorded as EAGLE-3's features when asked for.

    Args:
        model: The model, its attention set to `ATTENTION_NAME`, in eval mode.
        attend: What runs the op (see `TreePass`).
        windowed: Whether any layer has a sliding window.
        feature_layers: The layers whose inputs become `features.{0,1,2}`; none by default.
    """

    model: PreTrainedModel

    def __init__(
        self, model: PreTrainedModel, attend: Attend, *, windowed: bool, feature_layers: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.model = model
        self.attend = attend
        self.windowed = windowed
        self.feature_layers = tuple(feature_layers)

    @property
    def input_names(self) -> list[str]:
        """The inputs' names, in the order `forward` takes them."""
        layers = range(self.model.config.num_hidden_layers)
        buffers = [name(layer) for layer in layers for name in (names.past_key, names.past_value)]
        first = [names.INPUT_IDS, names.POSITION_IDS, names.PAST_LENS, names.TREE_MASK, names.LOGITS_ROWS]
        return [*first, *buffers]

    @property
    def output_names(self) -> list[str]:
        """The outputs' names, in the order `forward` returns them."""
        layers = range(self.model.config.num_hidden_layers)
        rows = [name(layer) for layer in layers for name in (names.new_key, names.new_value)]
        features = [names.feature(index) for index in range(len(self.feature_layers))]
        return [names.LOGITS, names.ARGMAX, names.HIDDEN_STATES, *features, *rows]

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past_lens: Tensor,
        tree_mask: Tensor,
        logits_rows: Tensor,
        past: list[Tensor],
    ) -> list[Tensor]:
        """Run one pass; shapes are those of `spec_trt.names`, and `past` has keys and values in turn."""
        # Tentative columns have no position of their own in this graph. Standing at the root is exact
        # as long as a tree is not deeper than a sliding window: the mask knows ancestors from others.
        tentative = past_lens[:, None].expand(-1, tree_mask.shape[2] - input_ids.shape[1])
        tree_pass = TreePass(
            past_keys=past[0::2],
            past_values=past[1::2],
            past_lens=past_lens,
            tree_mask=tree_mask,
            positions=torch.cat([tentative, position_ids], dim=1),
            windowed=self.windowed,
            attend=self.attend,
        )
        seen: dict[str, Tensor] = {}
        with self._hooks(logits_rows, seen), tree_pass.active():
            logits = self.model(input_ids=input_ids, position_ids=position_ids, cache=tree_pass, use_cache=True).logits
        outputs = {names.LOGITS: logits, names.ARGMAX: logits.argmax(dim=-1), **seen}
        for layer, (key, value) in tree_pass.new_rows.items():
            outputs |= {names.new_key(layer): key, names.new_value(layer): value}
        return [outputs[name] for name in self.output_names]

    @contextmanager
    def _hooks(self, logits_rows: Tensor, seen: dict[str, Tensor]) -> Iterator[None]:
        """Record hidden states and features in `seen`, and project only `logits_rows`."""

        def narrow(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            seen[names.HIDDEN_STATES] = args[0]
            rows = logits_rows[:, :, None].expand(-1, -1, args[0].shape[2])
            return (args[0].gather(1, rows),)

        def record(name: str) -> Callable[..., None]:
            return lambda _, args: seen.__setitem__(name, args[0])

        handles = [self.model.get_output_embeddings().register_forward_pre_hook(narrow)]
        for index, layer in enumerate(self.feature_layers):
            hook = record(names.feature(index))
            handles.append(decoder_layers(self.model)[layer].register_forward_pre_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The model's stack of decoder layers, whatever its family calls it."""
    count = model.config.num_hidden_layers
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count)
