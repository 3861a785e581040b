"""Custom operators: each a NumPy reference that defines it, and what runs it on a GPU."""
