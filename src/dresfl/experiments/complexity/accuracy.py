"""FedAvg and FedAvg with LightSecAgg on the same rows, rounds and dropouts: secure sums cost rounding, and rounds."""

import dataclasses
from typing import Any

import torch

from dresfl.baselines import (
    Answers,
    BaselineTraining,
    Problem,
    SecuredFedAvg,
    SecureSum,
    State,
    initial_state,
    outputs,
    torch_weights,
)
from dresfl.data import flat_inputs
from dresfl.errors import TooFewAnswers
from dresfl.experiments.comparison import Draws
from dresfl.experiments.config import load_config
from dresfl.experiments.prepare import Prepared, prepare
from dresfl.field import PublicStream


def compare_accuracy(rounds: int) -> list[dict[str, Any]]:
    """Test accuracy on digits after `rounds` rounds of the preset, with and without LightSecAgg.

    LightSecAgg needs as many answers as DReS-FL does in this preset. A round with fewer is skipped. A second run of
    FedAvg skips the same rounds: what then differs is the rounding of the sum.
    """
    prepared = prepare(dataclasses.replace(load_config("digits"), rounds=rounds), None)
    config, session = prepared.config, prepared.session
    problem = Problem(session.network, "fedavg", "cross-entropy", config.optimizer, session.num_clients)
    start = initial_state(problem, torch_weights(session.network, PublicStream(config.seed)))
    sizes = [len(part) for part in prepared.parts]
    needed = session.recovery_threshold
    size = session.network.num_parameters
    plan = SecureSum(session.num_clients, session.max_colluders, needed, size, limit=16.0)

    secured, skipped = SecuredFedAvg(problem, start, plan, sizes, seed=config.seed), 0
    inputs = flat_inputs(prepared.split.train).to(torch.float64)
    labels = torch.from_numpy(prepared.split.train.labels)
    targets = torch.nn.functional.one_hot(labels, session.network.num_classes).to(torch.float64)
    for turn in Draws(prepared, "fedavg").turns(range(rounds)):
        counted = torch.tensor(turn.shares, dtype=torch.float64)
        answers = Answers(inputs[turn.rows], targets[turn.rows], torch.tensor(turn.clients), counted)
        try:
            secured.play(turn.rate, answers)
        except TooFewAnswers:
            skipped += 1
    found = [_record(prepared, "lightsecagg", secured.state, skipped)]
    for name, fewest in (("fedavg", 1), ("fedavg, the same rounds skipped", needed)):
        plain = BaselineTraining(problem, start, flat_inputs(prepared.split.train), labels)
        turns = Draws(prepared, "fedavg").turns(range(rounds))
        played = [turn for turn in turns if len(turn.clients) >= fewest]
        plain.play(played)
        found.append(_record(prepared, name, plain.state, rounds - len(played)))
    return found


def _record(prepared: Prepared, method: str, state: State, skipped: int) -> dict[str, Any]:
    test = prepared.split.test
    found = outputs(prepared.session.network, state.weights, flat_inputs(test).to(torch.float64)).argmax(1)
    right = int((found == torch.from_numpy(test.labels)).sum())
    return {
        "method": method,
        "dataset": "digits",
        "rounds": prepared.config.rounds,
        "skipped_rounds": skipped,
        "answers_needed": prepared.session.recovery_threshold,
        "test_accuracy": right / test.num_rows,
    }
