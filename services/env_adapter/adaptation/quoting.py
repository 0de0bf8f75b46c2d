"""Text of a policy, an environment or a judge inside a prompt: data, never instructions.

Whatever was written by a model under training may try to end the prompt, to speak as another role, or to forge our own
marks. So it becomes one quoted line, without control characters, chat tokens or role markers, and of bounded length.
What quoting cannot stop is a reader that believes what it reads; the constrained answer and the checks are for that.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Angle and square brackets make up the control tokens of all chat templates that we know (<|im_end|>, </s>, [INST],
# <<SYS>>, <start_of_turn>); the look-alikes belong to none.
_LOOK_ALIKES: Final = str.maketrans(
    {"<": "\u2039", ">": "\u203a", "«": "\u2039", "»": "\u203a", "`": "'"}
)
_SQUARED: Final = re.compile(r"\[(\s*/?\s*[A-Z_]{2,}\s*)\]")
_ROLE: Final = re.compile(
    r"\b(system|assistant|user|human|developer|tool|ai)\s*[:\uff1a]", re.IGNORECASE
)
_HEADING: Final = re.compile(r"#{2,}")
_GAP: Final = re.compile(r"\s+")
# Letters and marks that are not seen but read: format characters (zero width, direction) and private use.
_UNSEEN: Final = ("Cc", "Cf", "Cs", "Co", "Cn")


def neutralise(text: str, *, limit: int) -> str:
    """`text` as one line of at most `limit` characters that no chat template and no prompt of ours takes for a mark."""
    # Compatibility forms first: a full-width bracket or letter must not survive as a disguise.
    plain = unicodedata.normalize("NFKC", text[: 4 * limit])
    seen = "".join(
        " " if letter.isspace() else letter
        for letter in plain
        if letter.isspace() or unicodedata.category(letter) not in _UNSEEN
    )
    calm = _SQUARED.sub(r"(\1)", seen.translate(_LOOK_ALIKES))
    calm = _HEADING.sub("#", _ROLE.sub(r"\1 -", calm))
    line = _GAP.sub(" ", calm).strip()
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def quote(text: str, *, limit: int = 200) -> str:
    """`text` neutralised, between marks that it cannot contain."""
    return f"«{neutralise(text, limit=limit)}»"
