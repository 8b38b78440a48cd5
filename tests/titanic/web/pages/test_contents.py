"""How frames are shown."""

from __future__ import annotations

import json

from titanic.web.pages.contents import DEEPEST, MOST_FRAMES, content, contents, dump

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def test_each_kind_is_shown_as_what_it_is() -> None:
    assert content(b"") == ("empty", "", 0, False)
    assert content(b'{"a": [1]}') == ("json", '{\n  "a": [\n    1\n  ]\n}', 10, False)
    assert content("grüße\r\nund\t".encode()) == ("text", "grüße\nund\t", 13, False)
    assert content(b"17").kind == "text"
    assert content(b"{not json").kind == "text"
    assert content(PNG).text.startswith("data:image/png;base64,iVBOR")
    assert [content(begin + bytes(9)).kind for begin in (b"GIF89a", b"\xff\xd8\xff", b"RIFF1234WEBP")] == ["image"] * 3
    assert content(bytes(range(256))).kind == "hex"
    assert content(b"\0\1\2\3").kind == "hex"


def test_json_is_laid_out_as_it_is_written() -> None:
    text = '{"a": 1.10, "a": 1e400, "b": [ ], "c": {"d": [-0, "\\u00e4 \\" [,"], "e": {}}}'
    assert content(text.encode()).text == (
        '{\n  "a": 1.10,\n  "a": 1e400,\n  "b": [],\n  "c": {\n    "d": [\n      -0,\n      "\\u00e4 \\" [,"\n'
        '    ],\n    "e": {}\n  }\n}'
    )
    assert content(b"[" + b"9" * 5000 + b"]").kind == "json"


def test_what_can_have_a_script_in_it_is_text() -> None:
    for frame in (b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>", b"<html>", b"%PDF-1.7"):
        assert content(frame).kind == "text"


def test_control_characters_are_escaped() -> None:
    assert content(b"red \x1b[31m" + b"x" * 60).text.startswith("red \\x1b[31m")
    assert "\u202e" not in content(json.dumps({"name": "\u202egpj.exe"}).encode()).text


def test_a_frame_that_is_cut_is_not_taken_for_another_kind() -> None:
    assert content("grü".encode()[:-1], cut=True) == ("text", "gr", 3, True)
    assert content(b'{"a": 1}', cut=True).kind == "text"
    assert content(PNG, cut=True).kind == "hex"


def test_json_that_would_be_mostly_indentation_is_text() -> None:
    for deep in (DEEPEST + 1, 5000):
        assert content(b"[" * deep + b"]" * deep).kind == "text"
    assert content(b"[" * DEEPEST + b"]" * DEEPEST).kind == "json"


def test_only_so_many_frames_are_shown_and_the_others_counted() -> None:
    found = contents([b"x"] * 30, 1000, 1000)
    assert (len(found.frames), found.more, found.size) == (MOST_FRAMES, 980, 1000)
    whole, half = contents([b"abc", b"de"], 2, 10).frames
    assert (whole.cut, half.cut) == (False, True)


def test_a_dump_says_where_and_what() -> None:
    assert dump(b"0123456789abcdef\xff\n") == (
        "000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef\n"
        "000010  ff 0a                                            .."
    )
