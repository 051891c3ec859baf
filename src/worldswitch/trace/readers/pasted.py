"""Traces as people paste them into mails, issues and chats.

The same text as :mod:`worldswitch.trace.readers.text` reads, after what happened to it on the way is
undone: quoting of any depth, lines a mail client broke, HTML and quoted-printable escapes, blanks that are
none, line numbers and time stamps of chat tools, cut ends. Prose between the events is skipped and counted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import cache

from worldswitch.trace.readers.lines import LONGEST_LINE, Source, pieces, split
from worldswitch.trace.readers.text import TextTrace
from worldswitch.trace.readers.textforms import FORMS
from worldswitch.trace.readers.textodd import odd_event

_LONGEST_EVENT = 4096

_QP_HEADER = re.compile(rb"(?i)content-transfer-encoding:\s*([\w-]+)\s*\Z")
_QP_SIGN = re.compile(rb"=3D|=C2=A0|=E2=80|=(?:20|09)\r?\n")
_QP_COUNTER = re.compile(rb"\w = ")
_QP_BYTE = re.compile(rb"=([0-9A-F]{2})")
_HTML_SIGN = re.compile(
    rb"(?i)&(?:gt|lt|amp|nbsp|quot|#\d{1,5}|#x[0-9a-f]{1,4});|<(?:br|pre|p|div|html|code|tt)\b[^<>]*>"
)
_BLOCK_TAG = re.compile(
    r"(?i)</?(?:br|p|div|li|tr|pre|blockquote|h[1-6]|hr|table|ul|ol|html|body|title)\b[^<>]{0,500}>"
)
_INLINE_TAG = re.compile(
    r"(?i)</?(?:a|b|i|u|em|strong|tt|code|span|font|td|th|tbody|thead|head|meta|link|img|samp|kbd|small|sup|sub)\b[^<>]{0,2000}>"
)
_BLANKS = dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u202f\u3000\udca0\ufffd\t\f\v"), " ")
_NOTHING = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"), "")
_SUBSTITUTES = _BLANKS | _NOTHING
_MOJIBAKE = "\u00ef\u00bf\u00bd"
"""U+FFFD, itself what is left of a no-break space, encoded twice."""
_ESCAPE_CODE = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")

_QUOTE = re.compile(r"(?:\s*[A-Za-z]{0,3}>)+\s?|(?:\s*\|\s)+")
_LINE_NUMBER = re.compile(r"\s*\d{1,7}(?::|\s*[|│])\s+(?=\S)|\s*\d{1,7}\s+(?=[A-Za-z<]\S*-\d+\s+[\[(])")
_CHAT = re.compile(
    r"\s*[\[(]?(?:\d{4}-\d\d-\d\d[T ])?\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:\s*[AaPp][Mm])?[\])]?[,:]?\s+"
    r"(?:<[@+\w|\[\]-]{1,30}>\s+)?(?=\S)"
)
_MARKS = re.compile(r"\s*(?:[*•+-]\s+|[A-Z]:\s+|`+)(?=\S)|^[+-](?=\s)")
_CUT = re.compile(
    r"(?:(?<![(.])\.{3,}|…|\[(?:\.{2,3}|…|snip\w{0,8}|cut)\]|<(?:snip\w{0,8}|cut)>|(?<!`)`+|\\)\Z", re.IGNORECASE
)

_PREFIX_STARTS = frozenset("0123456789[(*•+-`")
_CUT_ENDS = frozenset(".…]>`\\")

_WHO = r"\S[^\n]{0,60}?-\d{1,9}\s+(?:\(\s*(?:\d+|-+)\)\s*)?\[\d{1,6}\]"
_HEAD = re.compile(
    rf"\s*(?:{_WHO}|(?:\S[^\n]{{0,60}}?\s)?\d{{1,9}}(?:/\d{{1,9}})?\s+(?:\[\d{{1,6}}\]\s+)?\d+\.\d{{3,9}}:(?:\s|\Z)"
    r"|\d+\.\d{3,9}:(?:\s|\Z)"
    r"|\S[^\n]{0,60}?-\d{1,9}\Z|\S[^\n]{0,60}?\s\d{1,9}(?:/\d{1,9})?\s+\[\d{3,6}\]\Z)"
)
_REST_OF_HEAD = re.compile(
    r"\s*(?:\(\s*[\d-]+\)\s*)?(?:\[\d{1,6}\]\s*)?(?:[.\w#]{1,10}(?:\s+|\Z))?(?:\d{1,12}\.\d{1,9}:|\Z)"
    r"|\s*(?:[\w-]{1,80}:){0,3}[A-Za-z_][\w.-]{0,80}:(?:\s|\Z)"
)
_WHOLE_HEAD = re.compile(
    r".*?\s?\d+(?:\.\d{1,9})?:\s+(?:\(\+?\d+\)\s+)?(?:\d+\s+)?(?:[\w-]+:)*([A-Za-z_][\w.-]*):(?:\s|\Z)"
)
_BARE = re.compile(r"\s*(?:CPU\s*\d+:?\s+)?(?:(?:kvm|kvmmmu):)?(\w+):(?:\s|\Z)")
_WORD = re.compile(r"[A-Za-z_#][\w/-]*")
_KEY = re.compile(r"([A-Za-z_][\w-]*)[\s:=]*\{")
_HEX = re.compile(r"(?:0x)?[0-9a-fA-F]+\Z")
_COLONED = re.compile(r"[0-9a-fA-F]+(?::[0-9a-fA-F]+)+:?\Z")


def sniff(head: bytes) -> bool:
    """Whether *head* holds an event anywhere, once cleaned up."""
    if b"\0" in head[:4096]:
        return False
    lines = _joined(_clean(_raw_lines(iter([head]), head)))
    for line in lines:
        whole = _WHOLE_HEAD.match(line) if _HEAD.match(line) else None
        if whole is not None and (whole[1] in FORMS or _WHO_LINE.match(line)):
            return True
        if whole is None and _BARE.match(line):
            found = odd_event(line)
            if found is not None and any(c.isdigit() for c in found.body):
                return True
    return False


_WHO_LINE = re.compile(rf"\s*{_WHO}")


class Pasted(TextTrace):
    """The events in a pasted text; an :class:`~worldswitch.record.trace.EventSource` like its base."""

    def __init__(self, source: Source) -> None:
        super().__init__(_Unfolded(source))
        self.meta.format = "pasted text"


class _Unfolded:
    """A source's lines, cleaned and joined, as bytes."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self._source = source
        self._lines = _joined(_clean(_raw_lines(pieces(source), source.head)))
        self._rest = b""

    @property
    def damage(self) -> str | None:
        return self._source.damage

    def readinto(self, buffer: memoryview) -> int:
        """Fill *buffer*; fewer bytes only at the end."""
        done = 0
        while done < len(buffer):
            if not self._rest:
                line = next(self._lines, None)
                if line is None:
                    break
                self._rest = line.encode("utf-8", "surrogateescape") + b"\n"
            part = self._rest[: len(buffer) - done]
            buffer[done : done + len(part)] = part
            self._rest = self._rest[len(part) :]
            done += len(part)
        return done


