"""ReAct with a calculator: the model thinks, calls a tool, reads the result, and goes on until it finishes.

What to see here: the loop, the branch and the tool are plain Python on the model's answers. Each tool call runs
exactly once per run, in order, compiled or not.

    lmc run examples/react.py:react --arg question="What is 12 * 7?" --temperature 0
"""

import ast
from collections.abc import Callable

import lmc

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: float.__add__,
    ast.Sub: float.__sub__,
    ast.Mult: float.__mul__,
    ast.Div: float.__truediv__,
}


def calculator(expression: str) -> str:
    """The value of an arithmetic expression of numbers, + - * / and brackets; what is wrong with it otherwise."""
    try:
        return f"{_evaluate(ast.parse(expression.strip(), mode='eval').body):g}"
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError) as error:
        return f"error: {error}"


def _evaluate(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case _:
            raise ValueError(f"only numbers and + - * / ( ) are allowed, not {ast.unparse(node)}")


SHOTS = """Question: What is 3 + 4?
Action: Calculate[3 + 4]
Result: 7
Action: Finish[7]

Question: Anna has 5 boxes with 6 pens each. How many pens?
Action: Calculate[5 * 6]
Result: 30
Action: Finish[30]

"""


@lmc.function
def react(s: lmc.State, question: str, max_steps: int = 4) -> str | None:
    s += SHOTS + "Question: " + question + "\n"
    for _ in range(max_steps):
        s += "Action: " + lmc.select("action", choices=["Calculate", "Finish"]) + "["
        s += lmc.gen("argument", max_tokens=24, stop=["]", "\n"])
        s += "]\n"
        if s["action"] == "Finish":
            return s["argument"]
        s += "Result: " + calculator(s["argument"]) + "\n"
    return None


def main() -> None:
    for question in ("What is 12 * 7?", "A train has 8 cars with 40 seats each. How many seats?"):
        state = react.run(question=question, temperature=0)
        print(question, "->", state.ret_value)


if __name__ == "__main__":
    main()
