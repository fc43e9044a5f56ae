"""What is read from a disk: stores, checkpoints, models, settings, data sets."""

import contextlib
import gzip
import hashlib
import io
import json
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

from dresfl.data.idx import read_idx
from dresfl.data.mat import read_mat
from dresfl.data.pickles import read_batch
from dresfl.deploy.rows import read_npz
from dresfl.deploy.settings import AgreementFile, ClientConfig, CoordinatorConfig, load_settings
from dresfl.deploy.toml import load_table, override, parse
from dresfl.experiments.config import load_config
from dresfl.experiments.presets import preset_text
from dresfl.features.cache import read_rows, write_rows
from dresfl.federation import make_session
from dresfl.federation.messages import Delta
from dresfl.files import read_record
from dresfl.model import mlp
from dresfl.storage import ShareStore
from dresfl.storage.answered_rounds import AnswerLog
from dresfl.storage.at_rest import StorageKey, open_file
from dresfl.storage.checkpoint import NEWEST, RunFolder, content_digest
from dresfl.storage.model_file import StoredModel, _canonical, _digest, decode_model, encode_model
from dresfl.storage.run_folder import read_metrics, read_summary, restore
from dresfl.storage.share_table import DiskTable
from dresfl.storage.tensors import decode_tensors, encode_tensors

from .setting import AGREED, ROSTER, SESSION, WEIGHTS, training
from .target import Target, folder, written
from .wire_targets import TEXT

DEFLATE = 1032  # the largest ratio of deflate
INDEX = 2


