"""The claims of docs/explanation/threat-model.md that are not algebra of the code alone, and the limits it admits."""

import itertools
import pickle
import secrets
from collections import Counter
from pathlib import Path

import pytest
import torch

from dresfl.coding import CodeParameters, LagrangeCode
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.experiments.training import train
from dresfl.field import ResidueField, SecretSeed
from dresfl.model import Dense, Network, Square, mlp
from dresfl.protocol import Client, Session, Training, encode_rows
from dresfl.runtimes.local import LocalFederation

PARAMETERS = CodeParameters(6, batch_size=4)


def answer_distribution(code: LagrangeCode, network: Network, weights: torch.Tensor, row: list[int], client: int):
    """Counts of one client's whole answer over all masks, for one data row (inputs, then targets)."""
    field, p = code.field, code.field.moduli[0]
    seen: Counter[tuple[float, ...]] = Counter()
    shards = field.embed(torch.tensor([row])).unsqueeze(2)  # (1,K=1,B=1,W)
    for mask in itertools.product(range(p), repeat=len(row)):
        masks = field.embed(torch.tensor([mask])).unsqueeze(2)
        share = code.encode(shards, masks, [client])
        size = network.input_size
        answer = network.gradient(field, weights, share[..., :size], share[..., size:])
        seen[tuple((answer.flatten() % p).tolist())] += 1
    return seen


def test_one_answer_has_the_same_distribution_for_all_data():
    field = ResidueField((13,), num_value_moduli=1)
    network = Network((Dense(1), Square(), Dense(1)), (1,), input_bits=0, weight_bits=1)
    code = LagrangeCode(field, num_clients=5, num_shards=1, max_colluders=1, degree=network.gradient_degree)
    weights = torch.tensor([2, 1, -1, 3])
    rows = ([0, 0], [5, 1], [-3, 6])
    distributions = [answer_distribution(code, network, weights, row, client=2) for row in rows]
    assert distributions[0] == distributions[1] == distributions[2]
    assert len(distributions[0]) > 13  # the answer does vary with the mask


def test_without_masks_an_answer_does_depend_on_the_data():
    field = ResidueField((13,), num_value_moduli=1)
    network = Network((Dense(1), Square(), Dense(1)), (1,), input_bits=0, weight_bits=1)
    code = LagrangeCode(field, num_clients=5, num_shards=1, max_colluders=0, degree=network.gradient_degree)
    weights = torch.tensor([2, 1, -1, 3])

    def answer(row: list[int]) -> list[float]:
        share = code.encode(field.embed(torch.tensor([row])).unsqueeze(2), torch.empty((1, 0, 1, 2)), [2])
        return network.gradient(field, weights, share[..., :1], share[..., 1:]).flatten().tolist()

    assert answer([0, 0]) != answer([5, 1])


def small_session(parameters: CodeParameters = PARAMETERS, rows: int = 5, network: Network | None = None) -> Session:
    network = network or mlp((6, 4, 3), input_bits=4, weight_bits=8)
    return Session(network, parameters, (rows,) * parameters.num_clients, seed=3)


