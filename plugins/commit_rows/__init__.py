"""Committing accepted rows: the gather and scatter of a pass's new keys and values, all layers at once."""
