"""Builds engines from bundles. Dimensions are named as in `spec_trt.runtime`."""
