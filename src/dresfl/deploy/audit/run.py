"""The audit of a run's folder: a coordinator's, or a simulation's."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dresfl.coding import recovery_threshold
from dresfl.deploy.run_record import FORMAT as RUN_FORMAT
from dresfl.deploy.settings import CoordinatorConfig, load_agreement, load_settings
from dresfl.deploy.toml import load_table
from dresfl.errors import CheckpointError, DresError, InfeasiblePlan
from dresfl.federation import Agreement, Terms
from dresfl.federation.agreement import ACCEPTED
from dresfl.federation.agreement import FORMAT as AGREEMENT_FORMAT
from dresfl.federation.terms import FORMAT as TERMS_FORMAT
from dresfl.files import read_record
from dresfl.model import layer_from_dict, weights_sha256
from dresfl.optimizers import Optimizer
from dresfl.protocol import Session
from dresfl.protocol.hidden.settings import HiddenSettings
from dresfl.protocol.protection import SIMULATION_SEES, could_see
from dresfl.runtimes.coordinator_host import TERMS_ROLE
from dresfl.sealing import Roster
from dresfl.storage.at_rest import StorageKey, mark_of, open_file
from dresfl.storage.broadcasts import FOLDER as HOPS
from dresfl.storage.broadcasts import FORMAT as HOPS_FORMAT
from dresfl.storage.broadcasts import read_round, round_files
from dresfl.storage.checkpoint import EARLIER, NEWEST, read_content
from dresfl.storage.checkpoint import FORMAT as CHECKPOINT_FORMAT
from dresfl.storage.model_file import FORMAT as MODEL_FORMAT
from dresfl.storage.model_file import StoredModel, read_model

from .report import Audit

_T = TypeVar("_T")
_NO_ROUND = "stopped or under way; no round can be seen on the disk"
_SEALED_HOP = len(HOPS_FORMAT) + 1 + 32 + 4  # where the first hop of a file begins
_MOST_NAMED = 20  # alarms that are quoted
# what reading a damaged file may end in, if its reader has no error of its own for it
_FOREIGN = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, OSError)


def is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("run.json", "agreement.json", "terms.json"))


def is_simulation(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("config.toml", "summary.json", NEWEST))


def look(audit: Audit, path: Path, read: Callable[[Path], _T], format: str = "") -> _T | None:
    """What is in a file, noted as sound; None if it is not there, or damaged, which is noted."""
    if not path.exists():
        return None
    try:
        found = read(path)
    except DresError as error:
        audit.note_damage(path, error)
    except _FOREIGN as error:
        audit.note_file(path, f"damaged: {type(error).__name__}: {error}"[:200], wrong=True)
    else:
        audit.note_file(path, format=format)
        return found
    return None


# -- a coordinator ---------------------------------------------------------------------------------------------


def audit_run(folder: Path, config: Path | None) -> Audit:
    """The audit of a coordinator's folder."""
    audit = Audit(folder, "coordinator", private=True)
    own = None if config is None else load_settings(CoordinatorConfig, config)
    key = None if own is None else StorageKey.find(own.storage_key)
    record = look(audit, folder / "run.json", lambda path: read_record(path) or {}, RUN_FORMAT)
    agreement = look(audit, folder / "agreement.json", read_agreement, AGREEMENT_FORMAT)
    if record is not None:
        audit.storage_key = str(record.get("storage_key", ""))
        if agreement is not None and record.get("agreement") != agreement.digest.hex():
            audit.look_at.append("agreement.json: is not the agreement that run.json names")
    if own is not None:
        agreement = _compared(audit, agreement, own)
    if agreement is None:
        audit.cannot_see.append("mode and parameters: there is no agreement that can be read")
    else:
        describe(audit, agreement)
    session = _terms(audit, folder / "terms.json", agreement, key)
    progress = _checkpoints(audit, folder, key, session)
    _results(audit, folder, progress)
    _hops(audit, folder / HOPS, key)
    _spool(audit, folder / "spool")
    _log(audit, folder / "log.jsonl")
    audit.note_modes([folder, *(path for path in folder.rglob("*") if not path.is_symlink())])
    if not audit.state:
        begun = (folder / "terms.json").exists()
        audit.state = _NO_ROUND if begun else "waiting for all clients: there are no terms yet"
    return audit


