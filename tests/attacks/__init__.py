"""Attacks on what the open mode gives away, one file for each, with a control that shows how it can fail.

Those on the hidden mode are in the folder `hidden`.

Each attack is a function of what its attacker sees: a transcript, or the session and the messages. The tests that run
with every change use a small setting. `make attacks` runs the full ones, which print a line of JSON each; the lines
are kept in results/attacks.jsonl, and docs/results/attacks.md is made of them.
"""
