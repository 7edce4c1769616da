"""GGUF files of llama.cpp, through transformers' reader: config.json and the tokenizer's files are written to a folder, weights are
read when the model is."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

from infc.compiler.errors import ExportError, UsageError

FRONT = "infc-gguf-"


def unpack(path: Path) -> tempfile.TemporaryDirectory[str]:
    """A folder with all of the model but its weights. Raises UsageError E0129 for a file that cannot be read or holds another kind
    of model, ExportError E0305 where a package is missing."""
    try:
        from transformers import AutoConfig, AutoTokenizer
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    except ImportError as error:
        raise ExportError("E0305", f"exporting needs a package that is missing: {error.name}",
                          hint="pip install 'infc[build]'") from error
    front = tempfile.TemporaryDirectory(prefix=FRONT)
    folder = Path(front.name)
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False)
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
        tokenizer.save_pretrained(folder)
    except Exception as error:  # of whatever reads it
        if isinstance(error, struct.error) or "cannot reshape" in str(error):  # what its head says lies beyond the end
            raise UsageError("E0129", f"the GGUF file is cut short: it ends at {path.stat().st_size} bytes", where=str(path),
                             hint="copy or download it again") from error
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError("E0129", f"the GGUF file cannot be read: {reason}"[:500],
                         where=str(path), hint="transformers reads Llama, Mistral, Qwen, Gemma, Phi-3 and others, and needs the "
                         "package gguf: pip install gguf") from error
    about = {**config.to_dict(), "architectures": [architecture]}
    about.pop("_name_or_path", None)
    about.pop("_model_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(about, default=str), encoding="utf-8")
    return front