def read_agreement(path: Path) -> Agreement:
    """The agreement of a run's folder."""
    data = path.read_bytes()
    values = json.loads(data)
    if values.pop("format") != AGREEMENT_FORMAT:
        raise CheckpointError(f"{path} is of another format than {AGREEMENT_FORMAT!r}", "use the dresfl that made it")
    layers = tuple(layer_from_dict(layer) for layer in values.pop("layers"))
    hidden, optimizer = values.pop("hidden"), values.pop("optimizer")
    agreement = Agreement(
        layers,
        tuple(values.pop("input_shape")),
        **values,
        hidden=None if hidden is None else HiddenSettings(**hidden),
        optimizer=None if optimizer is None else Optimizer(**optimizer),
    )
    if agreement.encode() != data:
        raise CheckpointError(f"{path} is damaged", "restore it, or start the coordinator: it writes it again")
    return agreement


def _compared(audit: Audit, found: Agreement | None, own: CoordinatorConfig) -> Agreement:
    """The agreement that fed.toml names; whether the folder is of it is noted."""
    wanted = load_agreement(own, Roster.load(Path(own.keys.roster), own.keys.roster_sha256))
    if found is not None and found.digest != wanted.digest:
        audit.look_at.append(
            f"the run is of another agreement than --config names: {'; '.join(wanted.differences(found.encode()))}"
        )
        return found
    return wanted


def describe(audit: Audit, agreement: Agreement) -> None:
    """What an agreement says: mode, consent, parameters, who could see what, and the certificate of its masks."""
    session = agreement.sample_session()
    audit.mode = agreement.mode
    if agreement.hidden is None:
        audit.consent = agreement.rows_can_be_computed == ACCEPTED
        if not audit.consent:
            audit.look_at.append("agreement: nobody has accepted that rows can be computed in the open mode")
    audit.parameters = {
        "num_clients": session.num_clients,
        "num_shards": session.num_shards,
        "max_colluders": session.max_colluders,
        "recovery_threshold": session.recovery_threshold,
        "max_liars": agreement.max_liars,
        "answers_needed": session.answers_needed,
        "rounds": agreement.rounds,
        "batch_size": session.batch_size,
    }
    if agreement.hidden is not None:
        audit.parameters |= {name: getattr(agreement.hidden, name) for name in ("runs", "trials")}
        audit.certificates |= {
            "check": agreement.hidden.check,
            "clients": "said to be honest" if agreement.hidden.honest_clients else "may lie",
            "dealers' rows": "trusted" if agreement.hidden.trusted_dealers else "proved to be in range",
            "security bits": round(session.hidden_plan.security_bits, 1),
        }
    audit.could_see = could_see(agreement.max_colluders, agreement.hidden)
    if agreement.record:
        audit.could_see["whoever reads a recording"] = "everything that its participant was sent (record = true)"
    audit.certificates["mask family"] = _mask_certificate(audit, session)


def _mask_certificate(audit: Audit, session: Session) -> dict[str, int] | str:
    """Make the family of masks again and check its ranks, for every coalition and every prime."""
    try:
        sets = session.seed_sets.sets
    except InfeasiblePlan as error:
        audit.look_at.append(f"masks: {error}")
        return f"none: {error}"
    coalition = min(session.max_colluders, session.recovery_threshold - 2)
    return {
        "sets": len(sets),
        "coalitions": math.comb(session.num_clients, max(0, coalition)),
        "primes": len(session.field.moduli),
    }


def _terms(audit: Audit, path: Path, agreement: Agreement | None, key: StorageKey | None) -> Session | None:
    """The session of the run's terms, if they can be read; the dealers' verdict is noted."""
    if not path.exists():
        if (path.parent / NEWEST).exists():
            audit.look_at.append("terms.json: is missing")
        return None
    if key is None and (mark := mark_of(path.read_bytes())):
        audit.note_sealed(path, mark, "terms.json, and whether the dealers were checked")
        return None
    if agreement is None:
        audit.note_file(path, "not looked into: there is no agreement that can be read")
        return None

    def read(path: Path) -> tuple[Session, object]:
        data = open_file(key, path.read_bytes(), TERMS_ROLE, path)
        terms = Terms.from_json(data, agreement)
        session = terms.session(agreement)
        return session, json.loads(data).get("verdict")

    found = look(audit, path, read, TERMS_FORMAT)
    if found is None:
        return None
    session, verdict = found
    audit.parameters["rows"] = sum(session.client_rows)
    note_verdict(audit, verdict, "terms.json")
    return session


