"""The command line: results on stdout, progress on stderr, `error:` and `hint:` when something is wrong.

Exit codes: 0 done, 1 the run failed, 2 wrong usage or an infeasible plan, 3 too few clients answered, 130 interrupted.

Commands import what they need inside themselves: torch takes seconds, and most commands do without it.
"""

import errno
import os
import select
import sys
from typing import Any, cast


def main() -> None:
    """Run a command; turn every error that a user can cause into two lines and an exit code."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        _complain("interrupted", "run it again (train: with --resume) to go on from the last checkpoint")
    sys.exit(code)


def _run() -> int:
    import typer  # here and not above: Ctrl-C may come meanwhile

    from dresfl.errors import DresError
    from dresfl.files import TOO_MANY_OPEN

    from .commands import app

    try:
        from typer import TyperException as Complaint
    except ImportError:  # an older typer, which Flower wants, leaves it to click
        from click import ClickException as Complaint  # type: ignore[assignment]

    try:
        return int(app(standalone_mode=False) or 0)
    except DresError as error:
        _complain(str(error), error.hint)
        return error.exit_code
    except Complaint as error:
        _complain(cast(Any, error).format_message().rstrip("."), "dresfl --help shows the commands")
        return 2
    except typer.Abort:
        return 130
    except OSError as error:
        many = error.errno in (errno.EMFILE, errno.ENFILE)
        hint = TOO_MANY_OPEN if many else "check the path and the disk"
        _complain(f"{error.filename or 'a file'}: {error.strerror}", hint)
    except MemoryError:
        _complain("out of memory", "use a smaller batch or model")
    return 1


def _complain(message: str, hint: str) -> None:
    if message and not _stderr_is_stuck():
        ranks, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
        who = f"rank {rank}: " if rank and ranks not in ("", "1") else ""  # torchrun starts several of us
        print(f"error: {who}{message}", file=sys.stderr)
        if hint:
            print(f"hint: {hint}", file=sys.stderr)


def _stderr_is_stuck() -> bool:
    """Whether nobody reads the pipe that stderr is: an error is no reason to stay for ever."""
    try:
        return not select.select([], [sys.stderr.fileno()], [], 5.0)[1]
    except (OSError, ValueError):  # not a descriptor that can be asked
        return False