def rows_of(session: Session, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randint(0, 17, (session.client_rows[client], session.network.input_size), generator=generator)
    labels = torch.randint(0, session.network.num_classes, (session.client_rows[client],), generator=generator)
    return inputs, torch.nn.functional.one_hot(labels, session.network.num_classes)


def test_every_client_gets_its_own_seed_from_the_operating_system(monkeypatch: pytest.MonkeyPatch):
    drawn: list[bytes] = []
    genuine = secrets.token_bytes

    def watched(count: int | None = None) -> bytes:
        drawn.append(genuine(count))
        return drawn[-1]

    monkeypatch.setattr(secrets, "token_bytes", watched)
    session = small_session()
    config = load_config("digits")
    data = [rows_of(session, i) for i in range(6)]
    for _ in range(2):
        server = Training(session, config.optimizer, rounds=1)
        LocalFederation(session, server, data, prepare(config, None).dropouts, "coded")
    assert len(drawn) == len(set(drawn)) == 12
    assert all(len(key) == 32 for key in drawn)


def test_masks_of_different_rows_channels_and_dealers_all_differ():
    session = small_session(CodeParameters(9, max_colluders=2, batch_size=4))
    keys = torch.stack([SecretSeed.fresh().mask_key(b"") for _ in range(2)]).repeat_interleave(5, 0)
    rows = torch.arange(5).repeat(2)
    masks = session.field.uniform(keys, rows, 2 * session.row_width)
    lines = [tuple(line) for channel in masks.tolist() for line in channel]
    assert len(set(lines)) == len(lines)


def test_equal_rows_get_different_shares():
    session = small_session()
    same = torch.ones((5, 1, session.row_width), dtype=torch.int64)
    shares = encode_rows(session, SecretSeed.fresh().mask_key(b"").expand(5, 8), torch.arange(5), same, [0])
    assert len({tuple(row) for row in shares[0, 0].tolist()}) == 5


def test_a_run_writes_no_secret_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keys = [bytes([65 + i]) * 32 for i in range(20)]
    waiting = iter(keys)
    monkeypatch.setattr(SecretSeed, "fresh", classmethod(lambda cls: cls(next(waiting))))
    config = load_config("digits", ["rounds=3", "checkpoint_every=1", "evaluate_every=1"])
    train(config, out=tmp_path)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len(written) > 10_000
    for key in keys:
        assert key not in written
        assert key.hex().encode() not in written
    inputs, _ = prepare(config, None).client_data()[0]
    for row in inputs[:20]:
        for kind in (torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64):
            assert row.to(kind).numpy().tobytes() not in written


def test_secret_holders_show_and_pickle_nothing():
    session = small_session()
    key = b"secret secret secret secret 1234"
    client = Client(session, 0, SecretSeed(key), *rows_of(session, 0))
    shown = repr(client) + repr(SecretSeed(key)) + repr(client.deal(1))
    assert key.decode() not in shown
    assert "tensor" not in shown
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(client)


def test_limit_n1_the_answers_separate_the_shards():
    session = small_session(CodeParameters(9, num_shards=2, batch_size=4), rows=4)
    field, network, size = session.field, session.network, session.network.input_size
    weights = network.initial_weights(session.stream)
    rows = torch.cat(rows_of(session, 0), 1)[:2].view(1, 2, -1)
    shares = encode_rows(session, SecretSeed.fresh().mask_key(b"").view(1, 8), torch.tensor([0]), rows)
    answers = network.gradient(field, weights, shares[..., :size], shares[..., size:])
    apart = session.code.decode(answers, range(9))
    alone = field.embed(rows[0, 1]).view(-1, 1, 1, session.row_width)
    wanted = network.gradient(field, weights, alone[..., :size], alone[..., size:])[:, 0]
    assert field.lift_exact(apart[:, 1]) == field.lift_exact(wanted)


@pytest.mark.parametrize(("batch", "revealed"), [(3, True), (12, False)])
def test_limit_n2_a_small_batch_reveals_the_span_of_its_inputs(batch: int, revealed: bool):
    network = mlp((10, 5, 3), input_bits=4, weight_bits=10)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 17, (batch, 10), generator=generator)
    targets = torch.nn.functional.one_hot(torch.randint(0, 3, (batch,), generator=generator), 3)
    session = small_session(CodeParameters(6, batch_size=batch), network=network)
    field = session.field
    residues = field.embed(torch.cat((inputs, targets), 1)).unsqueeze(1)
    weights = network.initial_weights(session.stream) + 7
    gradient = field.lift(network.gradient(field, weights, residues[..., :10], residues[..., 10:])[:, 0])
    first = gradient[network.parameters[0].weight].view(10, 5)
    basis, values, _ = torch.linalg.svd(first / first.abs().max())
    basis = basis[:, : int((values > 1e-9).sum())]
    row = inputs[0].double() / inputs[0].double().norm()
    outside = float((row - basis @ (basis.T @ row)).norm())
    assert (outside < 1e-6) == revealed
