"""Every graph's input and output names, and the tree-attention op's own, once.

The names are the same in a bundle and in an engine directory; `build` never changes them.
Shapes are written with the legend of `spec_trt.runtime`.
"""

from collections.abc import Callable

__all__ = [
    "ARGMAX",
    "BASE",
    "DECODE",
    "DRAFT_LOGITS",
    "EAGLE",
    "EAGLE_FUSE",
    "FEATURES",
    "HIDDEN_STATES",
    "INPUT_IDS",
    "LOGITS",
    "LOGITS_ROWS",
    "LOG_PROBS",
    "MEDUSA",
    "NEXT_FEATURES",
    "OP_DOMAIN",
    "OP_NAME",
    "OP_VERSION",
    "PAST_LENS",
    "POSITION_IDS",
    "PREFILL",
    "PROFILES",
    "TOKEN_IDS",
    "TOP_K",
    "TREE_MASK",
    "LayerName",
    "feature",
    "new_key",
    "new_value",
    "past_key",
    "past_value",
]

BASE = "base"  # the graphs, as a manifest's keys
MEDUSA = "medusa"
EAGLE = "eagle"
EAGLE_FUSE = "eagle_fuse"

DECODE = "decode"  # a TensorRT engine's shape profiles: passes over a tree or a level of a draft,
PREFILL = "prefill"  # and passes over a chunk of the prompt
PROFILES = (DECODE, PREFILL)  # in the engine's order

INPUT_IDS = "input_ids"  # [batch, nodes] int64
POSITION_IDS = "position_ids"  # [batch, nodes] int64
PAST_LENS = "past_lens"  # [batch] int64: committed rows of the cache, per sequence
TREE_MASK = "tree_mask"  # [batch, nodes, window] bool, window >= nodes
LOGITS_ROWS = "logits_rows"  # [batch, rows] int64: the nodes to project, rows may be 0

LOGITS = "logits"  # [batch, rows, vocab]
ARGMAX = "argmax"  # [batch, rows] int64
HIDDEN_STATES = "hidden_states"  # [batch, nodes, hidden], after the final norm

FEATURES = "features"  # [batch, nodes, hidden] into `eagle`, [batch, nodes, k * hidden] into `eagle_fuse`
NEXT_FEATURES = "next_features"  # [batch, nodes, hidden]: what `eagle` takes for the next level
TOKEN_IDS = (
    "token_ids"  # int64 ids of the target, best first: medusa [batch, rows, heads, top_k], eagle [batch, nodes, top_k]
)
LOG_PROBS = "log_probs"  # beside `token_ids`
DRAFT_LOGITS = "draft_logits"  # [batch, nodes, draft_vocab]

TOP_K = 10  # candidates per row that a head's graph gives, where its vocabulary has so many; a tree's ranks are below

OP_DOMAIN = "spec_trt"
OP_NAME = "TreeAttention"
OP_VERSION = 1

LayerName = Callable[[int], str]


def past_key(layer: int) -> str:
    """The cache buffer of a layer's keys: [batch, kv_heads, past, head_dim]."""
    return f"past_key.{layer}"


def past_value(layer: int) -> str:
    """The cache buffer of a layer's values: [batch, kv_heads, past, head_dim]."""
    return f"past_value.{layer}"


def new_key(layer: int) -> str:
    """This pass's rows of a layer's keys, after RoPE: [batch, kv_heads, nodes, head_dim]."""
    return f"new_key.{layer}"


def new_value(layer: int) -> str:
    """This pass's rows of a layer's values: [batch, kv_heads, nodes, head_dim]."""
    return f"new_value.{layer}"


def feature(index: int) -> str:
    """The hidden states entering one of three layers (EAGLE-3): [batch, nodes, hidden]."""
    return f"features.{index}"
