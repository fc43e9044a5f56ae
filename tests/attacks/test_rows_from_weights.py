"""One client alone computes the rows of all others from the weights that it is sent.

A client sees the weights of every round. It knows which rows each round uses, and the noise of the rounding Q: both
come from the public seed. So it knows every update to within one unit of the weights' last place. If it also
knows the optimiser, or guesses it, each update gives a noisy gradient, with a signal far below the noise.
All rounds together determine the rows.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dresfl.api.simulate import simulate
from dresfl.data import load
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import prepare
from dresfl.experiments.training import train
from dresfl.field import Domain
from dresfl.model import mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.storage.transcript import Transcript

from .least_squares import Prior, batch_places, error, found, rows_from_gradients, sample


def gradients_from_weights(
    session: Session, seen: Mapping[int, Tensor], optimizer: Optimizer
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean gradient of each round in which the weights moved, with its error, from the weights alone.

    -> rounds (T,), weights (T,P) real, gradients (T,P), noise (T,1): the standard deviation of their errors.
    For SGD and momentum: W' = W − Q(s·rate·v), v = μ·v_before + g, with s the scale of the weights.
    """
    rounds = max(seen)
    integers = torch.stack([seen[number] for number in range(rounds + 1)])  # (rounds+1,P)
    moved = (integers[1:] != integers[:-1]).any(1).nonzero().flatten()  # a skipped round changes nothing
    scales = session.network.weight_scales
    chance = session.stream.uniform_of(Domain.ROUNDING, moved, len(scales))
    # Q(z) = q says that z lies in [q − 1 + chance, q + chance): take its middle; the error is uniform, of variance 1/12
    steps = integers[moved] - integers[moved + 1] - 0.5 + chance
    rates = torch.tensor([optimizer.rate(number, rounds) for number in moved.tolist()], dtype=torch.float64)
    per_unit = 1 / (rates.unsqueeze(1) * scales)  # (T,P)
    velocities = steps * per_unit
    kept = optimizer.momentum if optimizer.method == "momentum" else 0.0
    gradients, variance = velocities.clone(), per_unit.square()
    gradients[1:] -= kept * velocities[:-1]
    variance[1:] += kept**2 * per_unit[:-1].square()
    weights = integers[moved] / scales
    return moved, weights.float(), gradients.float(), (variance / 12).sqrt().float()


def rows_from_weights(
    transcript: Transcript,
    optimizer: Optimizer,
    targets: Tensor | None,
    prior: Prior,
    *,
    wrong_batches: bool = False,
    epochs: int,
    learning_rate: float,
    together: int = 20,
) -> tuple[Tensor, Tensor]:
    """The attack: rows (m,F) and targets of all clients from one client's transcript.

    wrong_batches: the control. It uses the rows of other rounds, as somebody would who does not know the schedule.
    """
    session = transcript.session
    rounds, weights, gradients, noise = gradients_from_weights(session, transcript.weights(), optimizer)
    places = batch_places(session, rounds + 2**20 if wrong_batches else rounds)
    settings = {"epochs": epochs, "learning_rate": learning_rate, "together": together}
    return rows_from_gradients(session.network, weights, gradients, noise, places, targets, prior, **settings)


# -- short -----------------------------------------------------------------------------------------------------------


