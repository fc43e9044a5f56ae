"""The model card of a run: what was trained, on how many rows, how it was measured, and what it does not promise.

Whoever writes a model into a run's folder writes `model-card.json` and `model-card.md` beside it. Both say the same,
and only what the run itself knows. A card holds no row and no value of one. The JSON has two digests, so that damage
is seen: `page_sha256` of the Markdown, and `sha256` of the JSON without itself.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dresfl.errors import CheckpointError
from dresfl.files import write_atomic
from dresfl.model import weights_sha256
from dresfl.protocol.protection import HIDDEN_MODE_MEANS, OPEN_MODE_MEANS

from .model_file import StoredModel

CARD_FILES = ("model-card.json", "model-card.md")
FORMAT = "dresfl model card 1"
LIMITS = (
    "The model is not differentially private: whoever has it may learn something of the rows that it was trained on.",
    "The figures hold for the rows that were measured. Measure it on your own rows with `dresfl evaluate`.",
    "Fairness between groups of people was not measured.",
)


def make_card(model: StoredModel, summary: Mapping[str, Any], settings: Mapping[str, object]) -> dict[str, Any]:
    """The card as plain values. summary: of the run. settings: what decided the weights, beside the session."""
    network = model.network
    return {
        "format": FORMAT,
        "name": summary["name"],
        "model": {
            "file": "model.safetensors",
            "weights_sha256": weights_sha256(model.weights),
            "task": summary.get("task", "classification"),
            "layers": [layer.to_dict() for layer in network.layers],
            "weights": network.num_parameters,
            "input_shape": list(network.input_shape),
            "input_bits": network.input_bits,
            "shift": model.shift,
            "input_bound": model.input_bound,
            "outputs": network.num_classes,
            "classes": list(model.classes),
            "feature_names": list(model.feature_names),
            "units": list(model.units),
            "schema": model.schema,
        },
        "training": {
            "mode": summary["mode"],
            "engine": summary["engine"],
            "simulated": summary["reliable_clients"] is not None,
            "rounds": summary["rounds"],
            "stopped_after": summary["stopped_after"],
            "skipped_rounds": summary["skipped_rounds"],
            "refused_rounds": summary["alarms"],
            "answers_needed": summary["answers_needed"],
            "mean_answers": summary["mean_survivors"],
            "rows": summary["train_rows"],
            "settings": dict(settings),
            "seconds": summary["seconds"],
            "versions": summary["versions"],
        },
        "measured": {
            "test_rows": summary["test_rows"],
            "test_accuracy": summary["test_accuracy"],
            "test_r2": summary.get("test_r2"),
            "validation_losses": summary["validation_losses"],
            "totals": summary["totals"],
        },
        "protection": HIDDEN_MODE_MEANS if summary["mode"] == "hidden" else OPEN_MODE_MEANS,
        "limits": list(LIMITS),
    }


def write_card(folder: Path, card: Mapping[str, Any], *, private: bool = False) -> None:
    """Write both files, each of them whole or not at all. private: with mode 0600."""
    page = card_markdown(card).encode()
    values = {**card, "page_sha256": hashlib.sha256(page).hexdigest()}
    values["sha256"] = hashlib.sha256(_text(values)).hexdigest()
    for name, data in zip(CARD_FILES, (_text(values), page), strict=True):
        write_atomic(folder / name, data, private=private)


def read_card(path: Path) -> dict[str, Any]:
    """The values of a `model-card.json`. CheckpointError if it was altered."""
    data = path.read_bytes()
    card: dict[str, Any] = dict(json.loads(data))
    rest = {key: value for key, value in card.items() if key != "sha256"}
    if data != _text(card) or card.get("sha256") != hashlib.sha256(_text(rest)).hexdigest():
        raise CheckpointError(f"{path} was altered: it does not have its sha256", "restore it from a backup")
    return card


def read_card_page(path: Path, card: Mapping[str, Any] | None) -> str:
    """The text of a `model-card.md`. CheckpointError if it is not that of its card; None: nothing to compare with."""
    data = path.read_bytes()
    if card is not None and hashlib.sha256(data).hexdigest() != card["page_sha256"]:
        raise CheckpointError(f"{path} was altered: it is not the page of {CARD_FILES[0]}", "restore it from a backup")
    return data.decode()


def _text(card: Mapping[str, Any]) -> bytes:
    return (json.dumps(card, indent=2) + "\n").encode()


def card_markdown(card: Mapping[str, Any]) -> str:
    """The card as a page."""
    model, training = card["model"], card["training"]
    lines = [f"# Model card: {_cell(card['name'])}", ""]
    lines += _table("The model", _model_rows(model))
    if model["feature_names"]:
        lines += ["", "### Inputs", "", "| input | unit |", "|---|---|"]
        units = model["units"] or [""] * len(model["feature_names"])
        lines += [
            f"| {_cell(name)} | {_cell(unit) or '–'} |"
            for name, unit in zip(model["feature_names"], units, strict=True)
        ]
    lines += ["", *_table("The training", _training_rows(training))]
    lines += ["", *_table("How it was measured", _measured_rows(card["measured"]))]
    lines += ["", "## What the training showed to whom", ""]
    meaning = card["protection"]
    lines += [f"In the {training['mode']} mode {meaning}."]
    if training["simulated"]:
        lines += ["", "This run was a simulation: one process held all rows, and it protected nobody."]
    lines += ["", "## Limits", "", *(f"- {limit}" for limit in card["limits"])]
    lines += ["", "## How to use it", "", "```bash", "dresfl predict model.safetensors FILE --out predictions.csv"]
    lines += ["dresfl evaluate model.safetensors FILE", "dresfl export model.safetensors --format onnx", "```", ""]
    return "\n".join(lines)


def _model_rows(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("task", model["task"]),
        ("layers", ", ".join(_layer(layer) for layer in model["layers"])),
        ("weights", f"{model['weights']:,}"),
        ("input shape", " × ".join(map(str, model["input_shape"]))),
        ("inputs are rounded to", f"multiples of 2^−{model['input_bits']}" + _shifted(model["shift"])),
        ("largest input in training", f"{model['input_bound']:.6g}"),
        ("outputs", str(model["outputs"])),
        ("classes", ", ".join(map(_cell, model["classes"])) or "not named"),
        ("schema", "in `model.safetensors` and `model-card.json`" if model["schema"] else "none"),
        ("SHA-256 of the weights", f"`{model['weights_sha256']}`"),
    ]
    return [row for row in rows if row[0] != "classes" or model["task"] == "classification"]


def _shifted(shift: float) -> str:
    return f", after adding {shift:g}" if shift else ""


def _layer(layer: Mapping[str, Any]) -> str:
    sizes = [f"{key} {value}" for key, value in layer.items() if key in ("units", "channels", "kernel", "stride")]
    return str(layer["kind"]) + (f" ({', '.join(sizes)})" if sizes else "")


def _training_rows(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    rounds = f"{training['rounds']:,}"
    if training["stopped_after"] is not None:
        rounds += f"; the stopping rule ended it after {training['stopped_after']:,}"
    where = "simulated clients" if training["simulated"] else "real participants"
    rows = [
        ("mode", f"{training['mode']}, {where}, engine {training['engine']}"),
        ("rows of all clients together", f"{training['rows']:,}"),
        ("rounds", rounds),
        ("rounds skipped, refused", f"{training['skipped_rounds']:,}, {training['refused_rounds']:,}"),
        ("answers needed in a round", str(training["answers_needed"])),
        ("answers in a round, mean", f"{training['mean_answers']:.1f}"),
        ("seconds", f"{training['seconds']:.1f}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in training["versions"].items())),
    ]
    return rows + [(key, json.dumps(value)) for key, value in training["settings"].items() if key != "rounds"]


def _measured_rows(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if measured["test_accuracy"] is not None:
        rows.append(("test accuracy", f"{100 * measured['test_accuracy']:.2f} %"))
    if measured["test_r2"] is not None:
        rows.append(("R² on the test rows", f"{measured['test_r2']:.4f}"))
    if rows and measured["test_rows"] is not None:
        rows.append(("test rows", f"{measured['test_rows']:,}"))
    if measured["validation_losses"]:
        done, loss = list(measured["validation_losses"].items())[-1]
        rows.append((f"validation loss after {done} rounds", f"{loss:.6g}"))
    if measured["totals"]:
        totals = measured["totals"]
        rows.append(("right on the clients' own rows", f"{totals['correct']:,} of {totals['rows']:,}"))
    return rows or [("test rows", "none: nothing was measured in this run")]


def _table(title: str, rows: list[tuple[str, str]]) -> list[str]:
    return [f"## {title}", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)]


def _cell(text: str) -> str:
    """A name that somebody chose, so that it stays in its place on the page."""
    flat = " ".join(str(text).split())
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>#|" else c for c in flat)
