"""Training of draft heads, on `transformers.Trainer`."""
