"""The command line: results on stdout, progress on stderr, `error:` and `hint:` when something is wrong.

Exit codes: 0 done, 1 the run failed, 2 wrong usage or an infeasible plan, 3 too few clients answered, 130 interrupted.
"""

import sys
from typing import Any, cast

import typer

from dresfl.errors import DresError
from dresfl.kernels.cpu import keep_freed_memory

from .commands import app


def main() -> None:
    """Run a command; turn every error that a user can cause into two lines and an exit code."""
    keep_freed_memory()
    try:
        code = app(standalone_mode=False) or 0
    except DresError as error:
        code = _complain(str(error), error.hint, error.exit_code)
    except typer.TyperException as error:
        code = _complain(cast(Any, error).format_message().rstrip("."), "dresfl --help shows the commands", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _complain("interrupted", "dresfl train … --resume goes on from the last checkpoint", 130)
    except OSError as error:
        code = _complain(f"{error.filename or 'a file'}: {error.strerror}", "check the path and the disk", 1)
    except MemoryError:
        code = _complain("out of memory", "use a smaller batch or model", 1)
    sys.exit(code)


def _complain(message: str, hint: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code
