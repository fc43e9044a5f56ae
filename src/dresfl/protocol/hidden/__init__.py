"""The hidden mode: weights are shared like the rows, and nothing is opened before the end but values under masks."""
