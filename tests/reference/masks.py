"""Sections 5 and 14 of SPEC.md on masks and checks, in Python integers: families, codewords, combinations."""

import itertools
import math
from typing import Any

from .spec import blinding_word, joined, public_key, sha256, word

__all__ = ["blinding_word"]


def windows(clients: int, threshold: int) -> list[tuple[int, ...]]:
    """The family for T = 1: all cyclic windows of R − 2 clients, each once."""
    found = [tuple(sorted((s + i) % clients for i in range(threshold - 2))) for s in range(clients)]
    return list(dict.fromkeys(found))


def dealers(sets: list[tuple[int, ...]], clients: int) -> list[int]:
    """Who makes the seed of each set: of its holders the one that deals fewest of those before, then the next one."""
    dealt, found = [0] * clients, []
    for s, members in enumerate(sets):
        holders = [(s + i) % clients for i in range(clients) if (s + i) % clients not in members]
        dealer = min(holders, key=dealt.__getitem__)
        dealt[dealer] += 1
        found.append(dealer)
    return found


def codeword(members: tuple[int, ...], client: int, agreement: dict[str, Any], p: int) -> int:
    """c_E at a client's point, modulo p."""
    shards, first = agreement["num_shards"], agreement["num_shards"] + agreement["max_colluders"] + 1

    def product(z: int) -> int:
        return math.prod(z - (first + e) for e in members)

    a = sum(product(k) for k in range(1, shards + 1))
    b = sum(k * product(k) for k in range(1, shards + 1))
    z = first + client
    return product(z) * (b - a * z) % p


def rank(rows: list[list[int]], p: int) -> int:
    """The rank of a matrix modulo p."""
    left, found = [list(row) for row in rows], 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((row for row in left if row[column] % p), None)
        if pivot is None:
            continue
        left.remove(pivot)
        inverse = pow(pivot[column], -1, p)
        left = [[(x - row[column] * inverse * y) % p for x, y in zip(row, pivot, strict=True)] for row in left]
        found += 1
    return found


def is_certified(sets: list[tuple[int, ...]], agreement: dict[str, Any], threshold: int, p: int) -> bool:
    """Whether, for every coalition of T clients, the codewords of the sets that contain it have rank R − 1 − T."""
    clients, colluders = range(agreement["num_clients"]), agreement["max_colluders"]
    for coalition in itertools.combinations(clients, colluders):
        inside = [members for members in sets if set(coalition) <= set(members)]
        values = [[codeword(members, client, agreement, p) for client in clients] for members in inside]
        if rank(values, p) != threshold - 1 - colluders:
            return False
    return True


def combinations(agreement: dict[str, Any], smallest: int, more: int = 1) -> int:
    """t: how many combinations the check of the dealers takes. more: in the hidden mode so many times the chances."""
    clients, hidden = agreement["num_clients"], agreement["num_shards"] + agreement["max_colluders"]
    errors = min(max(agreement["max_liars"], agreement["max_colluders"]), (clients - hidden) // 2)
    q = math.ceil(2**21 / smallest) / 2**21
    t = 1
    while more * math.comb(clients, errors) * (2 * q - q * q) ** t >= 2.0**-40:
        t += 1
    return t


def common_coins(coins: list[bytes]) -> bytes:
    values = {"coin 0": coins[0], "coin 1": coins[1], "…": b"".join(coins[2:])}
    return sha256(joined("common coins", values))


def factors(sharing_digest: bytes, common: bytes, t: int, width: int, rows: int) -> tuple[list[Any], list[Any]]:
    """The column factors (t, width) and the row factors (t, rows) of the check."""
    digest = sha256(joined("check seed", {"sharing digest": sharing_digest, "common coins": common}))
    key = public_key(int.from_bytes(digest, "little"))
    columns = [[word(key, "dealer_check", s, w) >> 11 for w in range(width)] for s in range(t)]
    return columns, [[word(key, "dealer_check", t + s, r) >> 11 for r in range(rows)] for s in range(t)]