def _reading(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    return lambda data: read(written(name, data))


# -- storage --------------------------------------------------------------------------------------------------


def storage_targets() -> Iterator[Target]:
    yield from model_targets()
    yield from checkpoint_targets()
    yield from store_targets()
    key = StorageKey(bytes(32))
    sealed = key.seal(b"content", "terms")
    yield Target("sealed file", lambda data: key.open(data, "terms", Path("terms.json")), [sealed])
    yield Target("sealed file, no key", lambda data: open_file(None, data, "terms", Path("terms.json")), [sealed])
    metrics = b'{"round": 20, "test_accuracy": 0.5}\n{"round": 40, "test_accuracy": null}\n'
    lines = lambda path: read_metrics(path.parent)  # noqa: E731
    yield Target("metrics", _reading("metrics/metrics.jsonl", lines), [metrics], each_byte=TEXT)
    summary = lambda path: read_summary(path.parent)  # noqa: E731
    yield Target("summary", _reading("metrics/summary.json", summary), [metrics.splitlines()[0]], each_byte=TEXT)


def model_targets() -> Iterator[Target]:
    whole = encode_model(StoredModel(AGREED.network, WEIGHTS, 0.5, 1.0, ("one", "two")))
    yield Target("model", lambda data: decode_model(data, "a file"), [whole], each_byte=TEXT)
    header = int.from_bytes(whole[:8], "little")
    described = json.loads(json.loads(whole[8 : 8 + header])["__metadata__"]["dresfl"])
    old = described | {"format": "dresfl model 1", "agreement": described, "config": "[model]\nshift = 0.5\n"}
    del old["sha256"]
    samples = [json.dumps(values).encode() for values in (described, described | {"format": "dresfl model 2"}, old)]
    body = whole[8 + header :]
    layout = {name: entry for name, entry in json.loads(whole[8 : 8 + header]).items() if name != "__metadata__"}

    def described_so(data: bytes) -> object:
        """A model whose description is `data`, with the right digest if it is an object."""
        text = data.decode("latin-1")
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(data)
            if isinstance(values, dict):
                text = _canonical(values | {"sha256": _digest(values)} if "sha256" in values else values)
        header = json.dumps({"__metadata__": {"dresfl": text}, **layout}).encode()
        return decode_model(len(header).to_bytes(8, "little") + header + body, "a file")

    yield Target("model description", described_so, samples, each_byte=TEXT)


def checkpoint_targets() -> Iterator[Target]:
    run, state = training(), training().state()
    described = {
        "format": "dresfl checkpoint 3",
        "session": SESSION.session_id.hex(),
        "settings": {},
        "progress": {
            "round_number": 0, "skipped": 0, "alarms": 0, "answers": 0, "accuracy": None,
            "peak_bits": 0.0, "seconds": 0.0, "metrics_bytes": 0,
        },
        "metrics": "",
    }  # fmt: skip

    def encoded(values: dict[str, Any]) -> bytes:
        values["sha256"] = content_digest(state, {key: value for key, value in values.items() if key != "sha256"})
        return b"".join(encode_tensors(state, values))

    def described_so(data: bytes) -> object:
        values = None
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(data)
            data = encoded(values) if isinstance(values, dict) else data
        return read(written(f"checkpoint/{NEWEST}", data))

    def read(path: Path) -> object:
        return restore(run, RunFolder(path.parent))

    whole = encoded(described)
    yield Target("tensors", decode_tensors, [whole], (ValueError,), TEXT)
    yield Target("checkpoint", _reading(f"checkpoint/{NEWEST}", read), [whole], each_byte=TEXT)
    yield Target("checkpoint description", described_so, [json.dumps(described).encode()], each_byte=TEXT)


def store_targets() -> Iterator[Target]:
    path = folder() / "log"
    log = AnswerLog(path, SESSION.session_id)
    for number in range(3):
        log.claim(number, bytes([number]) * 32)
    log.close()
    records = path.read_bytes()
    yield Target(
        "answered rounds", _reading("log", lambda path: AnswerLog(path, SESSION.session_id).close()), [records]
    )
    with ShareStore.open(folder() / "store", b"d" * 32) as store:
        store.table(SESSION, INDEX)
    sharing = folder() / "store" / SESSION.sharing_id.hex()
    for name in ("store.json", "secret"):
        sample = (folder() / "store" / name).read_bytes()
        yield Target(f"store: {name}", _kept_whole(f"store/{name}", lambda path: _opened()), [sample], each_byte=TEXT)
    record = (sharing / "sharing.json").read_bytes()
    yield Target("record", _reading("record", read_record), [record], each_byte=TEXT)
    name = f"store/{sharing.name}/sharing.json"
    yield Target(
        "sharing", _kept_whole(name, lambda path: _opened(), _checked), [record.splitlines()[0]], each_byte=TEXT
    )
    index = (sharing / "shares.index").read_bytes()
    yield Target("share index", _table_with, [index, index[:64] * 5], each_byte=60)


def _checked(line: bytes) -> bytes:
    """A record with these values and its right check."""
    line = line.partition(b"\n")[0] + b"\n"
    return line + hashlib.sha256(line).hexdigest().encode() + b"\n"


def _kept_whole(
    name: str, read: Callable[[Path], object], change: Callable[[bytes], bytes] = lambda data: data
) -> Callable[[bytes], object]:
    """Read a file of the store with other bytes in it; then it is as it was."""

    def decoded(data: bytes) -> object:
        before = (folder() / name).read_bytes()
        try:
            return read(written(name, change(data)))
        finally:
            written(name, before)

    return decoded


def _opened() -> None:
    with ShareStore.open(folder() / "store", b"d" * 32) as store:
        store.held_nonces(lambda rows, nonce: make_session(AGREED, rows, nonce, b""), INDEX)
        store.sharings()
        store.table(SESSION, INDEX)


def _table_with(index: bytes) -> None:
    place = written("table/shares.index", index).parent
    table = DiskTable(place, SESSION, INDEX)
    table.close()


# -- settings -------------------------------------------------------------------------------------------------

_KEYS = """
[keys]
identity = "keys"
certificate = "a.cert.pem"
authority = "ca.cert.pem"
roster = "roster.json"
roster_sha256 = "00"
"""
_COORDINATOR = f"""
name = "run"
agreement = "agreement.toml"
folder = "~/run"
checkpoint_every = 1
{_KEYS}
[network]
listen = "0.0.0.0:7443"
grace = 1.5
on_shortage = "retry"
[optimizer]
method = "adam"
learning_rate = 0.01
"""
_CLIENT = f"""
agreement = "agreement.toml"
folder = "store"
device = "cpu"
{_KEYS}
[network]
coordinator = "example:7443"
[data]
file = "rows.npz"
"""
_AGREEMENT = """
rounds = 50
seed = 3
mode = "open"
rows_can_be_computed = "accepted"
[model]
layers = [{ kind = "dense", units = 3 }, { kind = "square" }, { kind = "dense", units = 2 }]
input_shape = [3]
input_bits = 3
[federation]
max_colluders = 1
batch_size = 4
"""
_IMAGES = """
rounds = 9
[model]
layers = [{ kind = "conv2d", channels = 2, kernel = 3 }, { kind = "sumpool", kernel = 2 }, { kind = "flatten" },
    { kind = "quadratic" }, { kind = "dense", units = 2 }]
input_shape = [8, 8, 1]
"""


def settings_targets() -> Iterator[Target]:
    for name, kind, text in (("fed.toml", CoordinatorConfig, _COORDINATOR), ("site.toml", ClientConfig, _CLIENT)):
        read = lambda path, kind=kind: load_settings(kind, path)  # noqa: E731
        yield Target(name, _reading(name, read), [text.encode()], each_byte=TEXT)
    agreed = lambda path: parse(AgreementFile, load_table(path)).with_roster(ROSTER)  # noqa: E731
    samples = [_AGREEMENT.encode(), _IMAGES.encode()]
    yield Target("agreement.toml", _reading("agreement.toml", agreed), samples, each_byte=TEXT)
    configured = lambda path: load_config(str(path))  # noqa: E731
    samples = [preset_text(name).encode() for name in ("digits", "mnist")]
    yield Target("config.toml", _reading("config.toml", configured), samples, each_byte=TEXT)
    yield Target(
        "setting of a key", _set, [b"optimizer.method=adam", b"rounds=10", b"a.b=[1, {c = 2}]"], each_byte=TEXT
    )


def _set(data: bytes) -> None:
    override({"optimizer": {"method": "sgd"}}, [data.decode("utf-8", "replace")])


# -- data -----------------------------------------------------------------------------------------------------


def data_targets() -> Iterator[Target]:
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1])
    yield Target("idx", _reading("labels", lambda path: read_idx(path, 1)), [labels])
    packed = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 16, 0]) + bytes(4096))
    yield Target("idx, gzip", _reading("labels.gz", lambda path: read_idx(path, 1)), [packed], each_byte=2 * DEFLATE)
    yield Target("mat", _reading("set.mat", read_mat), [*_mats()], each_byte=3 * DEFLATE)
    batches = [pickle.dumps({"data": np.full((2, 3), 9, np.uint8), "labels": [1, 0]}, number) for number in (2, 4)]
    yield Target("pickle", _reading("batch", lambda path: read_batch(path, "labels")), batches, each_byte=TEXT)
    rows = {"inputs": np.arange(12.0).reshape(4, 3), "labels": np.array([0, 1, 2, 0])}
    for name, save in (("npz", np.savez), ("npz, packed", np.savez_compressed)):
        file = io.BytesIO()
        save(file, **rows)
        decoder = _reading("rows.npz", lambda path: read_npz(path, mlp((2, 3), input_bits=4, weight_bits=10)))
        yield Target(name, decoder, [file.getvalue()], each_byte=4 * DEFLATE)
    features = folder() / "features.npy"
    write_rows(features, 4, [np.ones((4, 3), np.float16)])
    cached = lambda path: np.asarray(read_rows(path, 4)).sum()  # noqa: E731
    yield Target("features", _reading("features.npy", cached), [features.read_bytes()])


