"""The benchmark of blinding has every key. No timing is asserted: machines differ."""

from dresfl.experiments.bench import masks


def test_expansion():
    found = masks.expansion(6, 5, 2**24, seconds=0.0)
    assert (found["seeds"], found["primes"], found["places"]) == (3, 9, 55050)
    assert found["runs"] >= 3
    assert min(found["seconds"], found["keystream_seconds"], found["ratio_to_keystream"], found["ns_per_word"]) > 0


def test_a_hidden_round():
    found = masks.hidden_round(6, 1, 1, 2, seconds=0.0, values=50)
    assert (found["primes"], found["answers"], found["mask_seeds"], found["zero_words"]) == (7, 3, 5, 5)
    parts = [found[f"{part}_seconds"] for part in ("high", "low", "zeros", "six_zeros", "six_bounded", "ratchet")]
    assert min(parts) > 0
    assert found["round_seconds"] == sum(parts[:3])


def test_certificates():
    large, small = masks.certificates((4,))
    assert (large["clients"], large["threshold"], large["sets"], large["seeds_of_a_client"]) == (4, 3, 4, [3, 3])
    assert small["largest_prime"] == 251
    assert large["seconds"] > 0
    refused = masks.certificate(50, 1, 4, 2, in_bytes=False)
    assert "coalitions" in refused["refused"]
