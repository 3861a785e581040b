"""Draft heads as PyTorch modules, and the public checkpoint formats they are read from and written to."""
