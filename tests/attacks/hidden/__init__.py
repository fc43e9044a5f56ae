"""Attacks on the hidden mode: what they find, and what they would find if one rule were left out.

Every attack is a function that is played twice: against the protocol, where it finds nothing, and against a protocol
that lacks one rule (`weakened`), where it must find rows, weights or a second model. So each rule has a test that fails
without it. Where the test of a rule needs no attack it stands with the code, and the tables give its path.

Traps, in the order of the design notes. The file is in this folder unless a folder is named:

| trap | test | control |
|---|---|---|
| 1 a check before gradients alone | test_false_hops.py::test_a_shift_gives_rows_unless_the_next_hop_depends_on_the_check | no check; a check at weight hops alone |
| 2 a check for each prime | test_false_hops.py::test_a_shift_by_all_primes_but_one | a key for each prime |
| 3 a huge row | test_bad_dealers.py::test_range_proofs_exclude_the_dealer_of_a_huge_row | test_bad_dealers.py::test_a_huge_row_reads_weights_off_an_honest_hop |
| 4 small masks | test_bounds.py::test_the_planner_refuses_masks_that_are_too_small_for_a_run | test_bounds.py::test_masks_that_are_no_larger_than_values |
| 5 passive spans | test_span_and_lattice.py::test_spans_of_small_batches | masks set to zero |
| 6 labels without run or batch | test_one_run.py::test_two_runs_on_one_sharing | labels and seeds without the run |
| 6 labels without run or batch | test_one_run.py::test_two_clients_with_another_batch | labels and seeds without the run |
| 7 false weights before the last | test_returning.py::test_false_weights_before_the_last | labels without the broadcast before |
| 8 a lying client | test_liars.py::test_a_lie_gives_rows_to_the_liar | R answers are enough, no tag |
| 9 an early end | test_one_run.py::test_an_end_before_the_end | no check |
| 10 a share off its polynomial | test_bad_dealers.py::test_the_receiver_of_such_a_share_is_named_before_it_answers | test_bad_dealers.py::test_a_share_off_its_polynomial_exposes_its_receivers_share_of_the_weights |
| 11 overflow | test_bounds.py::test_a_run_that_diverges | no guards |
| 12 x + p | test_false_hops.py::test_a_residue_at_or_above_its_prime_forks_a_run | residues of any size |
| 13 two shards | test_false_hops.py::test_a_shift_at_the_second_shard_alone | a key of the first shard |

Rules:

| rule | tests |
|---|---|
| 1 labels | test_one_run.py::test_every_part_of_a_run_is_in_every_label, test_false_hops.py::test_masks_belong_to_one_course_of_a_run |
| 2 canonical bytes, ranges | test_false_hops.py::test_a_residue_at_or_above_its_prime_forks_a_run, tests/protocol/hidden/test_client.py::test_values_far_outside_the_masks_range_stop_a_client_for_good |
| 3 clients that return | test_returning.py::test_false_weights_before_the_last, test_returning.py::test_false_last_weights, test_returning.py::test_false_last_weights_and_an_invented_hop |
| 4 one end, budgets | test_one_run.py::test_an_end_before_the_end, test_one_run.py::test_after_the_end_nothing_is_answered, test_one_run.py::test_two_runs_for_two_halves, tests/protocol/hidden/test_client.py::test_another_run_digest_gives_other_masks_and_another_start, tests/storage/test_hidden_state.py::test_one_model_comes_of_a_sharing_unless_more_are_agreed_on |
| 5 R + T answers, and the tag | test_liars.py::test_a_lie_gives_rows_to_the_liar, test_liars.py::test_a_lie_stops_a_run_without_spare_answers, tests/protocol/hidden/test_client.py::test_one_liar_among_no_spare_answers_opens_nothing |
| 6 written down first, no way back | test_false_hops.py::test_nothing_leaves_before_it_is_written_down, test_false_hops.py::test_a_client_is_not_rewound, test_returning.py::test_an_old_past_is_refused, tests/storage/test_hidden_state.py::test_what_was_answered_is_found_again_and_never_taken_back, tests/storage/test_broadcasts.py::test_hops_are_found_again_and_old_rounds_go |
| 7 check C needs R + T values | test_liars.py::test_a_forged_check_value_passes_among_fewer_than_r_plus_t, test_false_hops.py::test_a_client_that_tells_the_coordinator_its_key |
| 8 sizes of checks and keys | test_false_hops.py::test_checks_are_as_large_as_they_must_be, tests/field/test_expansion.py |
| 9 a key of all shards | test_false_hops.py::test_a_shift_at_the_second_shard_alone, test_false_hops.py::test_a_false_sum_over_two_shards |
| 10 receivers that deviate | test_bad_dealers.py::test_the_receiver_of_such_a_share_is_named_before_it_answers, tests/protocol/test_findings.py::test_bad_degrees_bad_seeds_and_bad_ranges_together |
| 11 the smallest idempotent | tests/protocol/hidden/test_range_proof.py::test_where_the_limit_is_above_the_smallest_multiple_false_bits_pass, tests/protocol/hidden/test_range_proof.py::test_moduli_that_are_too_small_are_refused |
| 12 sums of 24-bit residues | tests/kernels/test_expansion.py, tests/field/test_expansion.py |
| 13 seeds move on | test_one_run.py::test_clients_that_are_taken_over_later, tests/protocol/hidden/test_client.py::test_old_seeds_are_forgotten, tests/storage/test_hidden_state.py::test_seeds_are_replaced_by_later_ones_and_overwritten |
| 14 ranks | tests/masking/test_hidden_families.py::test_words_and_ranks_by_flint, tests/masking/test_hidden_families.py::test_families_without_one_of_their_sets_are_refused |
| 15 guards | test_bounds.py::test_a_run_that_diverges |

Passive attacks: test_rows_from_everything.py (weights, sums, the first layer's outputs) and test_span_and_lattice.py.
Small changes, two groups, replays: test_false_hops.py. `test_traps.py` reports the active ones for `make attacks`.
"""  # noqa: E501
