"""The mistakes that others made, by number: where each of them is tested."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance.table import TABLE

COMPILED, OUTSIDE, CALLERS = "conformance/test_compiled.py", "conformance/test_outside.py", "conformance/test_callers.py"
INTERPRETER = "frontend/test_interpreter.py"

MISTAKES: dict[int, tuple[str, str, dict[str, str]]] = {
    1: ("a branch on an answer frozen", "branch_on_output while_not_in chat_until", {}),
    2: ("a branch, loop, len or index on arguments; dummy arguments", "branch_on_arguments no_dummies", {}),
    3: ("string operations on answers", "strings text_taken_apart", {}),
    4: ("names and expressions used again", "reuse an_argument_used_twice", {}),
    5: ("effects once, in order, never while tracing", "effects time_random_and_files",
        {COMPILED: "test_print test_effects_are_each_once_per_run test_tracing_does_nothing"}),
    6: ("mutated objects, closures, defaults", "outside_list stops a_closure_over_a_list changed_before_it_is_asked list_of_the_outside",
        {OUTSIDE: "test_a_global_that_each_run_counts_up test_a_mutable_default_is_one_object"}),
    7: ("exceptions", "raises_between catches in_role tool_raises a_fault_at_the_first_read a_fault_in_a_fork_that_nobody_reads bare_raise",
        {COMPILED: "test_an_item_of_a_batch_that_fails"}),
    8: ("early return, gens that nobody reads", "early_return", {COMPILED: "test_unread_forks_are_not_generated"}),
    9: ("nested forks", "nested joins join_concatenated with_helper a_group_in_a_fork", {}),
    10: ("sub-programs", "children_of_children children_with_options", {INTERPRETER: "test_10_sub_programs_run_beside_the_caller"}),
    11: ('"x" in s', "contains", {}),
    12: ("siblings are independent samples", "",
         {INTERPRETER: "test_12_siblings_are_independent_samples_and_runs_repeat", COMPILED: "test_siblings_differ_and_equal_asks_merge_at_0_only"}),
    13: ("token boundaries", "", {"backend/test_local.py": "test_text_is_one_run_however_it_is_cut test_generated_ids_are_kept_as_generated",
         "backend/engine/test_tokenizer.py": "test_the_spelling_in_plain_text_is_plain_however_it_is_cut"}),
    14: ("no prompt is changed", "",
         {INTERPRETER: "test_14_prompts_are_exactly_what_the_program_wrote",
          "passes/test_aggressive.py": "test_it_runs_only_on_request_and_explain_shows_both_texts"}),
    15: ("API targets", "", {"passes/test_plan_speculation.py": "test_a_chain_of_gens_gets_a_template",
         "api/test_speculation.py": "test_an_answer_is_taken_only_where_that_is_certain test_a_model_that_breaks_the_template_costs_at_most_one_call_more "
                                    "test_a_limit_holds",
         "api/test_conformance.py": "test_an_api_gives_what_the_mock_gives test_random_programs_give_what_they_give_on_the_mock"}),
    16: ("streams", "", {"conformance/test_streams.py": "test_a_compiled_stream_is_the_interpreters test_an_abandoned_stream_stops_its_run",
         "test_cutting_off.py": "test_the_engine_has_all_its_pages_back"}),
    17: ("a mutable result is not pure", "mutable_result", {}),
    18: ("an unused op that can raise", "unused_raiser", {}),
    19: ("values in containers and outside hooks", "values_in_containers python_calls_in python_calls_dict", {}),
    20: ("max, sorted, any over values", "order_of_forks", {}),
    21: ("helpers without a state argument", "helpers", {}),
    22: ("containers that escape", "containers_escape", {}),
    23: ("the outside changes mid-run", "outside_changes queue_argument", {COMPILED: "test_what_a_tool_has_changed_is_read_in_the_next_run"}),
    24: ("iterating what the host made", "iterations files_and_sets", {}),
    25: ("tools that call the program, locks, async tools, threads", "locks",
         {COMPILED: "test_a_tool_runs_the_program_it_belongs_to", "conformance/test_async.py": "test_gathered_tools_run_at_the_same_time",
          "conformance/test_decorated.py": "test_threads_of_the_users_call_one_program"}),
    26: ("a branch first taken late", "late_branch", {COMPILED: "test_a_branch_that_is_first_taken_late"}),
    27: ("what a loop has seen", "seen_by_set.add seen_by_dict[] seen_outside seen_kept_in_a_closure", {}),
    28: ("copies of outside containers", "dict_of_a_global dict_of_a_mapping_proxy dict_of_the_environment slice_replaced_by_a_global parameters_of_a_global "
         "the_same_kind_as_a_global", {OUTSIDE: "test_what_is_outside_is_read_anew_for_each_call"}),
    29: ("files that change, reloaded modules", "",
         {CALLERS: "test_a_file_edited_after_import_is_not_what_runs test_reload_runs_the_new_code_and_keeps_the_old"}),
    30: ("frames and lines", "", {CALLERS: "test_logging_names_the_callers_file_and_line test_warnings_name_the_callers_file_and_line "
         "test_tools_see_the_programs_frame test_asserts_that_pytest_rewrote_keep_their_messages test_a_debugger_and_coverage_see_the_programs_lines"}),
    31: ("recursion, decorators, methods", "helpers_under_decorators", {CALLERS: "test_recursion", "conformance/test_decorated.py":
         "test_a_decorator_under_lmc_function test_a_decorator_over_lmc_function test_a_bound_method_is_a_program"}),
    32: ("gathered forks ask at once", "gathered_forks", {"frontend/test_suspending.py": "test_tasks_of_a_program_ask_at_once"}),
}  # fmt: skip
"""Number: what it is, its programs in the table, and its other tests: functions and cases, by file."""


def test_each_mistake_has_tests() -> None:
    assert list(MISTAKES) == list(range(1, 33))
    for number, (what, programs, files) in MISTAKES.items():
        assert programs or files
        assert not set(programs.split()) - set(TABLE), f"{number}, {what}: the table has no {set(programs.split()) - set(TABLE)}"
        for file, names in files.items():
            there = set(re.findall(r"^(?:async )?def (\w+)", (Path(__file__).parent.parent / file).read_text(), re.MULTILINE))
            assert not set(names.split()) - there, f"{number}, {what}: {file} has no {set(names.split()) - there}"
