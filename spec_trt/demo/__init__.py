"""The demo, and the draft heads trained for its model."""
