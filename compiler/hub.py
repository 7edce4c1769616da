"""Checkpoints from the Hugging Face hub, through huggingface_hub and its cache."""

from __future__ import annotations

import re
from pathlib import Path

from infc.compiler.errors import UsageError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_TEXTS = ["*.json", "*.txt", "*.model"]


def is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text)) and ".." not in text


def download(repo: str, revision: str | None) -> Path:
    """The directory of a snapshot: configuration, tokenizer and weights, safetensors where there are any.

    Raises UsageError E0102 if the hub cannot be reached and E0103 if it has no such model.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    where = f"{repo}@{revision}" if revision else repo
    try:
        path = Path(snapshot_download(repo, revision=revision, allow_patterns=[*_TEXTS, "*.safetensors"]))
        if not list(path.glob("*.safetensors")):
            path = Path(snapshot_download(repo, revision=revision, allow_patterns=[*_TEXTS, "pytorch_model*.bin"]))
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise UsageError("E0103", "the Hugging Face hub has no such model or revision, or it is private", where=where,
                         hint="check the name; for a private model log in with `hf auth login`") from error
    except (HfHubHTTPError, OSError, RuntimeError) as error:
        raise UsageError("E0102", "there is no such directory, and the Hugging Face hub cannot be reached for it", where=where,
                         hint="give the path of a directory, or download the model where there is a network: "
                              f"`hf download {repo}`") from error
    return path
