"""Text of a policy, an environment or a judge inside a prompt: data, never instructions.

Text of a model under training may try to end the prompt, to speak as another role, or to forge our own marks. There are two
strengths, by how much of the text must stay unchanged:

* `neutralise` for a prompt that marks every quoted line (the judge): lines and ordinary characters stay, and strings that a
  chat template could take for a control token get round brackets;
* `one_line` and `quote` for a short note inside a sentence (diagnosis, rewriter): one line of bounded length without angle
  brackets, headings and role markers.

Both first replace compatibility forms (NFKC) and remove invisible characters, so that neither a full-width bracket nor a
zero-width letter hides a control token. Letters are replaced one by one: NFKC of a whole text takes time that grows with the
square of a run of accents. Quoting does not stop a reader from believing the text.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Invisible characters: control and format characters (zero width, direction), private use.
_UNSEEN: Final = ("Cc", "Cf", "Cs", "Co", "Cn")
_UNSEEN_ASCII: Final = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")

# Strings that a chat template could read as a control token: <|im_end|>, </s>, <end_of_turn>, <<SYS>>, also with a
# full-width bar or the low block that some vocabularies use; [INST], [gMASK], [control_5]; ]~b], [e~[, ]<]image[>[.
_ANGLED: Final = re.compile(r"<(?=[<|/!]?[A-Za-z_|\u2581])|(?<=[A-Za-z0-9_|\u2581/])>")
_SQUARED: Final = re.compile(
    r"\[(\s?/?\s?(?:[a-z]?[A-Z_]{2,}|[A-Z_]{3,}[0-9]+|control_[0-9]+|unused[0-9]+)\s?)\]"
)
_MIRRORED: Final = re.compile(
    r"\](?=[!a-z]{0,2}~[!a-z]{0,2}[\[\]])|\[(?=[!a-z]{1,2}~\[)|\](?=<\])|\[(?=>\[)"
)

# Brackets, bars and colons that look like ours or like a token's; NFKC does not change them.
_LOOK_ALIKES: Final = str.maketrans(
    {"`": "'"}
    | dict.fromkeys("<«\u226a\u300a\u3008\u27e8\u27ea\u276e\u2770\u02c2\u1438", "\u2039")
    | dict.fromkeys(">»\u226b\u300b\u3009\u27e9\u27eb\u276f\u2771\u02c3\u1433", "\u203a")
    | dict.fromkeys("\u2502\u2503\u2758\u2223\u01c0", "|")
    | dict.fromkeys("\u2236\ua789\u02d0\u0589\u05c3", ":")
)
# Cyrillic and Greek letters that look like Latin ones; one letter becomes one letter, so positions stay the same.
_FOLD: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0455\u0458\u04bb\u0501\u0442\u043c\u043d\u0432\u043a"
    "\u0410\u0415\u041e\u0420\u0421\u0423\u0425\u0406\u0405\u0408\u041d\u041c\u0422\u0412\u041a"
    "\u03bf\u03b1\u03b5\u03c1\u03c4\u03c5\u03bd\u03b9\u0391\u0395\u039f\u03a1\u03a4\u03a5\u039d\u0399\u039c\u0397",
    "aeopcyxisjhdtmhbkAEOPCYXISJHMTBKoaeptuviAEOPTYNIMH",
)
_ROLE: Final = re.compile(r"\b(system|assistant|user|human|developer|tool|ai)\s*:", re.IGNORECASE)
_HEADING: Final = re.compile(r"#{2,}")
_GAP: Final = re.compile(r"\s+")


_LONGEST: Final = 4  # letters of a ligature; those for whole sentences stay unchanged
_REMEMBERED: Final = 2**16  # letters


class _Plain(dict[int, str]):
    """Code points and their plain form, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        if len(self) >= _REMEMBERED:
            self.clear()
        spelled = unicodedata.normalize("NFKC", chr(code))
        if len(spelled) > _LONGEST:
            spelled = chr(code)
        seen = (c for c in spelled if c.isspace() or unicodedata.category(c) not in _UNSEEN)
        return self.setdefault(code, "".join(seen))


_PLAIN: Final = _Plain()


def _plain(text: str) -> str:
    """Return `text` in plain letters; white space stays, other invisible characters go."""
    return _UNSEEN_ASCII.sub("", text) if text.isascii() else text.translate(_PLAIN)


def _without_tokens(text: str) -> str:
    """Return `text` with round brackets in place of the square ones of control tokens."""
    calm = _SQUARED.sub(r"(\1)", text)
    return _MIRRORED.sub(lambda match: "(" if match[0] == "[" else ")", calm)


def neutralise(text: str) -> str:
    """Return `text` with other brackets around strings that could be control tokens; words and lines stay."""
    calm = _without_tokens(_plain(text))
    return _ANGLED.sub(lambda match: "(" if match[0] == "<" else ")", calm)


def quoted(text: str) -> str:
    """Return text with a quotation mark before every line."""
    lines = neutralise(text).splitlines() or [""]
    return "\n".join(f"| {line}" for line in lines)


def one_line(text: str, *, limit: int) -> str:
    """Return `text` as one line of at most `limit` characters without marks of chat templates and of our prompts."""
    calm = _without_tokens(_plain(text[: 4 * limit])).translate(_LOOK_ALIKES)
    calm = _HEADING.sub("#", _without_roles(calm))
    line = _GAP.sub(" ", calm).strip()
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _without_roles(text: str) -> str:
    """Return `text` without the colon after a role's name, also where the name has letters that look alike."""
    folded = text.translate(_FOLD)
    letters = list(text)
    for match in _ROLE.finditer(folded):
        letters[match.end() - 1] = " -"
    return "".join(letters)


def quote(text: str, *, limit: int = 200) -> str:
    """Return `text` as one line between marks that it cannot contain."""
    return f"«{one_line(text, limit=limit)}»"
