"""The app folder and the commands, which need no Flower; and that the app is one, where Flower is installed."""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

from dresfl.errors import UsageError
from dresfl.experiments.trials.flower_trial import federate_flower, federate_simulation, flower_environment
from dresfl.experiments.trials.grpc_trial import Trial
from dresfl.runtimes.flower_runtime.template import write_app

installed = importlib.util.find_spec("flwr") is not None


def test_app_folder(tmp_path: Path) -> None:
    paths = write_app(tmp_path / "app")
    assert all(path.exists() for path in paths)
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "dresfl_app.server_app:app",
        "clientapp": "dresfl_app.client_app:app",
    }
    for path in paths[1:]:
        compile(path.read_text(), str(path), "exec")
    with pytest.raises(UsageError, match="not empty"):
        write_app(tmp_path / "app")


def test_nobody_is_called(tmp_path: Path) -> None:
    environment = flower_environment(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


@pytest.mark.skipif(installed, reason="flwr is installed")
def test_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="flwr is not installed") as caught:
        federate_flower(Trial(mode="open"), tmp_path / "trial")
    assert "dresfl[flower]" in caught.value.hint


def test_simulated_clients_are_not_killed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be killed"):
        federate_simulation(Trial(kill=1, mode="open"), tmp_path / "trial")


@pytest.mark.skipif(not installed, reason="flwr is not installed: `make flower` runs this")
def test_app_is_light_and_what_flower_wants(tmp_path: Path) -> None:
    """Imported for every message: neither torch nor scikit-learn come with it."""
    import subprocess

    write_app(tmp_path / "app")
    lines = [
        "import sys",
        "from dresfl_app.client_app import app as client",
        "assert not {'torch', 'sklearn', 'numba'} & set(sys.modules), 'heavy'",
        "from dresfl_app.server_app import app as server",
        "from flwr.clientapp import ClientApp; from flwr.serverapp import ServerApp",
        "assert isinstance(client, ClientApp) and isinstance(server, ServerApp)",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=tmp_path / "app", check=True)
