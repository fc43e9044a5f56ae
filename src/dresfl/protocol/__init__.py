"""The protocol of the open mode: session, messages, the computations of a round, `Client` and `Training`.

No I/O, no clock, no threads.
"""

from .client import Client, answer_from_shares, check_complete, encoded_answer, rows_to_share
from .dealer_check import (
    Verdict,
    coin_commitment,
    combine_shares,
    common_coins,
    fewest_receivers,
    judge,
    num_combinations,
)
from .evaluation import Evaluation
from .findings import (
    Conclusion,
    Findings,
    checkers_needed,
    conclude,
    examine_dealers,
    findings_bytes,
    most_findings_bytes,
)
from .local_plan import LocalPlan, make_local_plan
from .messages import Answer, Share, Task
from .round import (
    answers_of,
    coded_answer,
    coded_gradient,
    coded_gradient_parts,
    decode_answers,
    decode_part,
    decode_sum,
    direct_sum,
    encode_rows,
    encoded_gradient,
    expand_masks,
    mask_rows,
    step,
    step_in_blocks,
)
from .session import BatchRows, Session, choose_field, most_client_rows
from .set_up import (
    SetUp,
    blinding_of,
    check_bytes,
    deal_set_up,
    fresh_blinding,
    held_set_ups,
    most_set_up_bytes,
    opening_label,
    seed_hashes,
    seeds_of,
    set_up_bytes,
)
from .shares import AnsweredRounds, MemoryAnswers, MemoryTable, ShareTable
from .slices import num_slices, row_bytes, slice_range, slice_rows
from .sums import (
    MemoryNotes,
    NotedSum,
    SumNotes,
    SumPlan,
    Totals,
    accuracy_counts,
    accuracy_plan,
    add_shares,
    deal_vector,
    decode_totals,
    final_sum,
    vector_tag,
)
from .training import RoundRecord, Training, stepped
