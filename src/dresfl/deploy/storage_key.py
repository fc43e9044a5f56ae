"""The storage key that a participant's file names, and what the log says of it, once, at the start."""

from dresfl.runtimes.log import Log
from dresfl.storage.at_rest import CREDENTIAL, StorageKey

from .settings import ClientConfig, CoordinatorConfig

_COORDINATOR = "whoever reads this disk or a backup of it reads the weights of every checkpoint, and the run's terms"
_CLIENT = (
    "whoever reads this disk or a backup of it reads this client's secret and its shares of all others' rows; "
    "more than T clients' disks together give the rows"
)


def find_storage_key(config: CoordinatorConfig | ClientConfig, log: Log) -> StorageKey | None:
    """The key of `storage_key`, or of the service manager's credential; None: nothing is sealed at rest."""
    key = StorageKey.find(config.storage_key)
    if key is not None:
        log("sealed at rest", folder=config.folder, key=key.mark.hex())
        return key
    meaning = _CLIENT if isinstance(config, ClientConfig) else _COORDINATOR
    hint = f"make a key with `dresfl storage-key FILE` and set storage_key, or give the credential {CREDENTIAL}"
    log("not sealed at rest", folder=config.folder, meaning=meaning, hint=hint)
    return None
