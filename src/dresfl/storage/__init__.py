"""What a participant keeps on its disk: shares, answered rounds, run folders, model files."""

from .answered_rounds import AnswerLog
from .share_store import ShareStore, Sharing, data_digest
from .share_table import DiskTable
