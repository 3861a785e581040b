"""From a checkpoint to a bundle: load a model, write its graph, compare the two."""
