"""Programs that are methods: the object comes first, the state behind it."""

import asyncio
import inspect

import pytest

import lmc
from tests.conformance.harness import conform


@lmc.function
def free(s, text):
    s += text + lmc.gen("free", max_tokens=3)
    return s["free"]


class Grader:
    """A class with programs."""

    held = free  # of another place: the class only holds it

    def __init__(self, scale):
        self.scale = scale

    @lmc.function
    def grade(self, s, essay: str) -> str:
        """Grades an essay."""
        s += f"From {self.scale}: {essay}" + lmc.gen("grade", max_tokens=3)
        reason = self.reason("why", s["grade"])
        return s["grade"] + " " + reason.ret_value

    @lmc.function
    def reason(self, s, question, grade):
        s += f"{question} {grade} of {self.scale}" + lmc.gen("reason", max_tokens=3)
        return s["reason"]

    @lmc.function
    async def later(self, s, essay):
        s += f"{self.scale} {essay}" + lmc.gen("grade", max_tokens=3)
        return s["grade"]


def test_a_method_is_a_program_of_its_object():
    backend = lmc.Mock()
    one, other = Grader("A to F"), Grader("1 to 6")
    state = one.grade.run(essay="x", backend=backend)
    assert state.text().startswith("From A to F: x")
    assert state.ret_value == one.grade("x", backend=backend).ret_value != other.grade("x", backend=backend).ret_value
    assert isinstance(one.grade, lmc.Function) and list(inspect.signature(one.grade).parameters) == ["s", "essay"]
    assert one.grade.name == "grade" and one.grade.__doc__ == "Grades an essay."


def test_methods_compile_and_come_in_batches():
    backend, grader = lmc.Mock(), Grader("A to F")
    program = lmc.compile(grader.grade, backend=backend)
    plain = [grader.grade(essay, backend=backend, temperature=0).ret_value for essay in "xyz"]
    assert [state.ret_value for state in program.batch([{"essay": essay} for essay in "xyz"], temperature=0)] == plain
    assert [state.ret_value for state in grader.grade.run_batch([(essay,) for essay in "xyz"], backend=backend, temperature=0)] == plain
    assert grader.grade.bind(essay="x")(backend=backend, temperature=0).ret_value == plain[0]


def test_methods_mean_the_same_in_every_execution():
    conform(Grader("A to F").grade, [{"essay": "x"}, {"essay": "y"}])


def test_programs_of_the_same_object_are_followed():
    ir = lmc.compile(Grader("A to F").grade).dump_ir(after="trace")
    assert ir.count("= gen(") == 2 and ir.count("A to F") == 2 and "unknown" not in ir


def test_a_program_that_a_class_holds_is_no_method():
    assert Grader("A to F").held is free and Grader.held is free


def test_async_methods():
    grader, backend = Grader("A to F"), lmc.Mock()
    state = asyncio.run(lmc.compile(grader.later, backend=backend).acall(essay="x"))
    assert state.ret_value == grader.later.run(essay="x", backend=backend).ret_value


def test_methods_are_inherited_and_overridden():
    class Strict(Grader):
        @lmc.function
        def reason(self, s, question, grade):
            return "because"

    assert Strict("A").grade("x", backend=lmc.Mock()).ret_value.endswith(" because")


def test_a_compiled_program_has_the_functions_signature():
    program = lmc.compile(free)
    assert inspect.signature(program) == inspect.signature(free) == inspect.signature(free.func)
    assert program.__name__ == "free" and program.__doc__ == free.__doc__


def test_a_wrong_argument_names_the_method():
    with pytest.raises(lmc.ArgumentError, match=r"program grade\(essay\).*no parameter 'esay'"):
        Grader("A").grade.run(esay="x")
