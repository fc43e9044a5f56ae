"""The app folder for `flwr run`: three small files that say where the rest is."""

from pathlib import Path

from dresfl.errors import UsageError
from dresfl.files import write_atomic

_PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "dresfl-app"
version = "1.0.0"
description = "Dropout-resilient, secure federated learning over Flower"
license = "Apache-2.0"
dependencies = []  # every participant installs dresfl[flower] itself, in a version it has chosen

[tool.hatch.build.targets.wheel]
packages = ["dresfl_app"]

[tool.flwr.app]
publisher = "dresfl"

[tool.flwr.app.components]
serverapp = "dresfl_app.server_app:app"
clientapp = "dresfl_app.client_app:app"

[tool.flwr.app.config]
coordinator = "fed.toml"  # the coordinator's configuration, a path on the SuperLink's machine
sites = ""                # simulation only: a folder with site-0/site.toml, site-1/site.toml, ...
"""

_SERVER = '''"""The coordinator, as Flower starts it."""

from dresfl.deploy.flower import coordinate
from dresfl.runtimes.flower_runtime.apps import server_app

app = server_app(coordinate)
'''

_CLIENT = '''"""A client, as Flower starts it: anew for every bundle, so it imports what it needs when it needs it."""

from dresfl.deploy.flower import open_site
from dresfl.runtimes.flower_runtime.apps import client_app

app = client_app(open_site)
'''


def write_app(folder: Path) -> list[Path]:
    """Write the app to a folder that does not exist yet, or is empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty", "give a new folder")
    files = {
        "pyproject.toml": _PYPROJECT,
        "dresfl_app/__init__.py": '"""A Flower app: see dresfl, docs/how-to/run-with-flower.md."""\n',
        "dresfl_app/server_app.py": _SERVER,
        "dresfl_app/client_app.py": _CLIENT,
    }
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
    return [folder / name for name in files]
