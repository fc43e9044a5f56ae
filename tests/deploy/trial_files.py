"""The files of a trial that does not run: nine clients and a coordinator."""

from pathlib import Path

from dresfl.deploy.settings import Keys
from dresfl.experiments.trials.grpc_trial import Trial, write_clients, write_trial
from dresfl.sealing import Roster


def write_nine_clients(folder: Path) -> Path:
    """Keys, roster and configurations in a folder, as `dresfl federate` writes them."""
    wanted = Trial("digits", clients=9, mode="open")
    write_trial(wanted, folder)
    digest = Roster.load(folder / "roster.json").digest
    keys = Keys("keys", "keys/certificate.pem", "../ca/ca.cert.pem", "../roster.json", digest)
    write_clients(wanted.run_config(), keys, "", folder, 9, 7443)
    return folder
