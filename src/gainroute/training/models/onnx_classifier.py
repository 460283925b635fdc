"""A classifier that was trained elsewhere, as a torch module: its ONNX graph is run by onnxruntime."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gainroute.io.onnx_party import open_session

__all__ = ["OnnxClassifier"]


class OnnxClassifier(nn.Module):
    """An ONNX graph from inputs (N, d) to posteriors (N, K), run by onnxruntime.

    The graph is a tensor of `size` bytes, so that it is saved like any other weights. Outputs are the logarithms of the
    posteriors: their softmax is the posterior, as with every other classifier.
    """

    graph: Tensor

    def __init__(self, *, size: int) -> None:
        super().__init__()
        self.register_buffer("graph", torch.zeros(size, dtype=torch.uint8))
        self._session: Any = None

    @property
    def content(self) -> bytes:
        """The ONNX file."""
        return self.graph.cpu().numpy().tobytes()

    def forward(self, view: Tensor) -> Tensor:
        """Log-posteriors (N, K) of views (N, …), whose values are read in a row."""
        if self._session is None:
            self._session = open_session(self.content)
        takes = self._session.get_inputs()[0].name
        posterior = self._session.run(None, {takes: view.flatten(1).cpu().numpy()})[0]
        return torch.from_numpy(posterior).log().to(view.device)
