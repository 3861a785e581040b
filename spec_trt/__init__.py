"""Self-speculative decoding for ONNX Runtime and TensorRT: export, build, generate, lossless."""

__version__ = "0.1.0"

__all__ = ["__version__"]
