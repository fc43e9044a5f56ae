"""A training run that was written from SPEC.md's appendix A alone reaches the same weights as the package."""

import json
import re
from typing import Any

import pytest

from commands import Run
from reference.independent_training import Settings, train, weights_sha256
from reference.spec import SPEC

APPENDIX = SPEC[SPEC.index("## Appendix A") :]


def package(dresfl: Run, **settings: Any) -> dict[str, Any]:
    """The summary of `dresfl train digits` with these settings."""
    changes = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
    result = dresfl("train", "digits", *changes, "--json")
    assert result.returncode == 0, result.stderr
    summary: dict[str, Any] = json.loads(result.stdout)
    return summary


def test_twenty_rounds(dresfl: Run) -> None:
    final, skipped = train(Settings(rounds=20))
    found = package(dresfl, rounds=20)
    assert (weights_sha256(final), skipped) == (found["weights_sha256"], found["skipped_rounds"])
    assert f"With 20 rounds it is `{weights_sha256(final)}`" in APPENDIX


def test_adam_with_decay_and_steps(dresfl: Run) -> None:
    same = {"learning_rate": 0.001, "decay_every": 2, "weight_decay": 0.01}
    final, _ = train(Settings(rounds=6, method="adam", schedule="step", **same))
    named = {f"optimizer__{key}": value for key, value in same.items()}
    found = package(dresfl, rounds=6, optimizer__method="adam", optimizer__schedule="step", **named)
    assert weights_sha256(final) == found["weights_sha256"]


def test_clipped_descent_with_shards_and_skipped_rounds(dresfl: Run) -> None:
    final, skipped = train(
        Settings(
            rounds=8,
            method="sgd",
            max_norm=0.5,
            num_shards=2,
            num_clients=30,
            partition="iid",
            seed=5,
            dropout="bernoulli",
            dropout_rate=0.4,
            dropout_seed=3,
        )
    )
    found = package(
        dresfl,
        rounds=8,
        seed=5,
        optimizer__method="sgd",
        optimizer__max_norm=0.5,
        federation__num_shards=2,
        federation__num_clients=30,
        data__partition="iid",
        dropout__model="bernoulli",
        dropout__rate=0.4,
        dropout__seed=3,
    )
    assert (weights_sha256(final), skipped) == (found["weights_sha256"], found["skipped_rounds"])
    assert 0 < skipped < 8


def test_skewed_clients_and_a_constant_rate(dresfl: Run) -> None:
    final, _ = train(Settings(rounds=6, schedule="constant", partition="dirichlet", alpha=0.05, batch_size=48))
    found = package(
        dresfl,
        rounds=6,
        optimizer__schedule="constant",
        data__partition="dirichlet",
        data__alpha=0.05,
        federation__batch_size=48,
    )
    assert weights_sha256(final) == found["weights_sha256"]


@pytest.mark.slow
def test_the_run_of_the_appendix() -> None:
    """The published weights of 200 rounds, by the page alone."""
    final, skipped = train(Settings(rounds=200))
    published = re.search(r"It is `([0-9a-f]{64})`", APPENDIX)
    assert published
    assert weights_sha256(final) == published[1]
    assert (skipped, "Three of the rounds are skipped" in APPENDIX) == (3, True)