def _raw_lines(parts: Iterator[bytes], head: bytes) -> Iterator[bytes]:
    """Lines without their ends; quoted-printable undone where the text is in it."""
    quoted = _QP_SIGN.search(head) is not None and _QP_COUNTER.search(head) is None
    soft = b""
    for line in split(parts):
        header = _QP_HEADER.match(line) if line[:1] in b"Cc" else None
        if header:
            quoted = header[1].lower() == b"quoted-printable"
        if not quoted:
            yield line
            continue
        if line.endswith(b"=") and len(soft) < LONGEST_LINE:
            soft += line[:-1]
            continue
        yield _QP_BYTE.sub(lambda found: bytes([int(found[1], 16)]), soft + line)
        soft = b""
    if soft:
        yield soft


def _clean(lines: Iterator[bytes]) -> Iterator[str]:
    """Lines as text, without escapes, quote marks and what stands before an event."""
    for data in lines:
        text = data.decode("utf-8", "surrogateescape")
        if (b"&" in data or b"<" in data) and _HTML_SIGN.search(data):
            text = _INLINE_TAG.sub("", _BLOCK_TAG.sub("\n", text))
            text = html.unescape(html.unescape(text))
        for line in text.split("\n"):
            yield _bare_line(line)


def _bare_line(line: str) -> str:
    if not line.isascii():
        line = line.replace(_MOJIBAKE, " ").translate(_SUBSTITUTES)
    if "\x1b" in line:
        line = _ESCAPE_CODE.sub("", line)
    line = line.replace("\t", " ").rstrip()
    if not line:
        return line
    start = line.lstrip()
    if ">" in start[:4] or start[0] == "|":
        quote = _QUOTE.match(line)
        line = line[quote.end() :] if quote and not start.startswith("|-") else line
        start = line.lstrip()
    if len(line) > _LONGEST_EVENT or not start:
        return line
    if start[0] in _PREFIX_STARTS or start[1:2] == ":":
        for prefix in (_MARKS, _CHAT, _LINE_NUMBER, _MARKS):
            found = prefix.match(line)
            if found and _starts_event(line[found.end() :]):
                line = line[found.end() :]
    return _CUT.sub("", line).rstrip() if line[-1] in _CUT_ENDS else line


