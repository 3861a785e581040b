from spec_trt.table import format_table


def test_columns_line_up():
    text = format_table(["name", "tok/s"], [["plain", "9.5"], ["lookahead", "10.25"]])
    assert text.splitlines() == [
        "name       tok/s",
        "---------  -----",
        "plain        9.5",
        "lookahead  10.25",
    ]
