"""Values as data: what comes back is what went in, and reading executes nothing."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import pathlib
import subprocess
import sys
import urllib.error
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import httpx
import jsonschema
import lark
import pytest
import requests
import yaml
from hypothesis import given
from hypothesis import strategies as st

import lmc
from lmc import codec, json_data
from lmc.codec import BadData, NotData, decode, encode, reading
from lmc.durable import changes, mutations
from lmc.json_data import from_bytes, to_bytes
from tests.searching import search


class Color(enum.Enum):
    RED = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2

    @classmethod
    def _missing_(cls, value: object) -> Any:
        CALLED.append(value)
        return super()._missing_(value)


class Codes(enum.IntFlag):
    ONE = 1


class Slotted(ValueError):
    __slots__ = ("code",)


class Point(NamedTuple):
    x: int
    y: Any


@dataclasses.dataclass(frozen=True)
class Page:
    title: str
    tags: list[str]

    def __post_init__(self) -> None:
        CALLED.append(self)


class Refused(ValueError):
    def __init__(self, what: str, code: int) -> None:
        CALLED.append(self)
        super().__init__(f"{what} refused")
        self.code = code


CALLED: list[Any] = []


def there_and_back(x: Any) -> Any:
    return decode(from_bytes(to_bytes(encode(x))))


_atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()) | st.binary(max_size=8)
_keys = st.text(max_size=3) | st.integers() | st.tuples(st.text(max_size=2), st.integers()) | st.sampled_from(["!", "!x"])
_data = st.recursive(
    _atoms, lambda s: st.lists(s, max_size=3) | st.dictionaries(_keys, s, max_size=3) | st.tuples(s, s) | st.frozensets(_keys, max_size=3),
    max_leaves=8,
)  # fmt: skip


@search(9, 60)
@given(_data)
def test_values_come_back(x: Any) -> None:
    back = there_and_back(x)
    assert back == x and _typed(back) == _typed(x)  # 1, True and 1.0 are three values


def _typed(x: Any) -> Any:
    if isinstance(x, dict):
        return [(_typed(k), _typed(v)) for k, v in x.items()]
    return type(x), sorted(map(repr, x)) if isinstance(x, frozenset) else list(map(_typed, x)) if isinstance(x, list | tuple) else repr(x)


CET = datetime.timezone(datetime.timedelta(hours=1), "CET")


@pytest.mark.parametrize("x", [
    datetime.datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=datetime.UTC), datetime.date(1, 2, 3), datetime.timedelta(1, 2, 3), datetime.time(1, 2),
    decimal.Decimal("1.10"), uuid.UUID(int=7), pathlib.PurePosixPath("/a/b"), Color.RED, Point(1, [2]), Page("a", ["b"]), deque([1], maxlen=2),
    OrderedDict([("b", 1), ("a", 2)]), Counter("aab"), defaultdict(list, {"a": [1]}), bytearray(b"x"), 1 + 2j, range(1, 9, 2), slice(1, None),
    "\ud800", float("inf"), 1 << 64, -(1 << 99), {7: 1 << 64}, fractions.Fraction(1 << 70, 3), range(0, 1 << 70, 1 << 66), {"!": ["tuple", []]}, ...,
    Rights.READ | Rights.WRITE, Rights(0), Codes(12), [Rights.READ],
    datetime.datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    CET, datetime.UTC, datetime.timezone(datetime.timedelta(seconds=-5)), [CET, CET], zoneinfo.ZoneInfo("Europe/Berlin"),
    datetime.datetime(2026, 2, 3, tzinfo=CET), datetime.time(4, tzinfo=datetime.timezone(datetime.timedelta(0), "GMT")),
])  # fmt: skip
def test_objects_come_back(x: Any) -> None:
    back = there_and_back(x)
    assert type(back) is type(x) and repr(back) == repr(x)


def test_numbers_of_more_digits_than_python_reads() -> None:
    assert there_and_back([10**5000, -(10**5000)]) == [10**5000, -(10**5000)]


def test_one_list_held_twice_comes_back_as_one() -> None:
    row: list[Any] = [0]
    rows = there_and_back([row, (row,), {"r": row}])
    assert rows[0] is rows[1][0] is rows[2]["r"]
    row.append(row)
    back = there_and_back(row)
    assert back[1] is back


def test_no_constructor_runs() -> None:
    page, error = Page("a", []), Refused("card", 7)
    error.add_note("n")
    CALLED.clear()
    assert there_and_back(page) == page
    back = there_and_back(error)
    assert (type(back), str(back), back.args, back.code, back.__notes__) == (Refused, "card refused", ("card refused",), 7, ["n"])
    assert CALLED == []
    for error in (OSError(2, "no", "f"), KeyError("k"), ExceptionGroup("g", [ValueError(1)]), UnicodeDecodeError("utf-8", b"x", 0, 1, "r")):
        assert (str(there_and_back(error)), type(there_and_back(error))) == (str(error), type(error))


def test_what_exceptions_hold_beside_their_arguments() -> None:
    slotted = Slotted("s")
    slotted.code, slotted.__cause__ = 7, KeyError("from")  # type: ignore[attr-defined]
    back = there_and_back(slotted)
    assert (back.code, repr(back.__cause__), vars(back)) == (7, "KeyError('from')", {})
    slotted.__cause__ = LookupError(object())
    assert there_and_back(slotted).__cause__ is None  # as its traceback
    for error in (subprocess.CalledProcessError(1, ["false"], b"out"), subprocess.TimeoutExpired(["sleep"], 1.5), urllib.error.URLError(OSError(2, "no"))):
        back = there_and_back(error)
        assert (str(back), repr(back.args), repr(vars(back))) == (str(error), repr(error.args), repr(vars(error)))
    for error in (ImportError("i", name="n", path="p"), AttributeError("a", name="n"), NameError("n", name="n")):
        back = there_and_back(error)
        assert (str(back), back.name, getattr(back, "path", None)) == (str(error), error.name, getattr(error, "path", None))


def raised(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def answers_404() -> None:
    response = requests.Response()
    response.status_code, response.url, response._content = 404, "http://x.org/", b"no"
    response.raise_for_status()


def rings() -> None:
    error = ValueError("ring", [])
    error.args[1].append(error)
    raise error


OF_LIBRARIES = (
    lambda: json.loads("{"), lambda: yaml.safe_load("a: [1"), lambda: yaml.safe_load("a: '"),
    lambda: subprocess.run(["false"], check=True, capture_output=True),
    lambda: jsonschema.validate({"a": [1]}, {"properties": {"a": {"items": {"type": "string"}}}}),
    lambda: jsonschema.validate(1, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    lambda: httpx.Response(404, request=httpx.Request("GET", "http://x.org/")).raise_for_status(), answers_404, lambda: lark.Lark('start: "a"').parse("b"),
)  # fmt: skip


@pytest.mark.parametrize("call", OF_LIBRARIES)
def test_exceptions_of_libraries_come_back_with_their_message(call: Callable[[], Any]) -> None:
    error = raised(call)
    back = there_and_back(error)
    assert (type(back), str(back), vars(back).keys()) == (type(error), str(error), vars(error).keys())
    assert there_and_back(back).__class__ is type(error), "also from a resumed run"


def test_what_is_lost_of_an_exception_is_found_nowhere_else() -> None:
    for data in ({"!": ["set", [{"!": ["lost", "x"]}]]}, {"!": ["error", "builtins:ExceptionGroup", ["g", {"!": ["lost", "x"]}], [], ""]}):
        with pytest.raises(BadData):
            decode(data)


def test_a_part_of_an_exception_that_is_no_data_is_refused_where_it_is_used() -> None:
    back: Any = there_and_back(raised(answers_404))
    for use in (lambda: back.response.status_code, lambda: bool(back.response), lambda: f"{back.response}", lambda: back.response == 1):
        with pytest.raises(lmc.JournalError, match="a part of an exception, a Response, is no data, and so not in the journal"):
            use()
    marked = there_and_back(raised(lambda: yaml.safe_load("a: [1")))
    assert marked.args[3] is marked.problem_mark and (marked.problem_mark.line, marked.problem_mark.column) == (0, 5)


def test_an_exception_whose_message_is_no_data_is_none() -> None:
    for error in (ValueError(object()), KeyError("k", object()), raised(rings), ExceptionGroup("g", [ValueError(object())])):
        with pytest.raises(NotData, match=r"a (object|ValueError that holds itself)"):
            encode(error)


def test_a_combination_of_flags_runs_no_code() -> None:
    data = encode(Rights.READ | Rights.WRITE)
    del Rights._value2member_map_[3]  # as in another process
    CALLED.clear()
    assert repr(decode(data)) == "<Rights.READ|WRITE: 3>" and CALLED == []


def test_what_is_not_data_is_refused() -> None:
    class Local(Exception):
        pass

    deep: list[Any] = []
    for _ in range(1000):
        deep = [deep]
    for x in (object(), iter([]), lambda: 0, Local(), [object()], deep, type, Page("a", [object()])):  # type: ignore[list-item]
        with pytest.raises(NotData):
            encode(x)


@pytest.mark.parametrize("data", [
    {"!": []}, {"!": ["no"]}, {"!": 3}, {"!": ["=", 0]}, {"!": ["=", -1]}, {"!": ["tuple"]}, {"!": ["set", [[]]]}, {"!": ["bytes", "?"]},
    {"!": ["data", "os:system", []]}, {"!": ["error", "builtins:print", [], [], ""]}, {"!": ["enum", "lmc:Nothing", "X"]},
    {"!": ["data", f"{__name__}:Page", [["other", 1]]]}, {"!": ["named", f"{__name__}:Point", [1]]}, {"!": ["date", "x"]}, {"!": [[], 1]},
    {"!": ["error", "builtins:OSError", 3, [], ""]}, {"!": ["path", "os", "x"]}, {"!": ["counter", [[1]]]}, {"!": ["model", "lmc:Mock", [], [], None]},
])  # fmt: skip
def test_bad_data_is_refused(data: Any) -> None:
    with pytest.raises(BadData):
        decode(data)


@search(9, 60)
@given(st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from([*reading._READ, "builtins:ValueError", "os:system", f"{__name__}:Page"]),
    lambda s: st.lists(s, max_size=4) | st.builds(lambda x: {"!": x}, st.lists(s, max_size=4)), max_leaves=12))  # fmt: skip
def test_any_data_is_a_value_or_bad(data: Any) -> None:
    try:
        decode(data)
    except BadData:
        pass


def test_restore_keeps_the_containers() -> None:
    inner: list[Any] = [1]
    target: dict[str, Any] = {"a": inner, "b": 2}
    mutations.restored(target, {"a": [1, 2], "c": [3]})
    assert target == {"a": [1, 2], "c": [3]} and target["a"] is inner


class TwoSlots:
    __slots__ = ("x", "y")


class Shadowing(TwoSlots):
    x: Any = 5  # in place of the slot


def test_restore_keeps_fields_that_a_class_gives() -> None:
    owner, inner = Shadowing(), [1]
    owner.y, owner.__dict__["z"] = inner, 2
    fields = mutations.fields_in_place(owner)
    assert fields is not None and dict(fields) == {"x": 5, "y": [1], "z": 2}
    mutations.restored(fields, {"x": 5, "y": [2, 3]})
    assert dict(fields) == {"x": 5, "y": [2, 3]} and owner.y is inner


def test_a_change_of_an_object_reaches_its_private_attributes() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Basket(pydantic.BaseModel):
        count: int = 0
        _log: list[int] = pydantic.PrivateAttr(default_factory=list)

    basket = Basket()
    log = basket._log
    changes.apply(basket, ["{", [["count", ["#", 0, 2]], ["_log", ["+", [7]]]], []], lambda x: x)
    assert basket.count == 2 and basket._log is log and log == [7]


def test_an_exception_that_only_its_library_makes_is_not_data() -> None:
    core = pytest.importorskip("pydantic_core")
    with pytest.raises(codec.NotData, match="PydanticKnownError"):
        codec.encode(core.PydanticKnownError("missing"))


def _refusals() -> list[Any]:
    pydantic, core = pytest.importorskip("pydantic"), pytest.importorskip("pydantic_core")

    class Model(pydantic.BaseModel):
        x: int
        tags: list[str] = []
        n: int = pydantic.Field(3, ge=1)

        @pydantic.field_validator("n")
        @classmethod
        def right(cls, n: int) -> int:
            if n == 5:
                raise ValueError("no five")
            if n == 6:
                raise core.PydanticCustomError("six", "not {what} {{x}}", {"what": "six"})
            if n == 7:
                raise core.PydanticCustomError("seven", "never")
            assert n != 8
            return n

    found: list[Any] = []
    for text in (
        '{"x": "a", "tags": {}, "n": 5}',
        '{"x": 1, "n": 0}',
        '{"x":',
        '{"x": 1, "n": 6}',
        '{"n": 7}',
        '{"x": 1, "n": 8}',
        '{"x": 1, "tags": [1, null]}',
    ):
        for call in (Model.model_validate_json, lambda text: Model.model_validate(text if text == '{"x":' else json.loads(text))):
            with pytest.raises(pydantic.ValidationError) as caught:
                call(text)
            found.append(caught.value)
    return found


def test_what_pydantic_refuses_is_data() -> None:
    for error in _refusals():
        again = there_and_back(error)
        assert type(again) is type(error) and str(again) == str(error) and repr(again.errors()) == repr(error.errors())
        assert again.json() == error.json() and again.title == error.title and again.args == error.args
    error.add_note("twice")
    error.__cause__ = KeyError("k")
    again = there_and_back([error, error])
    assert again[0] is again[1] and again[0].__notes__ == ["twice"] and repr(again[0].__cause__) == "KeyError('k')"
    with pytest.raises(codec.NotData, match="object"):
        codec.encode(type(error).from_exception_data("x", [{"type": "missing", "input": object()}]))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4), st.just("\ud800"), st.just("\x00\u2028é😀")),
    lambda inside: st.one_of(st.lists(inside, max_size=4), st.dictionaries(st.text(max_size=3), inside, max_size=3)), max_leaves=12)  # fmt: skip


@search(12, 2000)
@given(JSON)
def test_encoders_write_what_decoders_read(x: Any) -> None:
    for data in (json_data._fast_encoder()(x), to_bytes(x)):
        assert b"\n" not in data
        for read in (json_data._fast_decoder(), json_data.from_bytes):
            assert repr(read(data)) == repr(x)


def test_pydantic_encodes_where_it_is_loaded() -> None:
    script = (
        "import sys; from lmc import json_data as j\n"
        "print(j.encode_json(1e-7).decode(), 'pydantic_core' in sys.modules)\n"
        "import pydantic_core; print(j.encode_json(1e-7).decode(), j.decode_json(b'[1]'))\n")  # fmt: skip
    pytest.importorskip("pydantic_core")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1e-07 False", "1e-7 [1]"]


@attrs.define
class Score:
    name: str
    parts: list[int]


@attrs.frozen(cache_hash=True)
class Hashed:
    """Keeps its hash in a slot."""

    x: int


@attrs.frozen(slots=False)
class Place:
    x: int


@dataclasses.dataclass
class Guarded:
    """Has a field that a property sets."""

    x: int

    def _refuse(self, *_: Any) -> Any:
        raise AssertionError


Guarded.x = property(Guarded._refuse, Guarded._refuse)  # type: ignore[assignment]


def test_reading_calls_no_setter() -> None:
    assert vars(decode({"!": ["data", f"{__name__}:Guarded", [["x", 1]]]})) == {"x": 1}


def test_objects_of_attrs() -> None:
    score = Score("a", [1])
    again = decode(json.loads(json.dumps(encode([score, Place(2), score]))))
    assert again == [score, Place(2), score] and again[0] is again[2] and again[0].parts is not score.parts
    again[1].__dict__["more"] = 1
    for x in (again[1], Hashed(1)):
        with pytest.raises(NotData, match=f"a {type(x).__name__} with attributes beside its fields"):
            encode(x)


def test_arrays_and_numbers_of_numpy() -> None:
    np = pytest.importorskip("numpy")
    square, fixed, shared, inner = np.arange(6.0).reshape(2, 3), np.arange(3), np.empty(2, object), [1]
    fixed.flags.writeable = False
    shared[0] = shared[1] = inner
    for x in (
        square, square.T, square[:, ::2], np.array(3), np.zeros((0, 2)), fixed, np.array([1, 2], ">i4"), np.array(["a", "bc"]), np.array([b"x"]),
        np.array(["2020-01-01", "NaT"], "M8[ns]"), np.array([[1, "a"], [None, {}]], object), shared, np.float64(0.1), np.float32(0.1), np.float64("nan"),
        np.int64(-3), np.bool_(True), np.complex64(1 + 2j), np.str_(""), np.bytes_(b""), np.bytes_(b"a\0"), np.datetime64("2020-01-02"),
        np.timedelta64(3, "s")):  # fmt: skip
        again = decode(json.loads(json.dumps(encode([x, x]))))
        assert type(again[0]) is type(x) and repr(again[0]) == repr(x) and again[0] is again[1]
        if isinstance(x, np.ndarray):
            assert (again[0].dtype, again[0].shape, again[0].flags.writeable, again[0].flags.c_contiguous) == (
                x.dtype, x.shape, x.flags.writeable, x.flags.c_contiguous or not x.flags.f_contiguous)  # fmt: skip
    assert len(decode(encode(np.str_("a\0")))) == 2  # str() and repr() of it leave zeros out
    again = decode(encode(shared))
    assert again[0] is again[1] is not inner
    for x, why in ((np.zeros(3, [("a", "i4")]), "numpy's"), (np.zeros(3 << 20), "25,165,824 bytes"), (np.ma.array([1]), "a MaskedArray")):
        with pytest.raises(NotData, match=why):
            encode(x)


def test_arrays_that_lmc_did_not_write() -> None:
    pytest.importorskip("numpy")
    for bad in (
        ["array of", "<f8", [2], "C", True, "AAAA"], ["array of", "|O", [10**12], "C", True, []], ["array of", "|V8", [1], "C", True, "AAAAAAAAAAA="],
        ["array of", "<f8", [-1], "C", True, ""], ["array of", "<f8", [0], "C", True, "AAAA"], ["array of", "<f8", [10**12], "C", True, ""],
        ["array of", "|O", [1], "C", True, "x"], ["scalar", "<f8", "AA=="], ["scalar", "|O", "AA=="], ["scalar", "object", "AA=="],
        ["array of", "M8[O]", [10**12], "C", True, ""], ["scalar", "M8[U]", "x"], ["scalar", "<U1", ["x"]]):  # fmt: skip
        with pytest.raises(BadData):
            decode({"!": bad})