def _mats() -> Iterator[bytes]:
    for packed in (False, True):
        file = io.BytesIO()
        savemat(file, {"y": np.array([[10], [3]], np.uint8)}, do_compression=packed)
        yield file.getvalue()


def bombs() -> dict[str, bytes]:
    """Inputs that unpack to far more, or promise far more, than a decoder has use for, by target."""
    zeros = zlib.compress(bytes(2**26), 9)
    length = len(zeros).to_bytes(4, "little")
    header, promised = io.BytesIO(), io.BytesIO()
    form = {"descr": "<f8", "fortran_order": False, "shape": (2**27, 3)}
    np.lib.format.write_array_header_1_0(header, form)
    with zipfile.ZipFile(promised, "w") as archive:
        archive.writestr("inputs.npy", header.getvalue() + bytes(64))
        archive.writestr("labels.npy", header.getvalue() + bytes(64))
    return {
        "idx, gzip": gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 9]) + bytes(2**26)),
        "grpc weights": Delta(1, 0, 1, bytes(32), zeros).encode(),
        "npz": promised.getvalue(),
        "mat": next(_mats())[:128] + (15).to_bytes(4, "little") + length + zeros,
    }


def file_targets() -> Iterator[Target]:
    yield from storage_targets()
    yield from settings_targets()
    yield from data_targets()