def note_verdict(audit: Audit, verdict: object, place: str) -> None:
    """What the check of the dealers found, if it is written down."""
    if not isinstance(verdict, dict):
        audit.certificates["dealers"] = "no verdict is written down here"
        return
    audit.certificates["dealers"] = {name: verdict.get(name, []) for name in ("excluded", "deviating")}
    for name, clients in audit.certificates["dealers"].items():
        if clients:
            audit.look_at.append(f"{place}: the check of the dealers found {name} clients {clients}")


def _checkpoints(audit: Audit, folder: Path, key: StorageKey | None, session: Session | None) -> dict[str, Any] | None:
    """The counters of the newest checkpoint that can be read."""
    newest = None
    for path in (folder / NEWEST, folder / EARLIER):
        if path.exists() and key is None and (mark := mark_of(path.read_bytes()[:64])):
            audit.note_sealed(path, mark, path.name)
            continue
        found = look(audit, path, lambda path: read_content(path, key), CHECKPOINT_FORMAT)
        if found is None:
            continue
        tensors, meta = found
        if session is not None and meta["session"] != session.session_id.hex():
            audit.look_at.append(f"{path.name}: is of another run than terms.json")
        if newest is None:
            lies = tensors["lies"].tolist() if "lies" in tensors else []
            newest = {
                **meta["progress"],
                "metrics": meta["metrics"],
                "liars": {str(client): count for client, count in enumerate(lies) if count},
                "weights_sha256": weights_sha256(tensors["weights"]) if "weights" in tensors else "",
            }
    return newest


def _results(audit: Audit, folder: Path, progress: dict[str, Any] | None) -> None:
    """Metrics, summary and model: whether they are whole, agree with each other, and what they say of the rounds."""
    lines = look(audit, folder / "metrics.jsonl", lambda path: _metrics(path, progress)) or []
    look(audit, folder / "rounds.jsonl", _lines)  # it has no digest: only what is no line of a round shows
    summary: dict[str, Any] = (
        look(audit, folder / "summary.json", lambda path: dict(json.loads(path.read_text()))) or {}
    )
    model: StoredModel | None = look(audit, folder / "model.safetensors", read_model, MODEL_FORMAT)
    alarms = [line for line in lines if "alarm" in line]
    if progress is not None:
        audit.rounds |= {
            "done": progress["round_number"],
            "skipped": progress["skipped"],
            "refused": progress["alarms"],
            "mean_answers": round(progress["answers"] / max(1, progress["round_number"]), 2),
        }
    elif summary:
        audit.rounds |= {"done": summary.get("rounds"), "skipped": summary.get("skipped_rounds")}
        audit.rounds["refused"] = summary.get("alarms")
    counted = Counter(str(client) for line in lines if "alarm" not in line for client in _named_liars(line))
    liars = summary.get("liars") or (progress or {}).get("liars") or dict(counted)
    audit.rounds["liars"] = liars
    audit.certificates["headroom"] = {
        "refused_rounds": audit.rounds.get("refused"),
        "reasons": [{"round": line["round"], "reason": line["alarm"]} for line in alarms[:_MOST_NAMED]],
    }
    if liars:
        audit.look_at.append(f"false answers, by client and number of rounds: {liars}")
    if audit.rounds.get("refused"):
        audit.look_at.append(f"{audit.rounds['refused']} rounds were refused (headroom alarm, lies or divergence)")
    if "versions" in summary:
        audit.versions["of the run"] = summary["versions"]
    _agree(audit, summary, model, progress)
    agreed = audit.parameters.get("rounds", summary.get("rounds"))
    if summary:
        audit.state = "complete"
    elif progress is not None:
        audit.state = f"stopped or under way, after {progress['round_number']} of {agreed} rounds"


def _named_liars(line: dict[str, Any]) -> list[int]:
    """A line of a round with liars lists them; a measurement has a table of them."""
    return line["liars"] if isinstance(line.get("liars"), list) else []


def _agree(audit: Audit, summary: dict[str, Any], model: StoredModel | None, progress: dict[str, Any] | None) -> None:
    """Summary, model and last checkpoint are of the same weights."""
    found = {"summary.json": summary.get("weights_sha256")}
    if model is not None:
        found["model.safetensors"] = weights_sha256(model.weights)
    if summary and progress is not None:
        found["the checkpoint"] = progress["weights_sha256"]
    if len({digest for digest in found.values() if digest}) > 1:
        audit.look_at.append(f"{', '.join(found)} are of different weights")
    opened = bool(summary.get("weights_sha256"))  # a trial of the hidden mode, or one for clients alone, shows no model
    if opened and model is None and not (audit.folder / "model.safetensors").exists():
        audit.look_at.append("model.safetensors: is missing, though the run is complete")


