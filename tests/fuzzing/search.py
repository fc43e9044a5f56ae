"""`make fuzz`: atheris searches each decoder for inputs that it handles wrongly, led by the lines that they reach.

    python -m fuzzing.search --seconds 30 [TARGET ...]

What it finds is kept in tests/fuzzing/regressions/TARGET: `make test` tries it from then on. It wants a decoder that is
mended, not a file that is deleted.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

REGRESSIONS = Path(__file__).parent / "regressions"


def search(name: str, seconds: int) -> None:
    """Search one target in this process; it ends with the search."""
    import atheris

    sys.modules["numba"] = None  # type: ignore[assignment] - it cannot compile what is instrumented; nothing needs it
    with atheris.instrument_imports(include=["dresfl"]):
        from fuzzing.mutations import STRANGE_NUMBERS, STRANGE_VALUES
        from fuzzing.targets import targets

    target = targets()[name]
    kept = REGRESSIONS / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, sample in enumerate(target.samples):
            Path(corpus, f"{number}").write_bytes(sample)
        words = Path(corpus, "words")
        entries = ["".join(f"\\x{byte:02x}" for byte in word) for word in [*STRANGE_VALUES, *STRANGE_NUMBERS]]
        words.write_text("".join(f'"{entry}"\n' for entry in entries if len(entry) < 240))
        inputs = Path(corpus, "inputs")
        inputs.mkdir()
        for path in Path(corpus).glob("[0-9]*"):
            path.rename(inputs / path.name)
        options = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=20", "-rss_limit_mb=4096"]
        options += ["-malloc_limit_mb=512", f"-dict={words}", f"-artifact_prefix={kept}/", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *options, str(inputs)], target.tried)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="all, if none is named")
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument("--one", action="store_true", help="search a single target in this process")
    given = parser.parse_args()
    if given.one:
        search(given.targets[0], given.seconds)
        return
    from fuzzing.targets import targets

    failed = []
    for name in given.targets or targets():
        command = [sys.executable, "-m", "fuzzing.search", "--one", "--seconds", str(given.seconds), name]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        print(f"{'FAILED' if done.returncode else 'ok    '} {name}", flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stdout[-2000:] + done.stderr[-3000:])
        for empty in REGRESSIONS.glob("*"):
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()
    sys.exit(f"{len(failed)} targets failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
