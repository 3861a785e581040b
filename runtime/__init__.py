"""Speculation, verification and the KV cache across compiled graphs.

The dimensions that shapes are written with, everywhere:

    batch     sequences in one pass                 heads, kv_heads, head_dim   attention
    nodes     tokens of a tree in one pass          hidden, vocab, layers       the model
    rows      nodes whose logits are asked for      past      rows of the cache buffer
    window    columns of the tree mask              depth     distance of a node from its root
"""
