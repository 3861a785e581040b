"""`spec_trt::TreeAttention`: attention of a token tree over a cache buffer and its own rows."""
