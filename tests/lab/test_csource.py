"""C read just far enough: comments and strings do not count, brackets do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worldswitch.lab import csource

CODE = """\
#define BITS \\
	(ONE | TWO /* not THREE */ \\
	| FOUR)
#define BITS_TOO BITS
/* work() { */
static int other(void);
int work(struct it *it,
	int one)
{
	char brace = '}';

	if (one && it->ready) {
		call("a string with } in it");
		return 0;
	} else {
		call(0);
	}
	if (it->here &&
		(one == 2))
		call(it);
	if (one)
		if (two) {
			call(two);
		}
	return work2(it);
}
BUILD_BUG_ON(ONE & (TWO | FOUR));
"""


def test_blanks_keep_length_and_lines():
    blank = csource.blanked(CODE)
    assert len(blank) == len(CODE)
    assert blank.count("\n") == CODE.count("\n")
    assert "THREE" not in blank and "string" not in blank
    assert "FOUR" in blank


@given(st.text(st.sampled_from("/*\"'\\\n{}ab "), max_size=60))
def test_any_text_keeps_its_length_and_lines(text):
    blank = csource.blanked(text)
    assert [len(line) for line in blank.split("\n")] == [len(line) for line in text.split("\n")]


def test_a_macro_is_found_with_the_lines_it_goes_on_in():
    code = csource.blanked(CODE)
    assert csource.macro(code, "BITS").of(CODE).endswith("| FOUR)\n")
    assert csource.macro(code, "BITS_TOO").of(CODE) == "#define BITS_TOO BITS\n"
    assert csource.macro(code, "TOO") is None


def test_a_function_is_its_definition_not_a_call_or_declaration():
    code = csource.blanked(CODE)
    (body,) = csource.functions(code, "work")
    assert body.of(CODE).startswith("{\n\tchar brace") and body.of(CODE).endswith("work2(it);\n}")
    assert csource.functions(code, "other") == []
    assert csource.functions(code, "work2") == []


def test_ifs_without_else_are_found_with_and_without_braces():
    code = csource.blanked(CODE)
    (body,) = csource.functions(code, "work")
    found = list(csource.ifs(code, body))
    assert [csource.names(one.condition.of(code)) for one in found] == [{"it", "here", "one"}, {"one"}, {"two"}]
    assert found[0].whole.of(CODE).endswith("call(it);")
    assert found[1].whole.of(CODE).endswith("}") or found[1].whole.of(CODE).endswith("call(two);")
    assert found[2].body.of(CODE).startswith("{")


def test_calls_as_statements_are_found_to_their_semicolon():
    code = csource.blanked(CODE)
    (found,) = csource.calls(code, "BUILD_BUG_ON")
    assert found.of(CODE) == "BUILD_BUG_ON(ONE & (TWO | FOUR));"
    assert [csource.names(span.of(code)) for span in csource.calls(code, "call")][-1] == {"call", "two"}


@given(st.text(st.sampled_from("if(){};else \n"), max_size=40))
def test_unbalanced_text_is_no_reason_to_fail(text):
    code = csource.blanked(text)
    for found in csource.ifs(code, csource.Span(0, len(code))):
        assert 0 <= found.whole.start < found.whole.end <= len(code)
