"""The renderer of the active weights; a new one only where a folder's tokenizer differs."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from triforge.errors import UnavailableError, WeightsError
from triforge.rendering import Renderer

_log = logging.getLogger(__name__)
_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json",
    "chat_template.jinja", "additional_chat_templates/*.jinja",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A renderer and the digest of the files that it depends on."""

    renderer: Renderer | None = None
    digest: str = ""


class Tokenizers:
    """The tokenizer in use: at first that of `model_path`, or none yet if that is empty."""

    def __init__(self, model_path: str) -> None:
        self.used = Tokenizer()
        if model_path:
            folder = Path(model_path)
            self.used = Tokenizer(Renderer.from_folder(folder), _digest(folder))

    @property
    def renderer(self) -> Renderer:
        """The renderer in use."""
        if self.used.renderer is None:
            raise UnavailableError(
                "no tokenizer yet: no engine has answered; set TRIFORGE_MODEL to the model folder"
            )
        return self.used.renderer

    def of(self, folder: Path) -> Tokenizer:
        """Return the tokenizer of a folder; the one in use where the folder has the same or none. Blocking."""
        digest = _digest(folder)
        if digest in ("", self.used.digest):
            return self.used
        return Tokenizer(Renderer.from_folder(folder), digest)

    def adopt(self, folder: str) -> None:
        """Use the tokenizer of the engines' folder, if it can be read. Blocking."""
        try:
            self.used = self.of(Path(folder))
        except WeightsError as error:
            _log.warning("the tokenizer of %s cannot be read: %s", folder, error.detail)


def _digest(folder: Path) -> str:
    """Return a digest of the files that a renderer depends on; empty for a folder without a tokenizer."""
    if not (folder / _FILES[0]).is_file():
        return ""
    found = hashlib.sha256()
    try:
        for path in (path for name in _FILES for path in sorted(folder.glob(name))):
            if path.is_file():
                found.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    except OSError as error:  # not readable, or deleted meanwhile
        raise WeightsError(f"{folder}: the tokenizer cannot be read: {error}") from error
    return found.hexdigest()
