"""What can only be checked on a machine with an NVIDIA GPU: `python -m tests.gpu_check --help`."""
