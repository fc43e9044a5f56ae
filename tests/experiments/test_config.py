"""TOML in, a checked configuration, TOML out; mistakes are named with what was meant."""

import dataclasses
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dresfl.coding import CodeParameters
from dresfl.deploy.toml import to_toml
from dresfl.errors import DataError, DresError, UsageError
from dresfl.experiments.config import (
    Data,
    Dropout,
    Model,
    RunConfig,
    load_config,
    parse_model,
)
from dresfl.experiments.prepare import prepare
from dresfl.experiments.presets import preset_names
from dresfl.features import Features
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool
from dresfl.optimizers import Optimizer


def written(folder, text):
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


MINIMAL = 'name = "x"\nrounds = 3\n[model]\nlayers = [{ kind = "dense", units = 2 }]\n'


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_under_its_own_name(name):
    config = load_config(name)
    assert config.name == name
    assert isinstance(config.model.layers[-1], Dense)
    assert config.federation.num_clients == (9 if name in ("digits-hidden", "diabetes") else 20)


def test_presets_include_the_first_steps():
    assert {"digits", "mnist", "mnist-conv", "fashion"} <= set(preset_names())


def test_defaults_are_the_papers_where_the_file_is_silent(tmp_path):
    config = load_config(str(written(tmp_path, MINIMAL)))
    assert config == RunConfig("x", 3, model=Model((Dense(2),)))
    assert config.federation == CodeParameters(20, 1, 1, 64)
    assert config.optimizer == Optimizer("sgd", 0.1, "step", 0.65, 1500)


# -- round trip ------------------------------------------------------------------------------------------------

words = st.text(max_size=12)
counts = st.integers(1, 10**6)
positive = st.floats(1e-300, 1e300)
bits = st.none() | st.integers(1, 24)
initials = st.none() | st.floats(0, 10)
layers = st.one_of(
    st.builds(Dense, counts, bits, initials),
    st.builds(Conv2d, counts, counts, counts, st.integers(0, 9), bits, initials),
    st.builds(SumPool, counts, st.none() | counts),
    st.sampled_from([Flatten(), Square(), Quadratic()]),
)
configs = st.builds(
    RunConfig,
    words,
    counts,
    st.integers(0, 2**63 - 1),
    st.sampled_from(["coded", "direct"]),
    counts,
    counts,
    st.integers(0, 64),
    st.builds(Data, words, st.sampled_from(["label-sorted", "dirichlet", "iid"]), positive),
    st.builds(CodeParameters, st.integers(1, 65_535), counts, st.integers(0, 9), counts),
    st.builds(Model, st.lists(layers, min_size=1, max_size=4).map(tuple), counts, counts, st.floats(-9, 9)),
    st.builds(
        Optimizer,
        st.sampled_from(["sgd", "momentum", "adam"]),
        positive,
        st.sampled_from(["constant", "step", "cosine"]),
        st.floats(0.01, 1),
        counts,
        st.floats(0, 0.99),
    ),
    st.builds(Dropout, st.sampled_from(["none", "bernoulli", "paper", "trace"]), st.floats(0, 1), words, counts),
    st.builds(
        Features,
        st.sampled_from(["vgg19", 'a "folder"/own.py:f']),
        words,
        st.integers(32, 4096),
        st.booleans(),
        st.floats(0.01, 4),
        st.booleans(),
        st.floats(-9, 9),
        st.floats(0.01, 1024),
    ),
)


@given(configs)
@example(RunConfig("a😀b", 1, model=Model((Dense(1),))))
@example(RunConfig('"\\\n\t\x00\x7f', 1, model=Model((Dense(1),))))
def test_toml_out_is_read_back_equal(tmp_path_factory, config):
    path = written(tmp_path_factory.mktemp("config"), to_toml(config))
    assert load_config(str(path)) == config


@pytest.mark.parametrize("name", preset_names())
def test_presets_survive_toml(tmp_path, name):
    config = load_config(name)
    text = to_toml(config)
    assert load_config(str(written(tmp_path, text))) == config
    assert to_toml(load_config(str(written(tmp_path, text)))) == text


# -- overrides -------------------------------------------------------------------------------------------------


