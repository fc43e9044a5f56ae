"""Official files are told from others by published checksums; small files stand in for the official ones."""

import dataclasses
import gzip
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from commands import Run, refused
from dresfl.data import Published, check_folder, load, official, sources, verdict_of
from dresfl.data.idx import idx_content
from dresfl.data.pickles import binary_rows
from dresfl.errors import DataError
from dresfl.experiments.published import ROWS

IDX = bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1])


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def test_an_idx_file_is_official_packed_or_not_and_its_values_are_official_however_packed(tmp_path: Path):
    given_out = gzip.compress(IDX, mtime=1)
    published = Published((md5(given_out),), (md5(IDX),), len(IDX))
    path = tmp_path / "labels-idx1-ubyte.gz"
    changed = IDX[:-1] + b"\0"
    for data, wanted in [
        (given_out, "official"),
        (gzip.compress(IDX, mtime=2), "official values"),
        (gzip.compress(changed, mtime=1), "other values"),
    ]:
        path.write_bytes(data)
        assert verdict_of(data, published, lambda: idx_content(path)) == wanted
    plain = tmp_path / "labels-idx1-ubyte"
    plain.write_bytes(IDX)
    assert verdict_of(IDX, published, lambda: idx_content(plain)) == "official"
    assert idx_content(plain) == idx_content(path.with_name("labels-idx1-ubyte")) == IDX


def test_where_no_checksum_of_the_values_is_published_only_their_number_can_say_no():
    packed_only = Published((md5(b"given out"),), size=4)
    assert verdict_of(b"mine", packed_only, lambda: b"1234") == "other file"
    assert verdict_of(b"mine", packed_only, lambda: b"12345") == "other values"
    assert verdict_of(b"mine", packed_only, None) == "other file"
    assert verdict_of(b"mine", Published(), None) == "unknown"


def test_a_cifar_batch_pickled_anew_has_the_rows_of_the_binary_version(tmp_path: Path):
    pixels = np.arange(2 * 6, dtype=np.uint8).reshape(2, 6)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({b"data": pixels, b"fine_labels": [1, 0]}, protocol=4))
    rows = binary_rows(path, "fine_labels", coarse=(9, 8))
    assert rows == bytes([8, 1, 0, 1, 2, 3, 4, 5, 9, 0, 6, 7, 8, 9, 10, 11])
    assert binary_rows(path, "fine_labels") == bytes([1, 0, 1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10, 11])
    with pytest.raises(DataError, match="labels reach from 0 to 1"):
        binary_rows(path, "fine_labels", coarse=(9,))


def test_every_file_has_a_published_checksum_of_a_known_kind():
    read = {name: source for name, source in sources().items() if source.files}
    assert list(read) == sorted(ROWS)
    for source in read.values():
        for published in source.files.values():
            assert published.file
            for digest in (*published.file, *published.content):
                assert len(digest) in (32, 40, 64)
                assert set(digest) <= set("0123456789abcdef")
            assert published.size or source.name == "svhn"


def test_published_sizes_are_those_of_the_official_rows():
    size_of_a_row = {"cifar10": 3073, "cifar100": 3074}
    for name, (train, test) in ROWS.items():
        files = sources()[name].files
        if name in size_of_a_row:
            assert sum(one.size for one in files.values()) == size_of_a_row[name] * (train + test)
        elif name != "svhn":
            wanted = [16 + 784 * train, 8 + train, 16 + 784 * test, 8 + test]
            assert [one.size for one in files.values()] == wanted


def test_cifar100_has_five_fine_classes_in_each_coarse_one():
    from dresfl.data.sets.cifar100 import _COARSE

    assert np.bincount(_COARSE).tolist() == [5] * 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MNIST of four rows that counts as official, except for its test images; Fashion-MNIST with a damaged file."""
    images, labels = np.arange(2 * 784, dtype=np.uint16).astype(np.uint8), np.array([1, 0], np.uint8)
    head = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28])
    content = {"images-idx3": head + images.tobytes(), "labels-idx1": bytes([0, 0, 8, 1, 0, 0, 0, 2, *labels])}
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind, data in content.items():
            (raw / f"{part}-{kind}-ubyte").write_bytes(data)
    known = sources()
    mnist = known["mnist"]
    files = {file: Published((), (md5(content[file.rpartition("-")[0][-11:]]),)) for file in mnist.files}
    files["MNIST/raw/t10k-images-idx3-ubyte"] = Published((), (md5(b"another"),))
    known["mnist"] = dataclasses.replace(mnist, files=files)
    monkeypatch.setattr(official, "sources", lambda: known)
    fashion = tmp_path / "FashionMNIST" / "raw"
    fashion.mkdir(parents=True)
    (fashion / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x02")
    return tmp_path


def test_a_folder_is_told_file_by_file(folder: Path):
    found = {finding.file: finding for finding in check_folder(folder)}
    assert {file.rpartition("/")[2]: one.verdict for file, one in found.items() if one.data_set == "mnist"} == {
        "train-images-idx3-ubyte": "official",
        "train-labels-idx1-ubyte": "official",
        "t10k-images-idx3-ubyte": "other values",
        "t10k-labels-idx1-ubyte": "official",
    }
    assert (
        found["MNIST/raw/train-labels-idx1-ubyte"].sha256
        == hashlib.sha256((folder / "MNIST/raw/train-labels-idx1-ubyte").read_bytes()).hexdigest()
    )
    damaged = found["FashionMNIST/raw/train-labels-idx1-ubyte"]
    assert (damaged.verdict, "begins with" in damaged.note) == ("damaged", True)
    assert found["SVHN/test_32x32.mat"].verdict == "missing"


def test_the_command_prints_files_and_digests(dresfl: Run, folder: Path):
    import json

    result = dresfl("data", "check", str(folder), "--json")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert {one["data_set"] for one in printed["files"]} == {"mnist", "fashion"}
    assert printed["arrays"] == {
        "mnist": {"train_rows": 2, "test_rows": 2, "data_sha256": load("mnist", folder).origin.data}
    }
    shown = dresfl("data", "check", str(folder)).stdout
    assert "other values" in shown
    assert official.MEANING["damaged"] in shown


def test_a_folder_without_data_is_refused(dresfl: Run, tmp_path: Path):
    refused(dresfl("data", "check", str(tmp_path)), 1, "holds no file of a known data set", "data-sets.md")
    refused(dresfl("data", "check", str(tmp_path / "none")), 1, "there is no folder", "torchvision")


def test_the_page_of_data_sets_has_every_set_and_every_verdict():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "data-sets.md").read_text(encoding="utf-8")
    licences = page.partition("## Licences")[2]
    assert all(source.label in licences for source in sources().values())
    shown = [verdict for verdict in official.MEANING if verdict not in ("missing", "unknown")]
    assert all(f"| `{verdict}` |" in page for verdict in shown)
