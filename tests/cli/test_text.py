"""Lines of text for a terminal: tables, wrapped lines, and characters that a terminal would obey."""

from gcn_lpa.cli.text import fitted, table_lines, visible, wrapped


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


def test_a_table_that_is_too_wide_leaves_out_the_middle_of_long_texts():
    rows = [(f"10.1234/{'x' * 40}{k}", "Department of Theoretical Physics", f"{k}.5 %") for k in range(3)]
    lines = table_lines(("id", "class", "share"), rows)
    assert max(map(len, lines)) == 80
    assert all("10.1234/xxx" in line and f"x{k}  " in line and line.endswith(f"{k}.5 %") for k, line in enumerate(lines[1:]))
    assert all("  Departm" in line and "…" in line and "Physics  " in line for line in lines[1:])
    assert "…" not in " ".join(table_lines(("id", "class"), [row[:2] for row in [("a", "b" * 70)]]))


def test_long_lines_go_on_below_their_words_and_commands_stay_whole():
    note, command = "  note         " + "word " * 30, "  gcn-lpa train " + "-o label=group " * 10
    lines = fitted([note.rstrip(), command, "short\nlines"])
    assert all(line.startswith(" " * 15 + "word") for line in lines[1:3])
    assert max(map(len, lines[:3])) <= 80
    assert lines[-3:] == [command, "short", "lines"]
