"""How a timing goes wrong, each way held by a test of its name."""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PITFALLS = {
    "P1 an event pair holds the launch gap": [
        ("test_ledger_device.py", "test_an_event_pair_holds_the_launch_gap"),
    ],
    "P2 work bleeds into the next stage": [
        ("test_ledger_device.py", "test_the_device_has_a_timeline_of_its_own_and_both_add_up"),
    ],
    "P3 cost moves to whoever waits": [
        ("test_host_syncs.py", "test_each_stage_has_its_syncs_kernels_and_memory"),
    ],
    "P4 nested events count twice": [
        ("test_ledger.py", "test_any_tree_of_stages_adds_up"),
        ("trace/test_trace_nesting.py", "test_self_times_of_a_tree_sum_to_its_root"),
    ],
    "P5 overlapping durations count twice": [
        ("trace/test_trace_nesting.py", "test_any_tangle_counts_each_moment_once"),
        ("trace/test_trace_nesting.py", "test_device_times_are_unions"),
    ],
    "P6 a replayed graph looks idle": [
        ("trace/test_trace_accounts.py", "test_graph_replays_without_kernels_give_no_verdict"),
    ],
    "P7 waiting is taken for communication": [
        ("test_communication.py", "test_the_rank_that_is_late_is_named_and_the_other_waits"),
        ("trace/test_trace_accounts.py", "test_a_collective_costs_its_minimum_and_the_rest_is_waiting"),
    ],
    "P8 missing is shown as 0": [
        ("test_ledger.py", "test_every_moment_is_on_one_stage_and_what_was_not_seen_is_missing"),
        ("test_sweep.py", "test_rows_have_the_columns_of_the_contract_and_add_up"),
    ],
    "P9 one arm's memory is the next one's": [
        ("test_race.py", "test_an_arms_workers_that_went_on_while_others_ran_make_no_block_shorter"),
    ],
    "P10 taking turns disturbs": [
        ("test_race.py", "test_a_wild_round_and_an_effect_of_the_position_are_no_difference_between_arms"),
    ],
    "P11 the first batch, the workers' start": [
        ("test_warmup.py", "test_slow_first_steps_are_left_out_and_little_more"),
        ("test_warmup.py", "test_steps_before_the_loader_was_primed_are_warm_up_whatever_the_clock_says"),
    ],
    "P12 one slow batch, then some fast ones": [
        ("test_race.py", "test_blocks_of_arms_of_unlike_speed_are_about_as_long_and_whole_periods"),
    ],
    "P13 pinned memory either way": [
        ("test_loading.py", "test_every_axis_of_loading_is_run_by_a_point"),
        ("test_loading.py", "test_what_needs_cuda_says_so"),
    ],
    "P14 the profiler changes the thing": [
        ("test_self_test.py", "test_the_receipt_says_what_a_ledger_costs"),
    ],
    "P15 parameters that DDP waits for in vain": [
        ("test_ranks.py", "test_unused_parameters_are_refused_by_name_and_taken_where_ddp_looks_for_them"),
    ],
    "P17 warm-up never ends": [
        ("test_warmup.py", "test_what_still_changes_is_not_steady"),
    ],
    "P18 fast because wrong": [
        ("test_mutants.py", "test_a_wrong_strategy_fails_the_equivalence_check"),
        ("test_contest.py", "test_a_strategy_that_is_wrong_is_not_raced"),
    ],
    "P19 the garbage collector": [
        ("test_race.py", "test_the_collector_is_off_in_blocks_and_as_it_was_afterwards"),
    ],
}


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_each_pitfall_has_its_test(pitfall):
    for file, name in PITFALLS[pitfall]:
        tree = ast.parse((HERE / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (file, name)
