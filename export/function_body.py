"""`spec_trt::TreeAttention` in standard operators: what runs where no plugin does.

The body is ONNX's own text form, put together from the parts that a model needs. One function
serves all layers of a model: back ends find a function by its name alone, so variants of it could
not be told apart.
"""

import onnx
import onnx_ir as ir

from spec_trt import names

__all__ = ["OPSET", "tree_attention_function"]

OPSET = 23

# The keys: the buffer, then this pass's own rows.
_KEYS = """
    keys = Concat <axis = 2> (past_key, key)
    values = Concat <axis = 2> (past_value, value)
"""

# The mask's columns are split after the first window - nodes, the tentative rows' own.
_SIZES = """
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    nodes = Shape <start = 2, end = 3> (query)
    past = Shape <start = 2, end = 3> (past_key)
    window = Shape <start = 2, end = 3> (tree_mask)
    tentative = Sub (window, nodes)
"""

# Buffer row r stands at column r - past_lens; below 0 it is committed, from `tentative` on unused.
_VISIBLE = """
    zero_scalar = Constant <value_int = 0> ()
    one_scalar = Constant <value_int = 1> ()
    past_scalar = Squeeze (past, zero)
    row = Range (zero_scalar, past_scalar, one_scalar)
    lens = Unsqueeze (past_lens, one)
    column = Sub (row, lens)
    committed = Less (column, zero)
    drafted = Less (column, tentative)
    last = Sub (window, one)
    column_above = Max (column, zero)
    column_inside = Min (column_above, last)
    column_per_node = Unsqueeze (column_inside, one)
    batch = Shape <start = 0, end = 1> (tree_mask)
    buffer_shape = Concat <axis = 0> (batch, nodes, past)
    buffer_column = Expand (column_per_node, buffer_shape)
    buffer_mask = GatherElements <axis = 2> (tree_mask, buffer_column)
    committed_per_node = Unsqueeze (committed, one)
    drafted_per_node = Unsqueeze (drafted, one)
    drafted_visible = And (drafted_per_node, buffer_mask)
    buffer_visible = Or (committed_per_node, drafted_visible)
    own_visible = Slice (tree_mask, tentative, window, two)
    visible_in_tree = Concat <axis = 2> (buffer_visible, own_visible)
"""

_NO_WINDOW = """
    visible = Unsqueeze (visible_in_tree, one)
"""

# Distances of positions, where a committed row's position is its index.
_WINDOW = """
    node_position = Slice (positions, tentative, window, one)
    column_position = GatherElements <axis = 1> (positions, column_inside)
    buffer_position = Where (committed, row, column_position)
    key_position = Concat <axis = 1> (buffer_position, node_position)
    node_position_per_key = Unsqueeze (node_position, two)
    key_position_per_node = Unsqueeze (key_position, one)
    distance = Sub (node_position_per_key, key_position_per_node)
    limit = Constant <value_int : int = @sliding_window> ()
    not_ahead = GreaterOrEqual (distance, zero)
    not_behind = Less (distance, limit)
    in_window = And (not_ahead, not_behind)
    visible_in_window = And (visible_in_tree, in_window)
    visible = Unsqueeze (visible_in_window, one)
"""

_ATTENTION = """
    out = Attention <scale : float = @scale> (query, keys, values, visible)
"""

# ONNX's Attention has a softcap of its own, but TensorRT's parser refuses it. Query heads that share
# a key head are laid out as rows of one matrix; the scores and their softmax are float32.
_SOFTCAP = """
    shape = Shape (query)
    kv_heads = Shape <start = 1, end = 2> (key)
    minus_one = Constant <value_ints = [-1]> ()
    head_dim = Shape <start = 3, end = 4> (query)
    grouped_shape = Concat <axis = 0> (batch, kv_heads, minus_one, head_dim)
    grouped_query = Reshape (query, grouped_shape)
    keys_transposed = Transpose <perm = [0, 1, 3, 2]> (keys)
    products = MatMul (grouped_query, keys_transposed)
    products_float = Cast <to = 1> (products)
    scale_value = Constant <value_float : float = @scale> ()
    scores = Mul (products_float, scale_value)
    cap = Constant <value_float : float = @softcap> ()
    scores_per_cap = Div (scores, cap)
    scores_bounded = Tanh (scores_per_cap)
    scores_capped = Mul (scores_bounded, cap)
    heads = Shape <start = 1, end = 2> (query)
    total = Add (past, nodes)
    scores_shape = Concat <axis = 0> (batch, heads, nodes, total)
    scores_per_head = Reshape (scores_capped, scores_shape)
    hidden_score = Constant <value_float = -3.0e38> ()
    scores_masked = Where (visible, scores_per_head, hidden_score)
    weights_float = Softmax <axis = -1> (scores_masked)
    weights = CastLike (weights_float, query)
    grouped_weights_shape = Concat <axis = 0> (batch, kv_heads, minus_one, total)
    grouped_weights = Reshape (weights, grouped_weights_shape)
    grouped_out = MatMul (grouped_weights, values)
    out = Reshape (grouped_out, shape)
"""


def tree_attention_function(*, softcap: bool, windowed: bool) -> ir.Function:
    """Write the function for a model whose layers have a softcap, a sliding window, both or neither.

    Args:
        softcap: Whether nodes of the op carry the attribute `softcap`.
        windowed: Whether they carry `sliding_window` and the input `positions`.
    """
    attributes = ["scale", *(["softcap"] if softcap else []), *(["sliding_window"] if windowed else [])]
    inputs = ["query", "key", "value", "past_key", "past_value", "past_lens", "tree_mask"]
    parts = [
        _KEYS,
        _SIZES,
        _VISIBLE,
        _WINDOW if windowed else _NO_WINDOW,
        _SOFTCAP if softcap else _ATTENTION,
    ]
    text = f"""
        <opset_import : ["" : {OPSET}], domain : "{names.OP_DOMAIN}">
        {names.OP_NAME} <{", ".join(attributes)}> ({", ".join(inputs + ["positions"] * windowed)}) => (out)
        {{ {"".join(parts)} }}
    """
    return ir.serde.deserialize_function(onnx.parser.parse_function(text))