def test_overrides_reach_every_level():
    config = load_config(
        "digits",
        [
            "rounds=7",
            "name=plain words",
            'data.dataset="mnist"',
            "data.partition=iid",
            "optimizer.learning_rate=1",
            "optimizer.epsilon=1e-3",
            "federation.num_clients = 30",
            'model.layers=[{ kind = "quadratic" }, { kind = "dense", units = 4, init = 1 }]',
            "rounds=8",
        ],
    )
    assert (config.rounds, config.name, config.data) == (8, "plain words", Data("mnist", "iid"))
    assert config.optimizer.learning_rate == 1.0
    assert type(config.optimizer.learning_rate) is float
    assert config.optimizer.epsilon == 1e-3
    assert config.optimizer.method == "momentum"
    assert config.federation.num_clients == 30
    assert config.model.layers == (Quadratic(), Dense(4, init=1.0))
    assert load_config("digits", ["name="]).name == ""


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rounds", "is not key=value"),
        ("=3", "is not key=value"),
        ("rounds.deep=3", "rounds is not a table"),
        ("rounds=many", "rounds = 'many' must be of type int, not str"),
        ("rounds=3.0", "must be of type int, not float"),
        ("rounds=true", "must be of type int, not bool"),
        ("rounds=0", "rounds must be at least 1"),
        ("evaluate_every=-1", "evaluate_every must be at least 1"),
        ("checkpoint_every=0", "checkpoint_every must be at least 1"),
        ("threads=-1", "threads must not be negative"),
        ("name=3", "must be of type str, not int"),
        ("optimizer.learning_rate=fast", "must be of type float, not str"),
        ("optimizer.learning_rate=nan", "must be finite"),
        ("optimizer.learning_rate=inf", "must be finite"),
        ("optimizer.learning_rate=-1", "learning_rate must be positive"),
        ("optimizer.learning_rate=1" + "0" * 400, "optimizer.learning_rate"),
        ("optimizer=3", "optimizer must be a table"),
        ("optimizer.lerning_rate=1", "did you mean 'learning_rate'"),
        ("federation.clients=3", "did you mean 'num_clients'"),
        ("fedration.num_clients=3", "did you mean 'federation'"),
        ("zzz=1", "known: checkpoint_every, data"),
        ("engine=code", "did you mean 'coded'"),
        ("engine=3", "engine = 3 is not known"),
        ("dropout.model=papers", "did you mean 'paper'"),
        ("features.extractor=vgg16", "features.extractor = 'vgg16' is not known"),
        ("features.l2norm=true", "did you mean 'l2_norm'"),
        ("features.l2_norm=1", "must be of type bool, not int"),
        ("features.power=0", "features.power must be positive"),
        ("optimizer.method=[1]", "must be of type str"),
        ("data.partition=sorted", "did you mean 'label-sorted'"),
        ("model.layers=3", "model.layers must be a list of layers"),
        ("model.layers=[]", "the model has no layers"),
        ("model.layers=[3]", "model.layers[0] needs a kind"),
        ("model.layers=[{ units = 3 }]", "model.layers[0] needs a kind"),
        ("model.layers=[{ kind = 3 }]", "model.layers[0] needs a kind"),
        ('model.layers=[{ kind = "dence", units = 3 }]', "did you mean 'dense'"),
        ('model.layers=[{ kind = "dense" }]', "the key 'model.layers[0].units' is missing"),
        ('model.layers=[{ kind = "square" }, { kind = "dense", unit = 3 }]', "unknown key 'model.layers[1].unit'"),
        ('model.layers=[{ kind = "dense", units = "3" }]', "model.layers[0].units = '3' must be of type int"),
        ('model.layers=[{ kind = "dense", units = 3, init = "a" }]', "must be of type float, not str"),
        ('model.layers=[{ kind = "square", units = 3 }]', "unknown key 'model.layers[0].units'"),
    ],
)
def test_a_wrong_override_is_named(override, words):
    with pytest.raises(UsageError) as caught:
        load_config("digits", [override])
    assert words in f"{caught.value} {caught.value.hint}"


# -- files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = ", "is not valid TOML"),
        ("rounds = 3\nrounds = 4", "is not valid TOML"),
        ("rounds = 3", "the key 'name' is missing"),
        ('name = "x"', "the key 'rounds' is missing"),
        ('name = "x"\nrounds = 3', "the model has no layers"),
        (MINIMAL + "[modell]\n", "did you mean 'model'"),
        (MINIMAL + "weight_bits = 10.5\n", "model.weight_bits = 10.5 must be of type int"),
        ("[[name]]\n" + MINIMAL.partition("\n")[2], "must be of type str"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, words):
    with pytest.raises(UsageError) as caught:
        load_config(str(written(tmp_path, text)))
    assert words in f"{caught.value} {caught.value.hint}"


