"""An engine on data, with all that lies beyond the ranges of its calibration counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infc.compiler import golden
from infc.compiler.calibrate import data as sources
from infc.compiler.calibrate import select
from infc.compiler.calibrate.accuracy import fitted
from infc.compiler.calibrate.prepare import Preparer

if TYPE_CHECKING:
    from infc.compiler.artifact.reader import Artifact


def measure(path: Path, artifact: Artifact, files: Mapping[str, bytes], file: str, samples: int, seed: int, threads: int | None,
            isa: str | None) -> tuple[list[Any], int]:
    """Drift of the runtime by layer, and the number of samples. ``files`` are those that prepare the model's inputs. Raises as
    ``data.find``, ``select.choose`` and ``Preparer``."""
    import infc

    chosen = select.choose(sources.find(file), samples, seed)
    preparer = Preparer(artifact.io, files, golden.interface_of(artifact).mask)
    context = infc.Engine(path, threads=threads, isa=isa, device="cpu").context()
    context.set_watch(1)
    for item in chosen.items:
        context.bind(fitted(preparer(item), artifact.io))
        context.run()
    return context.drift(), len(chosen.items)
