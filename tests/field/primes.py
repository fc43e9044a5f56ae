"""Primes of every size that a residue system may have, and sets of them."""

import flint
from hypothesis import strategies as st

TINY = [p for p in range(5, 256) if flint.fmpz(p).is_prime()]
MIDDLE = [257, 1009, 65521, 65537, 1048573]
LARGE = [4194301, 6780383, 16777183, 16777199, 16777213]

prime_sets = st.one_of(
    st.lists(st.sampled_from(TINY), min_size=1, max_size=5, unique=True),
    st.lists(st.sampled_from(LARGE), min_size=1, max_size=5, unique=True),
    st.lists(st.sampled_from(TINY + MIDDLE + LARGE), min_size=1, max_size=5, unique=True),
).map(lambda primes: tuple(sorted(primes)))
