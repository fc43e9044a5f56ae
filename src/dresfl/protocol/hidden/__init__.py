"""The hidden mode: weights are shared like rows, and every product is opened under a mask."""
