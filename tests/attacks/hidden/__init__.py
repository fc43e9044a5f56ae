"""Attacks on the hidden mode: what they find, and what they would find if one rule were left out."""
