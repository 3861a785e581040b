"""The rewrites of the graph, one per file; `spec_trt.builder.pipeline` puts them in order."""
