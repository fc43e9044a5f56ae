"""Client and Server state machines and their messages: no I/O, no clock, no threads."""

from .client import Client, check_rows
from .messages import Answer, Share, Task
from .server import RoundRecord, Server, stepped
from .session import BatchRows, Session, choose_field, encode_rows, expand_masks

__all__ = [
    "Answer",
    "BatchRows",
    "Client",
    "RoundRecord",
    "Server",
    "Session",
    "Share",
    "Task",
    "check_rows",
    "choose_field",
    "encode_rows",
    "expand_masks",
    "stepped",
]
