"""Hidden runs from a configuration: engine direct can be stopped and resumed, engine coded begins anew."""

import json
import tomllib
from importlib import resources

import numpy as np
import pytest

from dresfl.data import DataSet
from dresfl.deploy.audit import audit
from dresfl.deploy.toml import parse
from dresfl.errors import CheckpointError, UsageError
from dresfl.experiments.config import RunConfig, load_config
from dresfl.experiments.prepare import build_network
from dresfl.experiments.published import TABLE_DATASETS
from dresfl.experiments.reproduce.matrix import _merged
from dresfl.experiments.training import train
from dresfl.protocol.hidden.plan import make_plan
from dresfl.storage.model_file import read_model
from dresfl.storage.run_folder import read_metrics

SMALL = [
    "rounds=10",
    "evaluate_every=5",
    "checkpoint_every=2",
    "federation.num_clients=5",
    "federation.batch_size=8",
    'model.layers=[{ kind = "dense", units = 10 }]',
    "hidden.validation_every=3",
    "hidden.validation_share=0.1",
]


def small(*more):
    return load_config("digits-hidden", [*SMALL, *more])


def stopping_after(rounds):
    def watch(progress, record, answers):
        if progress.round_number == rounds:
            raise KeyboardInterrupt

    return watch


def test_a_direct_run_that_was_stopped_ends_with_the_same_weights(tmp_path):
    config = small("engine=direct")
    whole = train(config, out=tmp_path / "whole")
    for rounds in (3, 7):
        with pytest.raises(KeyboardInterrupt):
            train(config, out=tmp_path / "stopped", resume=True, watch=stopping_after(rounds))
    resumed = train(config, out=tmp_path / "stopped", resume=True)
    times = {"seconds", "seconds_per_round"}
    assert {k: v for k, v in resumed.items() if k not in times} == {k: v for k, v in whole.items() if k not in times}
    assert list(whole["validation_losses"]) == ["3", "6", "9", "10"]
    lines = [[{**line, "seconds": 0} for line in read_metrics(tmp_path / name)] for name in ("whole", "stopped")]
    assert lines[0] == lines[1]
    model = read_model(tmp_path / "stopped" / "model.safetensors")
    assert model.network.weight_bits == 18


def test_a_coded_run_begins_anew(tmp_path):
    config = small()
    with pytest.raises(KeyboardInterrupt):
        train(config, out=tmp_path / "run", watch=stopping_after(4))
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    summary = train(config, out=tmp_path / "run", resume=True)
    assert (summary["rounds"], summary["engine"], summary["mode"]) == (10, "coded", "hidden")
    rounds = [line["round"] for line in read_metrics(tmp_path / "run") if "test_accuracy" in line]
    assert rounds == [5, 10]
    found = audit(tmp_path / "run")
    assert (found.mode, found.state, found.look_at) == ("hidden", "complete", [])
    assert (found.parameters["recovery_threshold"], found.parameters["answers_needed"]) == (3, 4)


def test_the_engines_train_alike(tmp_path):
    coded, direct = (train(small(f"engine={engine}"), out=tmp_path / engine) for engine in ("coded", "direct"))
    first, second = (list(summary["validation_losses"].values()) for summary in (coded, direct))
    assert first == pytest.approx(second, rel=0.02)


def test_what_does_not_fit_is_refused(tmp_path):
    train(small("engine=direct", "rounds=2"), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="hidden"):
        train(small("engine=direct", "rounds=2", "hidden.kappa=80"), out=tmp_path / "run", resume=True)
    with pytest.raises(UsageError, match="of the open mode"):
        train(small(), out=tmp_path / "other", blinded=True)
    with pytest.raises(UsageError, match="the mode is open"):
        small("mode=open")
    with pytest.raises(UsageError, match="cannot use adam"):
        small("optimizer.method=adam")


def test_a_damaged_checkpoint_is_refused(tmp_path):
    config = small("engine=direct")
    with pytest.raises(KeyboardInterrupt):
        train(config, out=tmp_path / "run", watch=stopping_after(6))
    for name in ("checkpoint.safetensors", "checkpoint-before.safetensors"):
        path = tmp_path / "run" / name
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="damaged"):
        train(config, out=tmp_path / "run", resume=True)


def test_a_summary_says_what_nobody_knows(tmp_path):
    train(small(), out=tmp_path / "run")
    first = next(line for line in read_metrics(tmp_path / "run") if "test_accuracy" in line)
    assert (first["test_accuracy"], first["gradient_norm"]) == (None, None)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["test_accuracy"] is not None


LARGEST = {"fashion": 0.714 * 2.8329, "cifar10": 0.125, "cifar100": 0.125, "svhn": 0.125}  # inputs, about


@pytest.mark.parametrize("dataset", TABLE_DATASETS)
def test_every_recipe_of_the_hidden_mode_has_a_plan_that_vouches_for_its_rate(dataset):
    folder = resources.files("dresfl.experiments.reproduce") / "recipes"
    table = tomllib.loads((folder / f"{dataset}.toml").read_text(encoding="utf-8"))
    common = {key: value for key, value in table.items() if key in RunConfig.__match_args__}
    merged = {"name": dataset, **common}
    for name in ("dresfl", "dresfl-hidden"):
        merged = _merged(merged, table[name])
    config = parse(RunConfig, merged)
    assert (config.mode, config.engine, config.optimizer.method) == ("hidden", "direct", "momentum")
    shape = (28, 28, 1) if config.features.extractor == "" else (25_088,)
    inputs = np.full((1, *shape), LARGEST.get(dataset, 1.0), np.float32)
    data = DataSet(inputs, np.zeros(1, np.int64), config.model.layers[-1].units, dataset, transformed=True)
    network = build_network(config, data)
    plan = make_plan(network, config.federation, config.hidden, config.optimizer, config.rounds)
    assert config.optimizer.learning_rate <= plan.largest_rate
    assert plan.trips == 5


def test_small_inputs_allow_larger_rates_in_the_hidden_mode_alone():
    data = DataSet(np.full((2, 8, 8, 1), 0.25, np.float32), np.arange(2), 10, "small")
    hidden, open_mode = (load_config(name, []) for name in ("digits-hidden", "digits"))
    assert build_network(hidden, data).input_magnitude == -2.0
    assert build_network(open_mode, data).input_magnitude == 0.0
