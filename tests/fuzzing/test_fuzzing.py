"""Every decoder refuses or accepts whatever comes: no other error, and no more memory than its input is worth."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dresfl.federation.messages import FROM_CLIENT, FROM_COORDINATOR

from .file_targets import bombs
from .mutations import mutated
from .targets import targets

REGRESSIONS = Path(__file__).parent / "regressions"
NAMES = list(targets())
FEWER = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def regressions() -> list[tuple[str, Path]]:
    """Inputs that made a decoder fail once, by target."""
    return [(path.parent.name, path) for path in sorted(REGRESSIONS.glob("*/*"))]


def memory(name: str, data: bytes) -> int:
    """The most bytes that a decoder holds at once while it takes an input."""
    tracemalloc.start()
    try:
        targets()[name].tried(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_every_kind_of_message_is_a_target() -> None:
    assert {f"message {kind.__name__}" for kind in (*FROM_CLIENT, *FROM_COORDINATOR)} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_valid_input_is_accepted(name: str) -> None:
    target = targets()[name]
    assert target.tried(target.samples[0]) or name == "sealed file, no key"


@pytest.mark.parametrize("name", NAMES)
@FEWER
@given(st.data())
def test_any_bytes(name: str, data: st.DataObject) -> None:
    targets()[name].tried(data.draw(st.binary(max_size=300)))


@pytest.mark.parametrize("name", NAMES)
@FEWER
@given(st.data())
def test_a_valid_input_with_changes(name: str, data: st.DataObject) -> None:
    targets()[name].tried(data.draw(mutated(targets()[name].samples)))


@pytest.mark.parametrize("name", NAMES)
@settings(FEWER, max_examples=3)
@given(st.data())
def test_memory(name: str, data: st.DataObject) -> None:
    target = targets()[name]
    target.tried(target.samples[0])  # what is made once and kept is made now
    changed = data.draw(mutated(target.samples))
    assert memory(name, changed) <= target.most_memory(changed)


@pytest.mark.parametrize(("name", "data"), bombs().items(), ids=bombs())
def test_a_bomb_is_not_unpacked(name: str, data: bytes) -> None:
    assert not targets()[name].tried(data)
    assert memory(name, data) < 2**22


@pytest.mark.parametrize(("name", "path"), regressions(), ids=lambda value: getattr(value, "name", value))
def test_what_was_found_before(name: str, path: Path) -> None:
    data = path.read_bytes()
    targets()[name].tried(data)
    assert memory(name, data) <= targets()[name].most_memory(data)
