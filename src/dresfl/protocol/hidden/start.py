"""The start of a hidden run: clients sign its digest before any of them answers.

The coordinator relays what the run digest is made of. Alone it could tell two groups of clients two runs, each with
enough answers, and open two models of one sharing; with other sets of excluded dealers, their difference would be about
the rows of one client. So a client answers its first hop only when more than (N + T)/2 clients have signed one digest:
two such majorities have more than T clients in common, one of which is honest and signs one run alone. A client writes
the run down, and counts it, before it signs.
"""


def start_text(run: bytes) -> bytes:
    """What a client signs with the key of its roster entry."""
    return b"dresfl hidden start" + run


def signatures_needed(num_clients: int, max_colluders: int) -> int:
    """More than (N + T)/2.

    >>> signatures_needed(9, 1), signatures_needed(3, 1), signatures_needed(20, 4)
    (6, 3, 13)
    """
    return (num_clients + max_colluders) // 2 + 1
