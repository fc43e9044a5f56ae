"""What looking for liars and checking dealers cost: `python -m dresfl.experiments.bench.liars`, JSON on stdout.

`after_last_answer` is what a round waits for in addition to its decoding: the sums of the last answer, and the search
for liars with answers of clients that have not answered together before (their parity check is not in any cache).
`share_of_decode` is that, divided by the time of `decode_answers`, lifting included. All calls are timed in turns.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from dresfl.coding import CodeParameters, error_location
from dresfl.field import Residues, SecretSeed
from dresfl.protocol import Session, decode_answers
from dresfl.protocol.answer_check import AnswerCheck, num_combinations
from dresfl.protocol.dealer_check import check_shares, combine_shares
from dresfl.protocol.slices import slice_rows
from dresfl.storage.share_table import DiskTable

from .stages import Setting, residues
from .timing import Call, interleaved


def measure_answers(session: Session, packed: bool, seconds: float) -> dict[str, Any]:
    """Seconds of the check of a round's answers, compared with their decoding."""
    field, clients = session.field, range(session.answers_needed)
    size, threshold = session.network.num_parameters, session.recovery_threshold
    # all are the same polynomial, a constant: the clients are honest
    answer = residues(field, size)
    answers: list[Residues] = [answer.clone() for _ in clients]
    if packed:
        answers = [field.checked(field.pack(answer), (size,)) for _ in clients]
    check, lied_to = AnswerCheck(session), AnswerCheck(session)
    for client in clients:
        check.add(client, answers[client])
        lied_to.add(client, answers[client])
    for liar in range(session.parameters.max_liars):
        lied_to.add(liar, residues(field, size + 1)[:, 1:])
    coefficients = session.code.sum_decoder(clients[:threshold])

    def last(of: AnswerCheck) -> Call:
        def run() -> None:
            of.add(clients[-1], answers[-1])
            error_location._parity_check.cache_clear()
            of.liars()

        return run

    calls: dict[str, Call] = {
        "decode": lambda: decode_answers(field, coefficients, answers[:threshold]),
        "draw_factors": lambda: AnswerCheck(session),
        "sums_of_an_answer": lambda: check.add(0, answers[0]),
        "after_last_answer": last(check),
        "after_last_answer_with_liars": last(lied_to),
    }
    found = interleaved(calls, seconds)
    result: dict[str, Any] = {name: {"median": timing.median, "best": timing.best} for name, timing in found.items()}
    for end in ("", "_with_liars"):
        last_answer, decode = found[f"after_last_answer{end}"], found["decode"]
        shares = {"median": last_answer.median / decode.median, "best": last_answer.best / decode.best}
        result[f"share_of_decode{end}"] = shares
    return result


def measure_dealers(session: Session, folder: Path) -> dict[str, Any]:
    """Seconds of what one client computes to check all dealers, with their shares on its disk."""
    count, width = slice_rows(session), session.row_width
    secret, coins = SecretSeed.fresh(), os.urandom(32)
    part = session.field.checked(session.field.pack(residues(session.field, count, width)), (count, width))
    table = DiskTable(folder, session, index=0)
    for dealer in range(session.num_clients):
        for first in range(0, session.coded_rows(dealer), count):
            rows = min(count, session.coded_rows(dealer) - first)
            table.put(dealer, first, part if rows == count else part.unpack()[:, :rows])
    share = check_shares(session, secret, [0])[:, 0]
    combine_shares(session, table, 0, coins, share)  # compiles
    started = time.perf_counter()
    for dealer in range(session.num_clients):
        combine_shares(session, table, dealer, coins, share)
    seconds = time.perf_counter() - started
    table.close()
    return {
        "dealers": session.num_clients,
        "bytes": session.num_clients * session.coded_rows(0) * width * len(session.field.moduli) * 3,
        "combinations": int(share.shape[1]),
        "seconds": seconds,
    }


def main() -> None:
    """Measure at MNIST's sizes, or smaller ones, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each kind of answers")
    parser.add_argument("--rows", type=int, default=3000, help="of each of 20 dealers; 0 leaves the dealers out")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; about 1.3 GB by default")
    given = parser.parse_args()
    torch.set_num_threads(1)
    session = Setting(code=CodeParameters(num_clients=17, max_liars=3)).session("cpu")
    result: dict[str, Any] = {
        "parameters": session.network.num_parameters,
        "moduli": len(session.field.moduli),
        "recovery_threshold": session.recovery_threshold,
        "answers": session.answers_needed,
        "combinations": num_combinations(session),
        "packed": measure_answers(session, packed=True, seconds=given.seconds),
        "tensors": measure_answers(session, packed=False, seconds=given.seconds),
    }
    if given.rows:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            twenty = Setting(rows_per_client=given.rows).session("cpu")
            result["dealers"] = measure_dealers(twenty, Path(folder))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
