"""`dresfl predict`, `evaluate` and `export`: what is done with a trained model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import display
from .display import JsonOption

if TYPE_CHECKING:
    from dresfl.api.evaluation import ClassReport

ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A model.safetensors of any run.")]
RowsArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A .csv, .tsv, .parquet, .arrow or .feather table, or an .npz archive.")
]


def predict_command(
    model: ModelArgument,
    rows: RowsArgument,
    out: Annotated[Path | None, typer.Option(help="Write the predictions to this .csv, .parquet or .npz.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Carry this column along, e.g. a row number.")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="With --out: also write the share of each class.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict every row of a file. No label column is needed.

    Classes come out by their names, numbers in their unit. A model that was trained on tables carries their schema and
    reads tables as its clients did. One without a schema reads tables of plain numbers and .npz archives with an array
    `inputs`; if such an archive also has `labels`, it says how many are right.
    """
    from dresfl.api.model import load_model
    from dresfl.api.prediction import check_table_path, predict_file, write_table
    from dresfl.errors import UsageError

    if out is not None:
        check_table_path(out)
    elif keep or scores:
        raise UsageError("--keep and --scores say what is written, and there is no --out", "add --out predictions.csv")
    found = predict_file(load_model(model), rows, keep=keep or (), outcomes=None)
    report = None if found.report is None else found.report.to_dict()
    accuracy = None if report is None else report.get("accuracy")
    if out is not None:
        write_table(out, found.columns(scores))
        display.note(f"{len(found.outputs)} predictions: {out}")
    if as_json:
        shown = {"rows": len(found.outputs), "out": str(out)} if out else {"predictions": found.places.tolist()}
        print(json.dumps({**shown, "accuracy": accuracy}))
    elif out is None:
        columns = found.columns().values()
        print("\n".join(" ".join(map(str, values)) for values in zip(*columns, strict=True)))
    if accuracy is not None and not as_json:
        display.note(f"accuracy {display.percent(accuracy, 2)} of {len(found.outputs)} rows")


def evaluate_command(
    model: ModelArgument,
    rows: RowsArgument,
    label: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column of the outcome, if the model has no schema.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Measure a model on rows whose outcome is known.

    Classes: accuracy, AUC, confusion matrix, calibration. Numbers: R², mean absolute error, root mean square error.
    """
    from dresfl.api.evaluation import NumberReport
    from dresfl.api.model import load_model
    from dresfl.api.prediction import predict_file

    report = predict_file(load_model(model), rows, outcomes=True, label=label).report
    if report is None:
        raise RuntimeError("outcomes were wanted")
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    elif isinstance(report, NumberReport):
        unit = f" {report.unit}" if report.unit else ""
        figures = {"rows": f"{report.rows:,}", "R²": "-" if report.r2 is None else f"{report.r2:.4f}"}
        figures |= {
            "mean absolute error": f"{report.mae:.6g}{unit}",
            "root mean square error": f"{report.rmse:.6g}{unit}",
        }
        display.print_pairs(f"{model.name} on {rows.name}", figures)
    else:
        _print_classes(f"{model.name} on {rows.name}", report)


def _print_classes(title: str, report: "ClassReport") -> None:
    display.print_pairs(
        title,
        {
            "rows": f"{report.rows:,}",
            "accuracy": display.percent(report.accuracy, 2),
            "AUC": "-" if report.auc is None else f"{report.auc:.4f}",
            "Brier score": f"{report.brier:.4f}",
            "calibration error": display.percent(report.calibration_error, 2),
        },
    )
    display.print_table(
        "confusion: true class by row, predicted class by column",
        ["", *report.classes],
        [[name, *map(str, row)] for name, row in zip(report.classes, report.confusion, strict=True)],
    )
    display.print_table(
        "calibration: rows by the share that the model gave to its prediction",
        ["share", "rows", "mean share", "accuracy"],
        [
            [
                f"{one.low:.1f} – {one.high:.1f}",
                str(one.rows),
                display.percent(one.mean_share, 1),
                display.percent(one.accuracy, 1),
            ]
            for one in report.calibration
        ],
    )


def export_command(
    model: ModelArgument,
    form: Annotated[str, typer.Option("--format", help="onnx, torch or safetensors.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file; default: beside the model.")] = None,
    precision: Annotated[str, typer.Option(help="Of the layers: float64 or float32.")] = "float64",
    as_json: JsonOption = False,
) -> None:
    """Write a model for other programs. None of the files needs dresfl.

    onnx: a graph from features in their own units to classes or numbers. torch: the same, for `torch.export.load`.
    safetensors: weights and scaling as plain tensors.
    """
    from dresfl.api.export import ENDINGS, export_model
    from dresfl.api.model import load_model

    trained = load_model(model)
    ending = ENDINGS.get(form, "")
    path = out or model.with_name(f"{model.stem}-export{ending}" if ending == model.suffix else f"{model.stem}{ending}")
    export_model(trained, path, form, precision)  # type: ignore[arg-type]
    result = {"file": str(path), "format": form, "precision": precision, "bytes": path.stat().st_size}
    display.print_pairs(f"{model.name}: exported", result, as_json)
