"""The GPU's masks and noise are the CPU's, bit for bit. Without a GPU, Triton's interpreter runs the kernels."""

import os

import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from dresfl.field import Domain, PublicStream, ResidueField, choose_moduli  # noqa: E402
from dresfl.field.random import uniform_elements  # noqa: E402
from dresfl.kernels import canonical_, chacha20_blocks, chacha_triton, key_words  # noqa: E402
from dresfl.kernels.chacha_triton import rounding_noise, uniform_residues  # noqa: E402

DEVICE = torch.device("cuda" if CUDA else "cpu")
SMALL_PRIMES = tuple(p for p in range(23, 256) if all(p % d for d in range(2, 16)))
ROWS = torch.tensor([0, 1, 5, 2**31 - 1, 2**31, 2**32 - 1, 77])


def some_keys(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (count, 8), generator=generator).to(torch.int32)


def stream_words(keys, rows, count, domain_attempt):
    """The words (R,count) in [0, 2^32) of R streams, by the CPU's block function."""
    blocks = -(-count // 16)
    nonces = torch.zeros((len(rows), 3), dtype=torch.int32)
    nonces[:, 0] = domain_attempt
    nonces[:, 1] = torch.where(rows >= 2**31, rows - 2**32, rows).to(torch.int32)
    counters = torch.arange(blocks, dtype=torch.int32).repeat(len(rows))
    out = chacha20_blocks(keys.repeat_interleave(blocks, 0), counters, nonces.repeat_interleave(blocks, 0))
    return out.view(len(rows), -1)[:, :count].to(torch.int64) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("primes", "dtype"),
    [
        (SMALL_PRIMES[:5], torch.int8),
        (SMALL_PRIMES[-3:], torch.float64),
        (choose_moduli(40, more_than=22), torch.float64),
        (choose_moduli(40, more_than=22, limit=2**22), torch.float64),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 13, 16, 32])
def test_residues_are_the_fields(primes, dtype, count):
    keys = some_keys(len(ROWS), seed=count)
    moduli = torch.tensor(primes, dtype=torch.int32 if dtype == torch.int8 else torch.int64, device=DEVICE)
    residues = uniform_residues(moduli, keys.to(DEVICE), ROWS.to(DEVICE), count, dtype)
    assert residues.dtype == dtype
    assert residues.cpu().to(torch.float64).equal(ResidueField(primes, 1).uniform(keys, ROWS, count))


@pytest.mark.parametrize("count", [7, 16])
def test_words_rejected_many_times_in_a_row(count):
    # these moduli reject a third of all words, where 8-bit primes reject one in 2^24
    moduli = (2**32 // 3 + 3, 2**32 // 3 + 1001)
    keys, rows = some_keys(3, seed=9), ROWS[:3]
    p = torch.tensor(moduli, dtype=torch.float64)
    expected = uniform_elements(p, 1 / p, keys, rows, count)
    words = stream_words(keys, rows, 2 * count, Domain.MASKS * 256).view(3, 2, count)
    assert (words >= 2 * moduli[0]).float().mean() > 0.2
    residues = uniform_residues(
        torch.tensor(moduli, device=DEVICE), keys.to(DEVICE), rows.to(DEVICE), count, torch.float64
    )
    assert residues.cpu().equal(canonical_(expected, p))


@pytest.mark.parametrize("index", [0, 5, 2**31 + 3, 2**32 - 1])
@pytest.mark.parametrize("count", [1, 16, 50])
def test_noise_is_the_public_streams(index, count):
    stream = PublicStream(3)
    expected = stream.uniform(Domain.ROUNDING, index, count)
    key = stream._key.to(DEVICE)
    on_device = torch.tensor(index, device=DEVICE)
    assert rounding_noise(key, Domain.ROUNDING, on_device, count).cpu().equal(expected)


def test_the_mask_domain_is_the_fields():
    assert chacha_triton._MASKS == Domain.MASKS


def test_nothing_asked():
    keys, rows = some_keys(2).to(DEVICE), ROWS[:2].to(DEVICE)
    moduli = torch.tensor([101, 103], device=DEVICE)
    assert uniform_residues(moduli, keys[:0], rows[:0], 5, torch.int8).shape == (2, 0, 5)
    assert rounding_noise(key_words(bytes(32)).to(DEVICE), 3, torch.tensor(0, device=DEVICE), 0).shape == (0,)


def test_wrong_arguments_are_refused():
    keys, rows = some_keys(2), ROWS[:2]
    with pytest.raises(ValueError, match="keys"):
        uniform_residues(torch.tensor([101]), keys.to(torch.int64), rows, 1, torch.int8)
    with pytest.raises(ValueError, match="int8 or float64"):
        uniform_residues(torch.tensor([101]), keys, rows, 1, torch.int32)
    with pytest.raises(ValueError, match="too many"):
        uniform_residues(torch.tensor([101]), keys, rows, 2**35, torch.int8)
    with pytest.raises(ValueError, match="a key"):
        rounding_noise(keys, 3, rows[:1], 1)
    with pytest.raises(ValueError, match="an index"):
        rounding_noise(keys[0], 3, rows, 1)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize(
    ("primes", "dtype"), [(SMALL_PRIMES, torch.int8), (choose_moduli(100, more_than=22), torch.float64)]
)
def test_large_masks(primes, dtype):
    keys, rows = some_keys(300), torch.arange(300) * 1000003
    for count in (784, 999):
        residues = uniform_residues(torch.tensor(primes, device=DEVICE), keys.to(DEVICE), rows.to(DEVICE), count, dtype)
        assert residues.cpu().to(torch.float64).equal(ResidueField(primes, 1).uniform(keys, rows, count))


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_a_graph_goes_on_to_the_next_stream():
    stream, primes = PublicStream(8), choose_moduli(100, more_than=22)
    keys, moduli = some_keys(5), torch.tensor(primes, device=DEVICE)
    key, index = stream._key.to(DEVICE), torch.zeros((), dtype=torch.int64, device=DEVICE)
    device_keys, rows = keys.to(DEVICE), torch.arange(5, device=DEVICE)

    def one_round():
        noise = rounding_noise(key, Domain.ROUNDING, index, 1000)
        residues = uniform_residues(moduli, device_keys, rows, 100, torch.float64)
        index.add_(1)
        rows.add_(5)
        return noise, residues

    one_round()
    index.zero_()
    rows.copy_(torch.arange(5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        noise, residues = one_round()
    for step in range(3):
        graph.replay()
        assert noise.cpu().equal(stream.uniform(Domain.ROUNDING, step, 1000))
        expected = ResidueField(primes, 1).uniform(keys, torch.arange(5) + 5 * step, 100)
        assert residues.cpu().equal(expected)
