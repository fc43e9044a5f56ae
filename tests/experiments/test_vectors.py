"""The test vectors: the committed file is today's round, an independent reader agrees, and altered ones are caught."""

import copy
import json
from pathlib import Path

import flint
import pytest

from dresfl.errors import DresError, UsageError
from dresfl.experiments.vectors.round_vectors import check_vectors, make_vectors

COMMITTED = Path(__file__).parents[1] / "vectors" / "round.json"


def test_the_committed_vectors_agree():
    assert check_vectors(COMMITTED) > 2000


def test_shares_and_decoding_follow_from_the_file_alone():
    """Rebuilt with python-flint polynomials: shares from rows and masks, the result from answers."""
    file = json.loads(COMMITTED.read_text())
    points = file["data_points"] + file["mask_points"]
    for channel, modulus in enumerate(map(int, file["moduli"])):

        def through(xs: list[int], ys: list[int], modulus: int = modulus) -> flint.nmod_poly:
            total = flint.nmod_poly([0], modulus)
            for x, y in zip(xs, ys, strict=True):
                term = flint.nmod_poly([y % modulus], modulus)
                for other in xs:
                    if other != x:
                        term *= flint.nmod_poly([-other % modulus, 1], modulus)
                        term *= flint.nmod_poly([pow(x - other, -1, modulus)], modulus)
                total += term
            return total

        for dealer, coded in enumerate(file["coded_rows"]):
            width = len(file["inputs"][0][0]) + len(file["targets"][0][0])
            for row, hidden in enumerate(coded):
                for place in range(width):
                    shards = [
                        int((file["inputs"][dealer][original] + file["targets"][dealer][original])[place])
                        for original in hidden
                    ]
                    mask = int(file["masks"][dealer][channel][row][place])
                    polynomial = through(points, [*shards, mask])
                    for receiver, point in enumerate(file["client_points"]):
                        share = int(file["shares"][dealer][receiver][channel][row][place])
                        assert int(polynomial(point)) == share
        survivors = file["survivors"]
        assert len(survivors) == file["recovery_threshold"]
        for place, integer in enumerate(map(int, file["decoded"])):
            answers = [int(file["answers"][j][channel][place]) for j in survivors]
            polynomial = through([file["client_points"][j] for j in survivors], answers)
            assert sum(int(polynomial(b)) for b in file["data_points"]) % modulus == integer % modulus


def test_the_decoded_integers_are_the_plain_gradient():
    """3-2-2 with one square, written out by hand in Python integers over the rows of the batch."""
    file = json.loads(COMMITTED.read_text())
    w = list(map(int, file["weights"]))
    w1, b1, w2, b2 = [w[0:2], w[2:4], w[4:6]], w[6:8], [w[8:10], w[10:12]], w[12:14]
    s0, lw = file["input_bits"], file["weight_bits"]
    s1 = 2 * (s0 + lw)
    out = s1 + lw
    total = [0] * 14
    for dealer, row in file["batch"]:
        for original in file["coded_rows"][dealer][row]:
            x = list(map(int, file["inputs"][dealer][original]))
            y = list(map(int, file["targets"][dealer][original]))
            z = [sum(x[i] * w1[i][h] for i in range(3)) + b1[h] * 2**s0 for h in range(2)]
            f = [sum(z[h] ** 2 * w2[h][c] for h in range(2)) + b2[c] * 2**s1 for c in range(2)]
            d = [2 * (f[c] - y[c] * 2**out) for c in range(2)]
            e = [2 * z[h] * sum(w2[h][c] * d[c] for c in range(2)) for h in range(2)]
            gradient = [x[i] * e[h] for i in range(3) for h in range(2)] + [e[h] * 2**s0 for h in range(2)]
            gradient += [z[h] ** 2 * d[c] for h in range(2) for c in range(2)] + [d[c] * 2**s1 for c in range(2)]
            total = [a + b for a, b in zip(total, gradient, strict=True)]
    assert total == list(map(int, file["decoded"]))


@pytest.mark.parametrize(
    "path",
    [("decoded", 3), ("shares", 2, 1, 0, 0, 4), ("masks", 0, 1, 0, 0), ("weights", 0), ("moduli", 0), ("batch", 1, 1)],
)
def test_one_altered_number_is_named(tmp_path: Path, path: tuple[str | int, ...]):
    altered = copy.deepcopy(json.loads(COMMITTED.read_text()))
    place = altered
    for step in path[:-1]:
        place = place[step]
    was = place[path[-1]]
    place[path[-1]] = str(int(was) + 1) if isinstance(was, str) else was + 1
    file = tmp_path / "altered.json"
    file.write_text(json.dumps(altered))
    with pytest.raises(DresError, match=str(path[0])):
        check_vectors(file)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "other"}', "\x00"])
def test_what_is_not_a_vector_file_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "v.json"
    file.write_text(text)
    with pytest.raises(UsageError):
        check_vectors(file)


def test_missing_and_additional_keys_are_caught(tmp_path: Path):
    file = tmp_path / "v.json"
    for change in ({"shares": None}, {"extra": 1}):
        altered = {**make_vectors(), **change}
        file.write_text(json.dumps({k: v for k, v in altered.items() if v is not None}))
        with pytest.raises(DresError):
            check_vectors(file)
