"""Lines of text for a terminal: tables, wrapped lines, and characters that a terminal would obey."""

from gcn_lpa.cli.text import table_lines, visible, wrapped


def test_numbers_stand_to_the_right_and_text_to_the_left():
    rows = [("lr", "9.5", "", "few"), ("gcn-lpa", "10.5", "+1.0", "a longer word")]
    assert table_lines(("", "accuracy", "p", "why"), rows) == [
        "         accuracy     p  why",
        "lr            9.5        few",
        "gcn-lpa      10.5  +1.0  a longer word",
    ]
    assert table_lines(("a", "b"), []) == ["a  b"]


def test_a_wide_character_takes_two_columns_and_a_control_character_is_shown():
    assert table_lines(("", "n"), [("東京", "1"), ("Lyon", "2")]) == ["      n", "東京  1", "Lyon  2"]
    assert table_lines(("", "n"), [("a\x1b", "1")]) == ["       n", "a\\x1b  1"]
    assert visible("a\x1b[31m\u202eb\n") == "a\\x1b[31m\\u202eb\n"


def test_a_long_line_is_wrapped_two_blanks_further_in():
    lines = wrapped("  note: " + "word " * 30)
    assert max(map(len, lines)) <= 80
    assert [len(line) - len(line.lstrip()) for line in lines] == [2, 4, 4]
    assert wrapped("") == [""]
