"""One client computes the rows of all others from the weights that the open mode sends it.

python examples/rows_from_weights.py [rounds]

Twenty clients train on digits. Client 0 follows the protocol. It keeps the weights of every round, which it is sent.
It knows which rows each round uses and how the weights are rounded: both come from the public seed. Weights, batches
and the optimiser's settings are all that the attack gets. The true rows serve only to count and to draw what was found.
"""

import math
import sys
import tempfile
from pathlib import Path

import matplotlib
import torch
from torch import Tensor

import dresfl as dr
from dresfl.field.random import Domain

matplotlib.use("Agg")
from matplotlib import pyplot

OPTIMIZER = dr.Optimizer(method="momentum", learning_rate=0.03, schedule="constant")
NETWORK = dr.mlp((64, 32, 32, 10), input_bits=4, weight_bits=10)
PICTURE = "rows-from-weights.png"
EPOCHS, STEP, TOGETHER = 30, 0.005, 20  # of the attack: passes over all rounds, Adam's rate, rounds in one step


def gradients(weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean gradient of T rounds: real weights (T,P), inputs (T,B,64), targets (T,B,10) -> (T,P)."""
    w = [weights[:, p.weight].view(-1, *p.fan) for p in NETWORK.parameters]
    b = [weights[:, p.bias].unsqueeze(1) for p in NETWORK.parameters]
    z1 = inputs @ w[0] + b[0]
    z2 = z1.square() @ w[1] + b[1]
    d3 = (z2.square() @ w[2] + b[2] - targets) * (2 / inputs.shape[1])
    d2 = (d3 @ w[2].mT) * 2 * z2
    d1 = (d2 @ w[1].mT) * 2 * z1
    layers = [(inputs, d1), (z1.square(), d2), (z2.square(), d3)]
    return torch.cat([part for x, d in layers for part in ((x.mT @ d).flatten(1), d.sum(1))], 1)


def noisy_gradients(seen: dr.Transcript) -> tuple[Tensor, Tensor, Tensor, float]:
    """What the weights say of each round's gradient: rounds (T,), weights and gradients (T,P), and their noise."""
    sent = seen.weights()
    integers = torch.stack([sent[number] for number in sorted(sent)])
    moved = (integers[1:] != integers[:-1]).any(1).nonzero().flatten()  # a skipped round changes nothing
    unit = OPTIMIZER.learning_rate * 2**NETWORK.weight_bits
    # The step was rounded up where `chance` lay below its fraction: so it is known to within half a unit.
    chance = seen.session.stream.uniform_of(Domain.ROUNDING, moved, NETWORK.num_parameters)
    velocity = (integers[moved] - integers[moved + 1] - 0.5 + chance) / unit
    gradient = velocity.clone()
    gradient[1:] -= OPTIMIZER.momentum * velocity[:-1]
    noise = math.sqrt((1 + OPTIMIZER.momentum**2) / 12) / unit
    return moved, (integers[moved] / 2**NETWORK.weight_bits).float(), gradient.float(), noise


def compute_rows(seen: dr.Transcript, targets: Tensor, mean: Tensor, spread: Tensor, shift: int = 0) -> Tensor:
    """The rows (m,64) that explain all gradients best, by Adam, if a row has this mean and spread without them.

    shift: added to the rounds' numbers. So it is the control: batches of other rounds.
    """
    rounds, weights, measured, noise = noisy_gradients(seen)
    batch = seen.session.batches(rounds + shift)
    places = torch.tensor([0, *seen.session.client_rows]).cumsum(0)[batch.dealers] + batch.rows  # (T,B)
    rows = mean.clone().requires_grad_()
    adam = torch.optim.Adam([rows], betas=(0.9, 0.99))
    steps = len(rounds) // TOGETHER
    for epoch in range(EPOCHS):
        for step, now in enumerate(torch.randperm(len(rounds))[: steps * TOGETHER].view(-1, TOGETHER)):
            done = (epoch * steps + step) / (EPOCHS * steps)
            adam.param_groups[0]["lr"] = STEP * 0.5 * (1 + math.cos(math.pi * done))
            error = measured[now] - gradients(weights[now], rows[places[now]], targets[places[now]])
            loss = (error / noise).square().sum() + ((rows - mean) / spread).square().sum() / steps
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            rows.data.clamp_(0, 1)
    return rows.detach()


def draw(true: Tensor, mean: Tensor, rows: Tensor, control: Tensor, path: str) -> None:
    """A column for each of some rows: the true one, what was known before, what was computed, and the control."""
    chosen = torch.linspace(0, len(true) - 1, 16).long().tolist()
    lines = {"true rows": true, "known before": mean, "from the weights": rows, "wrong batches": control}
    figure, axes = pyplot.subplots(len(lines), len(chosen), figsize=(9, 2.7))
    for line, (name, images) in zip(axes, lines.items(), strict=True):
        for axis, row in zip(line, chosen, strict=True):
            axis.imshow(images[row].view(8, 8).numpy(), cmap="gray_r", vmin=0, vmax=1)
            axis.axis("off")
        line[0].text(-0.3, 0.5, name, ha="right", va="center", transform=line[0].transAxes, fontsize=9)
    figure.subplots_adjust(left=0.16, right=0.995, top=0.99, bottom=0.01, wspace=0.08, hspace=0.08)
    figure.savefig(path, dpi=100)


def main(rounds: int = 5000) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the matrices are too small for more
    digits = dr.load_dataset("digits")
    clients = dr.partition(digits.train, 20)
    with tempfile.TemporaryDirectory() as folder:
        dr.simulate(
            NETWORK,
            clients,
            rounds=rounds,
            optimizer=OPTIMIZER,
            dropouts=dr.paper_dropouts(20, seed=0),
            threads=1,
            record=folder,
            recorded=["client-0"],
        )
        seen = dr.Transcript(Path(folder) / "transcript" / "client-0.transcript")
        true = torch.cat([torch.as_tensor(inputs).flatten(1) for inputs, _ in clients])
        labels = torch.cat([torch.as_tensor(labels) for _, labels in clients])
        # What the attacker knows before: how digits look, from public ones, and which class each row has.
        public, classes = torch.from_numpy(digits.test.inputs).flatten(1), torch.from_numpy(digits.test.labels)
        mean = torch.stack([public[classes == k].mean(0) for k in range(10)])[labels]
        spread = torch.stack([public[classes == k].std(0) for k in range(10)]).clamp_min(0.03)[labels]
        targets = torch.nn.functional.one_hot(labels, 10).float()
        rows = compute_rows(seen, targets, mean, spread)
        control = compute_rows(seen, targets, mean, spread, shift=2**20)
    draw(true, mean, rows, control, PICTURE)
    for name, guess in {"known before": mean, "from the weights": rows, "control, wrong batches": control}.items():
        nearest = torch.cdist(guess, true).argmin(1)
        count = int((nearest == torch.arange(len(true))).sum())
        print(f"{name}: {count} of {len(true)} rows found (the nearest true row is the right one)")
    print(f"drawn in {PICTURE}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