def test_a_missing_or_binary_file_and_an_unknown_preset_are_named(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        load_config(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read"):
        load_config(str(tmp_path / "binary.toml"))
    with pytest.raises(UsageError, match="neither a preset nor a TOML file") as caught:
        load_config("mnits")
    assert caught.value.hint == "did you mean 'mnist'?"


@given(st.text(string.ascii_letters + string.digits + "=.[]{}\"'#_- \n", max_size=40))
def test_any_text_is_a_configuration_or_a_usage_error(tmp_path_factory, text):
    path = written(tmp_path_factory.mktemp("config"), text)
    with pytest.raises(UsageError):
        load_config(str(path))
    try:
        load_config("digits", [text])
    except UsageError:
        return
    assert "=" in text


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config("digits").rounds = 3


# -- models for planning, and configurations that meet their data ----------------------------------------------


def test_parse_model_needs_an_input_shape(tmp_path):
    text = (
        '[model]\ninput_shape = [8, 8, 1]\nweight_bits = 5\nlayers = [{ kind = "conv2d", channels = 2, kernel = 3 }, '
    )
    path = written(tmp_path, text + '{ kind = "flatten" }, { kind = "dense", units = 2 }]\n')
    expected = Network((Conv2d(2, 3), Flatten(), Dense(2)), (8, 8, 1), 6, 5)
    assert parse_model(path, input_bits=6, weight_bits=9) == expected
    for shape in ("", "input_shape = 8", "input_shape = []", "input_shape = [0]", "input_shape = [8.0]"):
        path = written(tmp_path, f'[model]\n{shape}\nlayers = [{{ kind = "dense", units = 2 }}]\n')
        with pytest.raises(UsageError, match="needs input_shape"):
            parse_model(path, input_bits=6, weight_bits=9)
    with pytest.raises(UsageError, match=r"no \[model\] table"):
        parse_model(written(tmp_path, "model = 3"), input_bits=6, weight_bits=9)


def test_images_stay_images_if_the_first_layer_wants_them():
    flat = prepare(load_config("digits"), None).session.network
    assert flat.input_shape == (64,)
    conv = '[{ kind = "conv2d", channels = 2, kernel = 3 }, { kind = "flatten" }, { kind = "dense", units = 10 }]'
    assert prepare(load_config("digits", [f"model.layers={conv}"]), None).session.network.input_shape == (8, 8, 1)


def test_larger_inputs_ask_for_more_bits():
    sessions = [prepare(load_config("digits", [f"model.shift={shift}"]), None).session for shift in (0, -0.5, 3, -4)]
    assert [s.network.input_magnitude for s in sessions] == [0, 0, 2, 2]
    assert sessions[2].needed_bits > sessions[0].needed_bits


@pytest.mark.parametrize(
    ("override", "error", "words"),
    [
        ('model.layers=[{ kind = "dense", units = 9 }]', DataError, "units = 10"),
        ("federation.num_clients=8", UsageError, "need 9 answers"),
        ("federation.num_shards=0", UsageError, "num_shards must be at least 1"),
        ("federation.num_clients=0", UsageError, "num_clients must be at least 1"),
        ("federation.num_clients=-3", DresError, "client"),
        ("federation.batch_size=0", UsageError, "batch_size must be at least 1"),
        ("federation.num_clients=100000", DresError, "client"),
        ("model.input_bits=17", UsageError, "input_bits must lie in 0..16"),
        ("model.input_bits=-1", UsageError, "input_bits must lie in 0..16"),
        ("model.weight_bits=0", UsageError, "weight_bits must lie in 1..24"),
        ("data.dataset=mnits", DresError, "mnist"),
        ("data.alpha=0", DresError, "alpha"),
        ("seed=-1", UsageError, "seed must lie in"),
        ("dropout.rate=1.5", UsageError, "dropout rates must lie in 0..1"),
        ("dropout.trace=nowhere", UsageError, "cannot read the trace"),
    ],
)
def test_a_configuration_that_does_not_fit_its_data_is_refused(override, error, words):
    also = {"data.alpha": "data.partition=dirichlet", "dropout.rate": "dropout.model=bernoulli"}
    also |= {"dropout.trace": "dropout.model=trace"}
    overrides = [override, *(more for key, more in also.items() if override.startswith(key))]
    with pytest.raises(error) as caught:
        prepare(load_config("digits", overrides), None)
    assert words in f"{caught.value} {caught.value.hint}"
