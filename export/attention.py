"""One attention function for every decoder-only family: it reads a tree pass instead of a cache.

transformers lets a model's attention be chosen by name (`AttentionInterface`), and hands every
attention module the cache it was called with. `TreePass` stands in for that cache during one
forward, and `tree_attention` is the function registered under `ATTENTION_NAME`. No mask is built
for a name that transformers' mask registry does not know, so the tree's own mask is the only one.
"""

import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spec_trt import names
from spec_trt.errors import ModelError
from spec_trt.plugins.tree_attention.reference import UNLIMITED_WINDOW

__all__ = ["ATTENTION_NAME", "AttentionCall", "TreePass", "register_attention", "symbolic", "tree_attention"]

ATTENTION_NAME = "spec_trt_tree"

# Keyword arguments that change nothing in a causal tree pass; any other one that is set is refused.
_HARMLESS = frozenset({
    "cache", "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "dropout", "is_causal", "max_length_k",
    "max_length_q", "output_attentions", "output_hidden_states", "output_router_logits", "position_ids",
    "return_dict", "use_cache",
})  # fmt: skip

_MEANING = {"s_aux": "attention sinks (s_aux)", "is_causal=False": "attention in both directions (is_causal=False)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The operands of one layer's `TreeAttention`; see `spec_trt.plugins.tree_attention` for the op."""

    query: Tensor
    key: Tensor
    value: Tensor
    past_key: Tensor
    past_value: Tensor
    past_lens: Tensor
    tree_mask: Tensor
    positions: Tensor | None
    scale: float
    softcap: float
    sliding_window: int


Attend = Callable[[AttentionCall], Tensor]


@dataclass(kw_only=True)
class TreePass:
    """One forward over a tree: stands in for transformers' cache, and collects the new rows.

    Attributes:
        past_keys: Per layer, [batch, kv_heads, past, head_dim].
        past_values: Per layer, [batch, kv_heads, past, head_dim].
        past_lens: [batch] int64.
        tree_mask: [batch, nodes, window] bool.
        positions: [batch, window] int64: the position of each column of the mask.
        windowed: Whether any layer has a sliding window; then all layers' ops take `positions`.
        attend: What runs the op: `symbolic` while exporting, a reference elsewhere.
        new_rows: Per layer, the keys and values this pass made: [batch, kv_heads, nodes, head_dim].
    """

    past_keys: Sequence[Tensor]
    past_values: Sequence[Tensor]
    past_lens: Tensor
    tree_mask: Tensor
    positions: Tensor
    windowed: bool
    attend: Attend
    new_rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def update(
        self,
        key: Tensor,
        value: Tensor,
        layer_idx: int,
        *args: object,  # noqa: ARG002 - transformers' signature
        **kwargs: object,  # noqa: ARG002 - transformers' signature
    ) -> tuple[Tensor, Tensor]:
        """Record a layer's new rows and hand them back alone: the op reads the buffer itself."""
        self.new_rows[layer_idx] = (key, value)
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - transformers' signature
        """Nothing is held here: position ids are always given."""
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - transformers' signature
        """Nothing is held here."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:  # noqa: ARG002 - as above
        """Keys and offset of a mask that no one builds."""
        return query_length, 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this the pass that `tree_attention` reads."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


_ACTIVE: contextvars.ContextVar[TreePass] = contextvars.ContextVar("tree_pass")


def register_attention() -> None:
    """Make `ATTENTION_NAME` known to transformers (again and again does no harm)."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, tree_attention)


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,  # noqa: ANN401 - transformers' signature: whatever a family adds
) -> tuple[Tensor, None]:
    """Attend over the active pass's buffer and new rows.

    Args:
        module: The layer's attention module; its `layer_idx` says which buffer to read.
        query: [batch, heads, nodes, head_dim] after RoPE.
        key: [batch, kv_heads, nodes, head_dim], as `TreePass.update` returned it.
        value: As `key`.
        attention_mask: None: an unknown attention name gets no mask.
        scaling: Factor on the scores; 1/sqrt(head_dim) when None.
        softcap: Bound of the scores, softcap * tanh(scores / softcap).
        sliding_window: Positions a query sees, itself included.
        kwargs: What else a family hands over. Anything not known to be harmless is refused.

    Returns:
        [batch, nodes, heads, head_dim], and no attention weights.

    Raises:
        ModelError: A family asks for what the op does not do, such as attention sinks.
    """
    _refuse_unknown(module, attention_mask, kwargs)
    tree_pass = _ACTIVE.get()
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # to mypy a Module's attributes are modules
    out = tree_pass.attend(
        AttentionCall(
            query=query,
            key=key,
            value=value,
            past_key=tree_pass.past_keys[layer],
            past_value=tree_pass.past_values[layer],
            past_lens=tree_pass.past_lens,
            tree_mask=tree_pass.tree_mask,
            positions=tree_pass.positions if tree_pass.windowed else None,
            scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            softcap=float(softcap or 0.0),
            sliding_window=int(sliding_window or UNLIMITED_WINDOW) if tree_pass.windowed else 0,
        )
    )
    return out.transpose(1, 2).contiguous(), None


def _refuse_unknown(module: torch.nn.Module, attention_mask: Tensor | None, kwargs: Mapping[str, Any]) -> None:
    unknown = sorted(name for name, given in kwargs.items() if given is not None and name not in _HARMLESS)
    if attention_mask is not None:
        unknown.append("attention_mask")
    if kwargs.get("is_causal", getattr(module, "is_causal", True)) is False:
        unknown.append("is_causal=False")
    if unknown:
        asked = ", ".join(_MEANING.get(name, name) for name in unknown)
        raise ModelError(f"{type(module).__name__} asks for {asked} in attention, which TreeAttention lacks")


def symbolic(call: AttentionCall) -> Tensor:
    """Write the op into the graph being exported; computes nothing."""
    attributes: dict[str, Any] = {
        "scale": call.scale,
        "plugin_namespace": names.OP_DOMAIN,
        "plugin_version": str(names.OP_VERSION),
    }
    if call.softcap:
        attributes["softcap"] = call.softcap
    inputs = [
        call.query,
        call.key,
        call.value,
        call.past_key,
        call.past_value,
        call.past_lens,
        call.tree_mask,
    ]
    if call.positions is not None:
        attributes["sliding_window"] = call.sliding_window
        inputs.append(call.positions)
    return torch.onnx.ops.symbolic(
        f"{names.OP_DOMAIN}::{names.OP_NAME}",
        inputs,
        attributes,
        dtype=call.query.dtype,
        shape=call.query.shape,
        version=names.OP_VERSION,
    )
