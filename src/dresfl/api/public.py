"""Every name of `import dresfl as dr`, written once."""

from dresfl.api.evaluation import ClassReport, NumberReport, evaluate
from dresfl.api.export import export_model
from dresfl.api.model import Model, TorchModel, load_model
from dresfl.api.partition import partition
from dresfl.api.plan import Plan, plan
from dresfl.api.plan_hidden import HiddenCost, plan_hidden
from dresfl.api.prediction import Predictions, predict_file
from dresfl.api.simulate import Run, simulate
from dresfl.coding import CodeParameters
from dresfl.data import DataSet, Split
from dresfl.data import load as load_dataset
from dresfl.errors import (
    CheckpointError,
    DataError,
    DresError,
    InfeasiblePlan,
    ModelError,
    TooFewAnswers,
    UsageError,
)
from dresfl.model import Conv2d, Dense, Flatten, Network, Quadratic, Square, SumPool, mlp
from dresfl.optimizers import Optimizer
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.runtimes.local import Dropouts
from dresfl.runtimes.local import bernoulli as bernoulli_dropouts
from dresfl.runtimes.local import from_trace as dropouts_from_trace
from dresfl.runtimes.local import paper as paper_dropouts
from dresfl.storage.run_folder import Measurement, Progress, Summary
from dresfl.storage.transcript import Transcript
from dresfl.tables import Column, Label, Schema, load_schema
from dresfl.tables import read_data_set as read_table

__all__ = [
    "plan",
    "Plan",
    "plan_hidden",
    "HiddenCost",
    "HiddenSettings",
    "CodeParameters",
    "simulate",
    "Run",
    "Measurement",
    "Summary",
    "Progress",
    "Transcript",
    "Model",
    "TorchModel",
    "load_model",
    "predict_file",
    "Predictions",
    "evaluate",
    "ClassReport",
    "NumberReport",
    "export_model",
    "Network",
    "mlp",
    "Dense",
    "Conv2d",
    "SumPool",
    "Flatten",
    "Square",
    "Quadratic",
    "Optimizer",
    "Dropouts",
    "bernoulli_dropouts",
    "paper_dropouts",
    "dropouts_from_trace",
    "DataSet",
    "Split",
    "load_dataset",
    "partition",
    "Schema",
    "Column",
    "Label",
    "load_schema",
    "read_table",
    "DresError",
    "UsageError",
    "InfeasiblePlan",
    "DataError",
    "ModelError",
    "CheckpointError",
    "TooFewAnswers",
]