def _starts_event(line: str) -> bool:
    if _HEAD.match(line):
        return True
    bare = _BARE.match(line)
    return bare is not None and bare[1] in FORMS


def _joined(lines: Iterator[str]) -> Iterator[str]:
    """Events that were broken over several lines, in one line each; everything else as it is."""
    pending = ""
    gap = False
    for line in lines:
        if not line:
            gap = True
            continue
        if pending and _continues(pending, line, gap) and len(pending) + len(line) < _LONGEST_EVENT:
            pending = f"{pending} {line.strip()}"
        else:
            if pending:
                yield pending
            pending = line if _starts_event(line) else ""
            if not pending:
                yield line
        gap = False
    if pending:
        yield pending


def _continues(pending: str, line: str, gap: bool) -> bool:
    """Whether *line* is the rest of the event that *pending* begins."""
    event = _event_of(pending)
    if event is None:
        joined = f"{pending} {line.strip()}"
        return _REST_OF_HEAD.match(line) is not None and (
            _event_of(joined) is not None or (_HEAD.match(joined) is not None and "[" in joined)
        )
    if _starts_event(line):
        return False
    if event not in FORMS:
        return pending.endswith(":") and not gap
    words, keys = _vocabulary(event)
    last = pending.rsplit(maxsplit=1)[-1].rstrip(",;")
    if gap and last not in keys and not last.endswith((":", "=")):
        return False
    for token in line.split():
        word = token.strip(",;:()[]=|")
        if not (
            not word
            or word in words
            or token in words
            or word.partition("=")[0] in words
            or _COLONED.match(word)
            or (_HEX.match(word) and (any(c.isdigit() for c in word) or last in keys or event == "kvm_emulate_insn"))
            or (last == "reason" and _WORD.match(word))
            or (event == "kvm_userspace_exit" and word.startswith("KVM_EXIT_"))
        ):
            return False
        last = token.strip(",;:")
    return True


def _event_of(line: str) -> str | None:
    """The event's name, if the line has come that far."""
    whole = _WHOLE_HEAD.match(line)
    if whole:
        return whole[1]
    if _HEAD.match(line):
        return None
    bare = _BARE.match(line)
    return bare[1] if bare and bare[1] in FORMS else None


@cache
def _vocabulary(event: str) -> tuple[frozenset[str], frozenset[str]]:
    """All words the templates of *event* can print, and those that a value follows."""
    words: set[str] = {"excp", "UNKNOWN"}
    keys: set[str] = set()
    for template in FORMS[event].templates:
        keys.update(_KEY.findall(template.replace("«", "").replace("»", "")))
        for literal in re.split(r"[{}]", template)[0::2]:
            words.update(_WORD.findall(literal))
            words.update(literal.replace("«", " ").replace("»", " ").split())
        for inner in re.findall(r"\{[^}]*:([^}]*\|[^}]*)\}", template):
            words.update(word for word in inner.split("|") if word)
            for prefix in re.findall(r"(\w+_)\{", template):
                words.update(prefix + word for word in inner.split("|"))
    return frozenset(words), frozenset(keys | words & {"reason"})