def test_one_client_finds_rows_in_a_small_run(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    true, labels = torch.rand((40, 12), generator=generator), torch.randint(0, 3, (40,), generator=generator)
    true = (true * 16).round() / 16
    clients = [(true[i::5], labels[i::5]) for i in range(5)]
    true, labels = (torch.cat(parts) for parts in zip(*clients, strict=True))
    network = mlp((12, 8, 3), input_bits=4, weight_bits=10)
    optimizer = Optimizer("momentum", 0.03, "constant")
    simulate(network, clients, rounds=600, optimizer=optimizer, batch_size=8, record=tmp_path, recorded=["client-2"])
    transcript = Transcript(tmp_path / "transcript" / "client-2.transcript")
    prior = Prior(torch.full_like(true, 0.5), torch.full_like(true, 0.3))
    targets = torch.nn.functional.one_hot(labels, 3)
    settings = {"epochs": 30, "learning_rate": 0.02}
    rows, _ = rows_from_weights(transcript, optimizer, targets, prior, **settings)
    control, _ = rows_from_weights(transcript, optimizer, targets, prior, wrong_batches=True, **settings)
    assert found(rows, true) >= 0.7
    assert found(control, true) <= 0.2
    assert error(rows, true) < 0.15 < error(control, true)


# -- full ------------------------------------------------------------------------------------------------------------


def digits_run(out: Path, party: str, *settings: str) -> tuple[Transcript, Optimizer, Tensor, Tensor]:
    """A real run of the digits preset: what a participant sees, the optimiser, and the truth to compare with."""
    config = load_config("digits", ["evaluate_every=5000", "checkpoint_every=5000", *settings])
    train(config, out=out, recorded=[party])
    inputs, targets = (torch.cat(parts) for parts in zip(*prepare(config, None).client_data(), strict=True))
    return Transcript(out / "transcript" / f"{party}.transcript"), config.optimizer, inputs / 16, targets


def public_digits() -> tuple[Tensor, Tensor]:
    """Rows of the same kind that anybody may have: the test set, which no client trains on."""
    test = load("digits", None).test
    return torch.from_numpy(test.inputs).flatten(1), torch.from_numpy(test.labels)


def shown_digits() -> Tensor:
    """The first training image of each digit (10,64): the ones that are shown in pictures of what attacks find."""
    train = load("digits", None).train
    labels = torch.from_numpy(train.labels)
    first = [int((labels == k).nonzero()[0]) for k in range(10)]
    return torch.from_numpy(train.inputs).flatten(1)[first]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("digits")
    return digits_run(out, "client-0", "rounds=5000", 'optimizer.schedule="constant"')


def with_labels(run, report, setting: str, epochs: int) -> tuple[float, float]:
    """The attack with known labels and its control with wrong batches, reported: how many rows each found."""
    transcript, optimizer, true, targets = run
    prior = Prior.of_classes(*public_digits(), targets.argmax(1))
    settings = {"epochs": epochs, "learning_rate": 0.004}
    rows, _ = rows_from_weights(transcript, optimizer, targets, prior, **settings)
    control, _ = rows_from_weights(transcript, optimizer, targets, prior, wrong_batches=True, **settings)
    report(
        setting=setting,
        found=found(rows, true),
        error=error(rows, true),
        prior_found=found(prior.mean, true),
        prior_error=error(prior.mean, true),
        control="wrong batches",
        control_found=found(control, true),
        sample=sample(shown_digits(), rows, true),
    )
    return found(rows, true), found(control, true)


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_5000_rounds(long_run, report) -> None:
    setting = "digits, 20 clients, 1,437 rows, 5,000 rounds at a constant rate; labels known"
    rows, control = with_labels(long_run, report, setting, epochs=50)
    assert rows >= 0.9
    assert control <= 0.02


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_5000_rounds_labels_unknown(long_run, report) -> None:
    transcript, optimizer, true, targets = long_run
    prior = Prior.of_all(public_digits()[0], len(true))
    settings = {"epochs": 120, "learning_rate": 0.004}
    rows, guess = rows_from_weights(transcript, optimizer, None, prior, **settings)
    report(
        setting="the same, labels unknown",
        found=found(rows, true),
        error=error(rows, true),
        labels_found=float((guess.argmax(1) == targets.argmax(1)).double().mean()),
        prior_found=found(prior.mean, true),
        prior_error=error(prior.mean, true),
    )


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_digits_preset(tmp_path: Path, report) -> None:
    setting = "digits, the preset as it is: 600 rounds, cosine; labels known"
    with_labels(digits_run(tmp_path, "client-0"), report, setting, epochs=300)
