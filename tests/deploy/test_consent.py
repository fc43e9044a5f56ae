"""Nobody starts in the open mode without consent: the agreement's, and the participant's own, in every runtime."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commands import Run
from dresfl.deploy import flower
from dresfl.deploy.consent import consented_agreement
from dresfl.deploy.join import join
from dresfl.deploy.serve import serve
from dresfl.deploy.settings import ClientConfig, CoordinatorConfig, load_settings
from dresfl.errors import UsageError
from dresfl.experiments.trials.grpc_trial import OPEN_MODE_NOTE
from dresfl.sealing import Roster

from .trial_files import write_nine_clients

OWN = 'rows_can_be_computed = "accepted"\n'


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of nine clients and a coordinator."""
    return write_nine_clients(tmp_path_factory.mktemp("consent") / "trial")


@pytest.fixture
def trial(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "trial")
    return tmp_path / "trial"


FED, SITE = "coordinator/fed.toml", "site-4/site.toml"


def silent(event: str, **fields: object) -> None:
    """A log that nobody reads."""


def strike(path: Path, line: str) -> None:
    text = path.read_text()
    assert text.count(line) == 1
    path.write_text(text.replace(line, ""))


def serve_at(trial: Path) -> object:
    return serve(load_settings(CoordinatorConfig, trial / FED), silent)


def join_at(trial: Path) -> object:
    return join(load_settings(ClientConfig, trial / SITE), silent)


def flower_client_at(trial: Path) -> object:
    return flower.load_site(trial / SITE)


def flower_worker_at(trial: Path) -> None:
    flower.run_worker(trial / SITE, None, "", lambda path: pytest.fail("it listens"))


class Untouched:
    """A carrier over which nothing may go."""

    def nodes(self) -> list[int]:
        raise AssertionError("it looked for nodes")


def flower_coordinator_at(trial: Path) -> object:
    return flower.coordinate(Untouched(), {"coordinator": str(trial / FED)})  # type: ignore[arg-type]


STARTS = [serve_at, join_at, flower_client_at, flower_worker_at, flower_coordinator_at]


@pytest.mark.parametrize("start", STARTS)
def test_nobody_starts_without_everybodys_consent(trial: Path, start: Callable[[Path], object]) -> None:
    strike(trial / "agreement.toml", OWN)
    with pytest.raises(UsageError, match="the agreement does not accept that") as caught:
        start(trial)
    assert caught.value.exit_code == 2
    assert 'rows_can_be_computed = "accepted"' in caught.value.hint


@pytest.mark.parametrize("start", STARTS)
def test_nobody_starts_without_its_own_consent(trial: Path, start: Callable[[Path], object]) -> None:
    """An agreement file that somebody sent around is not enough."""
    coordinator = start in (serve_at, flower_coordinator_at)
    own = trial / (FED if coordinator else SITE)
    strike(own, OWN)
    with pytest.raises(UsageError, match=f"{own.name}, this participant's own file, does not") as caught:
        start(trial)
    assert "rows of others can be computed" in caught.value.hint
    assert own.name in caught.value.hint
    if start is flower_coordinator_at:
        (line,) = map(json.loads, (trial / "coordinator" / "run" / "log.jsonl").read_text().splitlines())
        assert (line["event"], line["reason"]) == ("error", str(caught.value))


@pytest.mark.parametrize(("kind", "file"), [(CoordinatorConfig, FED), (ClientConfig, SITE)])
def test_with_both_the_log_says_once_what_it_means(trial: Path, kind: type, file: str) -> None:
    config, events = load_settings(kind, trial / file), []
    agreement = consented_agreement(
        config, Roster.load(trial / "roster.json"), lambda event, **fields: events.append((event, fields))
    )
    assert agreement.mode == "open"
    ((event, fields),) = events
    assert event == "open mode"
    assert "rows of others can be computed" in fields["meaning"]
    with pytest.raises(UsageError, match="'yes' is not known"):
        dataclasses.replace(config, rows_can_be_computed="yes")


def hide(trial: Path, trusted: str = "true") -> None:
    """Turn the agreement into one of the hidden mode."""
    path = trial / "agreement.toml"
    text = path.read_text().replace('mode = "open"\n', "").replace(OWN, "")
    text = text.replace("trusted_dealers = false", f"trusted_dealers = {trusted}")
    path.write_text(text.replace('method = "sgd"', 'method = "momentum"'))


@pytest.mark.parametrize(("kind", "file"), [(CoordinatorConfig, FED), (ClientConfig, SITE)])
def test_the_hidden_mode_is_the_default_and_needs_no_consent_of_ones_own(trial: Path, kind: type, file: str) -> None:
    hide(trial)
    fed = trial / FED
    fed.write_text(fed.read_text()[: fed.read_text().index("[optimizer]")])
    strike(trial / file, OWN)
    events = []
    agreement = consented_agreement(
        load_settings(kind, trial / file),
        Roster.load(trial / "roster.json"),
        lambda event, **fields: events.append((event, fields["meaning"])),
    )
    assert agreement.mode == "hidden"
    assert agreement.optimizer is not None
    assert agreement.optimizer.method == "momentum"
    assert [event for event, _ in events] == ["hidden mode", "trusted dealers"]
    assert "nobody sees a gradient" in events[0][1]


def test_without_a_word_on_dealers_their_rows_are_proved(trial: Path) -> None:
    hide(trial, "false")
    strike(trial / SITE, OWN)
    events = []
    agreement = consented_agreement(
        load_settings(ClientConfig, trial / SITE),
        Roster.load(trial / "roster.json"),
        lambda event, **fields: events.append(event),
    )
    assert events == ["hidden mode"]
    assert agreement.sample_session().range_proof is not None


def test_the_optimiser_of_the_hidden_mode_is_the_agreements(trial: Path) -> None:
    hide(trial)
    with pytest.raises(UsageError, match="all clients derive the steps") as caught:
        serve_at(trial)
    assert "agreement.toml" in caught.value.hint


def test_settings_of_the_hidden_mode_do_not_stand_in_an_open_agreement(trial: Path) -> None:
    path = trial / "agreement.toml"
    text = path.read_text()
    for found, other, message in (
        ("kappa = 72", "kappa = 73", r"\[hidden\] has settings"),
        ('method = "sgd"', 'method = "adam"', r"\[optimizer\] stands in the agreement"),
        ('mode = "open"', 'mode = "secret"', "mode = 'secret' is not known"),
    ):
        path.write_text(text.replace(found, other))
        with pytest.raises(UsageError, match=message):
            serve_at(trial)


@pytest.mark.parametrize(("command", "file"), [("serve", FED), ("join", SITE)])
def test_the_commands_exit_with_2(dresfl: Run, trial: Path, command: str, file: str) -> None:
    strike(trial / file, OWN)
    result = dresfl(command, "--config", file, cwd=trial)
    assert result.returncode == 2
    assert "error: the agreement accepts that rows can be computed" in result.stderr
    assert "hint: in the open mode every client is sent" in result.stderr
    assert not (trial / "coordinator" / "run").exists()
    assert not (trial / "site-4" / "store").exists()


def test_a_trial_says_that_it_consents_for_everybody(written: Path) -> None:
    for name in ("agreement.toml", FED, SITE):
        assert OWN in (written / name).read_text()
    assert "public data" in OPEN_MODE_NOTE
