"""Latency profiling: what passes and drafts cost on this machine, what real generations gain, and where they meet."""