def _metrics(path: Path, progress: dict[str, Any] | None) -> list[dict[str, Any]]:
    data = path.read_bytes()
    known = 0 if progress is None else int(progress["metrics_bytes"])
    if progress is not None and known and hashlib.sha256(data[:known]).hexdigest() != progress["metrics"]:
        raise CheckpointError(f"{path} is damaged: its first {known} bytes are not those that the checkpoint knows")
    return _lines(path)


def _lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]  # a line may be cut short by a crash: the run writes it again
    return [dict(json.loads(line)) for line in whole.splitlines()]


def _hops(audit: Audit, folder: Path, key: StorageKey | None) -> None:
    """What was published in a hidden run, as far as it is kept."""
    if not folder.is_dir():
        return
    last, cut = None, False
    for path in round_files(folder):
        if cut:
            audit.look_at.append(f"{path.name}: a hop before it was cut short")
        if key is None and (mark := mark_of(path.read_bytes()[_SEALED_HOP : _SEALED_HOP + 64])):
            audit.note_sealed(path, mark, f"the hops of round {int(path.stem)}")
            continue
        found = look(audit, path, lambda path: read_round(path, None, key), HOPS_FORMAT)
        if found is not None:
            broadcasts, cut = found[0], found[1] is not None
            last = broadcasts[-1].place if broadcasts else last
    if last is not None:
        audit.rounds["last_hop"] = list(last)
        if not audit.state:
            audit.state = f"stopped or under way, in round {last[0]} of {audit.parameters.get('rounds')}"


def _spool(audit: Audit, folder: Path) -> None:
    """Slices that wait are sealed from client to client; that some are there is no fault."""
    waiting = [path for path in folder.rglob("*.*") if path.is_file()] if folder.exists() else []
    audit.rounds["slices_waiting"] = len(waiting)


def _log(audit: Audit, path: Path) -> None:
    """Shortages are in the log; only over Flower the log is in the folder."""
    if not path.exists():
        audit.cannot_see.append("shortages and refused connections: they are in the log, not in this folder")
        return
    lines = look(audit, path, lambda path: path.read_text(encoding="utf-8", errors="replace").splitlines()) or []
    audit.rounds["shortages"] = sum('"event": "shortage"' in line for line in lines)


# -- a simulation ----------------------------------------------------------------------------------------------


def audit_simulation(folder: Path) -> Audit:
    """The audit of the folder of `dresfl train`. Its files are nobody's secret."""
    audit = Audit(folder, "simulation", private=False, mode="open", could_see=dict(SIMULATION_SEES), storage_key="")
    table = look(audit, folder / "config.toml", load_table)
    progress = _checkpoints(audit, folder, None, None)
    if table is None:
        audit.look_at.append("config.toml: is missing" if not (folder / "config.toml").exists() else "config.toml")
    else:
        code = dict(table.get("federation", {}))
        audit.parameters = {name: value for name, value in code.items() if isinstance(value, int)}
        audit.parameters["rounds"] = int(table.get("rounds", 0))
        audit.mode = str(table.get("mode", "open"))
    _results(audit, folder, progress)
    _threshold(audit, folder)
    if not audit.state:
        audit.state = _NO_ROUND
    return audit


def _threshold(audit: Audit, folder: Path) -> None:
    """R and the answers needed, once the run is complete: only then the folder has the shape of the inputs."""
    if audit.mode == "hidden" or audit.parameters.get("local_steps", 1) > 1:
        if audit.state == "complete":
            summary = json.loads((folder / "summary.json").read_text())
            audit.parameters |= {name: summary[name] for name in ("recovery_threshold", "answers_needed")}
        return
    try:
        degree = read_model(folder / "model.safetensors").network.gradient_degree
        shards, colluders = audit.parameters["num_shards"], audit.parameters["max_colluders"]
    except (DresError, KeyError):
        audit.cannot_see.append("the threshold: a simulation's folder has it when the run is complete")
        return
    needed = recovery_threshold(degree, shards, colluders)
    audit.parameters["recovery_threshold"] = needed
    audit.parameters["answers_needed"] = needed + 2 * audit.parameters.get("max_liars", 0)
