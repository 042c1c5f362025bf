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
    scales = "all scales"

    @lmc.function
    @classmethod
    def of_class(cls, s, essay: str) -> str:
        s += f"{cls.__name__}, {cls.scales}: {essay}" + lmc.gen("grade", max_tokens=3)
        return s["grade"]

    @lmc.function
    @staticmethod
    def of_none(s, essay: str) -> str:
        s += f"{essay}" + lmc.gen("grade", max_tokens=3)
        return s["grade"]

    @classmethod
    @lmc.function
    def upside_down(cls, s, essay: str) -> str:
        return essay

    @lmc.function
    def both(self, s, essay: str):
        (f,) = s.fork(1)
        f += lmc.gen("first", max_tokens=3)
        first = f["first"]
        return first, self.of_class(essay).ret_value, self.of_none(essay).ret_value

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


class Strict(Grader):
    scales = "one scale"


def test_a_class_method_is_a_program_of_the_class_that_it_is_read_from():
    backend = lmc.Mock()
    assert Grader.of_class.run("x", backend=backend).text().startswith("Grader, all scales: x")
    assert Strict("A").of_class.run(essay="x", backend=backend).text().startswith("Strict, one scale: x")
    assert str(inspect.signature(Strict.of_class)) == "(s, essay: str) -> str"
    conform(Strict.of_class, [{"essay": "x"}, {"essay": "y"}])


def test_a_static_method_is_a_program_of_its_own():
    backend = lmc.Mock()
    states = [program.run(essay="x", backend=backend) for program in (Grader.of_none, Grader("A").of_none)]
    assert states[0].text() == states[1].text() and states[0].text().startswith("x")


def test_class_methods_are_in_the_graph_of_their_callers():
    assert 'concat("Strict", ", ", "one scale", ": ", %essay)' in lmc.compile(Strict("A").both).dump_ir(after="trace")


def test_the_other_order_of_decorators_says_what_to_write():
    with pytest.raises(lmc.ProgramError, match=r"upside_down.*write @lmc.function above @classmethod"):
        Grader.upside_down.run(essay="x", backend=lmc.Mock())
