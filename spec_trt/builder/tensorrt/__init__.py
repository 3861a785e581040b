"""Engines of TensorRT and TensorRT for RTX."""
