"""Golden tests of canonicalize."""

from __future__ import annotations

from tests.passes.filecheck import check_changes, check_unchanged


def test_appends_with_one_use_are_merged() -> None:
    check_changes("canonicalize", """
        %c0 = ctx.new()
      + %c3 = append(%c0, "You grade essays. ", %essay, special("<|im_end|>"), "\\n")
      - %c1 = append(%c0, "You grade ")
      - %c2 = append(%c1, "essays. ", "", %essay) loc("judge.py":5)
      - %c3 = append(%c2, special("<|im_end|>"), "\\n")
        %c4, %x, %m = gen(%c3)
        return(%x, %c4)
    """)  # fmt: skip


def test_a_fork_point_stays() -> None:
    check_unchanged("canonicalize", """
        %c0 = ctx.new()
        %c1 = append(%c0, "shared")
        %c2 = append(%c1, "left")
        %c3 = append(%c1, "right")
        %u = unknown(%c2, %c3)
        raise(%u)
    """)  # fmt: skip


def test_what_unknown_code_has_stays() -> None:
    check_unchanged("canonicalize", """
        %c0 = ctx.new()
        %c1 = append(%c0, "a")
        switch(%essay) ["x" -> ^a, _ -> ^b]
      ^a:
        %c2 = append(%c1, "b")
        return(none, %c2)
      ^b:
        %u = unknown(%c1)
        raise(%u)
    """)  # fmt: skip


def test_text_moves_to_the_only_arm_that_uses_it() -> None:
    check_changes("canonicalize", """
        %c0 = ctx.new()
      - %c1 = append(%c0, "a")
        switch(%essay) ["x" -> ^a, _ -> ^b]
      ^a:
      - %c2 = append(%c1, "b")
      + %c2 = append(%c0, "ab")
        return(none, %c2)
      ^b:
        raise(none)
    """)  # fmt: skip


def test_concat_folds_and_flattens_into_append() -> None:
    check_changes("canonicalize", """
        %c0 = ctx.new()
      + %c1 = append(%c0, "Essay: ", %essay, %essay)
      - %a = concat("Es", "say: ")
      - %b = concat(%a, %essay)
      - %e = concat("", %b, "")
      - %one = concat(%essay)
      - %c1 = append(%c0, %e, %one)
        return(none, %c1)
    """)  # fmt: skip


def test_a_concat_used_twice_is_not_copied() -> None:
    check_unchanged("canonicalize", """
        %c0 = ctx.new()
        %a = concat("x", %essay)
        %c1 = append(%c0, %a, %a)
        return(%a, %c1)
    """)  # fmt: skip


def test_a_concat_of_what_may_not_be_text_is_put_into_a_prompt_and_stands_for_text_elsewhere() -> None:
    check_changes("canonicalize", """
        %c0 = ctx.new()
        %v = py.f(%essay)
      - %a = concat(%v)
      - %b = concat("x", %v)
      - %c1 = append(%c0, %a, %b)
      + %c1 = append(%c0, %v, "x", %v)
        %d = concat(%v)
        return(%d, %c1)
    """)  # fmt: skip


def test_text_is_not_joined_across_special_tokens_and_marks() -> None:
    check_unchanged("canonicalize", """
        %c0 = ctx.new()
        %c1 = append(%c0, "a", special("<s>"), "b", begin("user"), "c")
        return(none, %c1)
    """)  # fmt: skip


def test_an_append_of_nothing_is_its_prompt() -> None:
    check_changes("canonicalize", """
        %c0 = ctx.new()
      - %c1 = append(%c0, "")
      - %c2 = append(%c1)
      - return(none, %c2)
      + return(none, %c0)
    """)  # fmt: skip


def test_adding_texts_is_a_concat() -> None:
    check_changes("canonicalize", """
        %c0 = ctx.new()
      + %c1 = append(%c0, "Essay: ", %essay, "\\n")
      - %a: str = py.add("Essay: ", %essay)
      - %b: str = py.add(%a, "\\n")
      - %c1 = append(%c0, %b)
        return(none, %c1)
    """)  # fmt: skip


def test_adding_what_may_not_be_text_stays() -> None:
    check_unchanged("canonicalize", """
        %a = py.add("x", %essay)
        %b: str = py.add("x", %a)
        raise(%b)
    """)  # fmt: skip
