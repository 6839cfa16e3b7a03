"""JSON: what goes in comes out, and what is wrong with a file is said with its name."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcn_lpa.data.files import decode_as, decode_json, encode_json, naming, read_json, write_json

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))
def test_json_values_come_back(value):
    assert decode_json(encode_json(value), Path("value.json")) == value


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"lr": 0.05', "line 1 column 12"),
        (b"", "line 1 column 1"),
        (b"\xff", "can't decode byte 0xff"),
        (b'{"lr": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'["\\ud800"]', "surrogates not allowed"),
        (b'{"\\uD83D": 1}', "surrogates not allowed"),
    ],
)
def test_what_is_wrong_with_a_json_file_is_said_with_its_name(tmp_path, content, complaint):
    (tmp_path / "recipe.json").write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as caught:
        read_json(tmp_path / "recipe.json")
    assert str(caught.value).startswith(f"{tmp_path / 'recipe.json'}: not valid JSON: ")


@pytest.mark.parametrize(("value", "complaint"), [(float("nan"), "Out of range float"), ("\ud800", "surrogates not allowed")])
def test_what_json_cannot_say_is_refused_and_the_file_stays(tmp_path, value, complaint):
    write_json(tmp_path / "scores.json", {"accuracy": 0.5})
    with pytest.raises(ValueError, match=rf"scores\.json: .*{complaint}"):
        write_json(tmp_path / "scores.json", {"accuracy": value})
    assert read_json(tmp_path / "scores.json") == {"accuracy": 0.5}


@dataclass(frozen=True)
class Inner:
    rate: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    number: int
    inner: dict[str, Inner]
    note: str | None = None

    def __post_init__(self):
        if self.number < 0:
            raise ValueError(f"number is {self.number}; it is not negative")


def test_a_large_number_of_a_column_can_be_read_again():
    assert decode_as(tuple[float, ...], [1e30, -1e300, 3]) == (1e30, -1e300, 3.0)
    with pytest.raises(ValueError, match="it is a whole number"):
        decode_as(int, 2**63)


def test_a_value_becomes_the_type_that_is_asked_for():
    found = decode_as(Outer, {"number": 3, "inner": {"a": {"rate": 1, "names": ["x"]}}})
    assert found == Outer(3, {"a": Inner(1.0, ("x",))})
    assert type(found.inner["a"].rate) is float


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], r"it is \[\]; it is an object"),
        ({"number": True, "inner": {}}, "number is True; it is a whole number"),
        ({"number": 1.5, "inner": {}}, "number is 1.5; it is a whole number"),
        ({"number": 2**63, "inner": {}}, "number is 92233.*; it is a whole number"),
        ({"number": -1, "inner": {}}, "number is -1; it is not negative"),
        ({"number": 1}, "it has no field 'inner'"),
        ({"number": 1, "inner": {}, "more": 1}, "it has a field 'more'; there are number, inner, note"),
        ({"number": 1, "inner": {"a": {"rate": "1"}}}, r"inner\['a'\].rate is '1'; it is a number"),
        (
            {"number": 1, "inner": {"a": {"rate": 1.0, "names": ["x", 2]}}},
            r"inner\['a'\].names\[1\] is 2; it is text",
        ),
        ({"number": 1, "inner": {}, "note": 3}, "note is 3; it is text"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(value, complaint):
    with pytest.raises(ValueError, match=complaint):
        decode_as(Outer, value)


@pytest.mark.parametrize("error", [ValueError("odd\nnumber"), KeyError("y"), ZeroDivisionError("by 0"), TypeError("x")])
def test_whatever_goes_wrong_is_one_sentence_that_names_the_file_once(error):
    with (
        pytest.raises(ValueError, match=r"^run/a\.json: ") as caught,
        naming(Path("run/b.json")),
        naming(Path("run/a.json")),
    ):
        raise error
    assert "\n" not in str(caught.value)
    assert ("not as gcn-lpa writes it" in str(caught.value)) != isinstance(error, ValueError)
