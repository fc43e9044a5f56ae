"""Client and Server state machines and their messages: no I/O, no clock, no threads."""

from .client import Client, answer_from_shares, check_rows
from .evaluation import Evaluation
from .messages import Answer, Share, Task
from .server import RoundRecord, Server, stepped
from .session import BatchRows, Session, choose_field, encode_rows, expand_masks, most_client_rows
from .shares import AnsweredRounds, MemoryAnswers, MemoryTable, ShareTable
from .slices import num_slices, row_bytes, slice_range, slice_rows

__all__ = [
    "Answer",
    "AnsweredRounds",
    "BatchRows",
    "Client",
    "Evaluation",
    "MemoryAnswers",
    "MemoryTable",
    "RoundRecord",
    "Server",
    "Session",
    "Share",
    "ShareTable",
    "Task",
    "answer_from_shares",
    "check_rows",
    "choose_field",
    "encode_rows",
    "expand_masks",
    "most_client_rows",
    "num_slices",
    "row_bytes",
    "slice_range",
    "slice_rows",
    "stepped",
]
