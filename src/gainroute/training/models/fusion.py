"""Round 2, at the server: from the embeddings of the parties to logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gainroute.errors import ShapeError

__all__ = ["FusionHead"]


class FusionHead(nn.Module):
    """Gated fusion with interaction features, plus a linear path.

    Each embedding is projected to zᵢ in a common latent space; gates gᵢ = softmaxᵢ(v · tanh(U zᵢ + bᵢ))
    depend on the sample; the classifier reads the fusion Σ gᵢ zᵢ together with the mean over pairs of
    zᵢ ⊙ zⱼ, and a linear map of every embedding is added to its logits. An absent party has gate 0 and
    is left out of every mean, so that its embedding has no effect.
    """

    def __init__(self, *, dimensions: Sequence[int], latent: int, classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        parties = len(dimensions)
        self.dimensions = tuple(dimensions)
        self.project = nn.ModuleList(
            nn.Sequential(nn.Linear(size, latent), nn.LayerNorm(latent), nn.GELU()) for size in dimensions
        )
        self.gate_hidden = nn.Linear(latent, latent // 2)
        self.gate_party = nn.Parameter(torch.zeros(parties, latent // 2))
        self.gate_score = nn.Linear(latent // 2, 1, bias=False)
        self.classify = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(2 * latent, latent),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(latent, classes),
        )
        self.linear = nn.ModuleList(nn.Linear(size, classes) for size in dimensions)

    def gates(self, latents: Tensor, present: Tensor) -> Tensor:
        """The gates (N, M) of latents (N, M, L), zero where `present` (N, M) is False."""
        hidden = torch.tanh(self.gate_hidden(latents) + self.gate_party)
        scores: Tensor = self.gate_score(hidden).squeeze(-1)
        return scores.masked_fill(~present, float("-inf")).softmax(dim=1)

    def forward(self, embeddings: Sequence[Tensor], present: Tensor | None = None) -> Tensor:
        """Logits (N, K) of embeddings, one (N, dᵢ) per party.

        By default all are `present`, (N, M); each sample needs at least one party, and what an absent one sent may hold
        anything, including NaN.
        """
        if len(embeddings) != len(self.dimensions):
            raise ShapeError(f"{len(embeddings)} embeddings: the head was built for {len(self.dimensions)} parties")
        if present is None:
            present = torch.ones(len(embeddings[0]), len(embeddings), dtype=torch.bool, device=embeddings[0].device)
        else:
            embeddings = [torch.where(present[:, i, None], embedding, 0.0) for i, embedding in enumerate(embeddings)]
        weight = present.to(embeddings[0].dtype).unsqueeze(-1)
        latents = torch.stack([project(e) for project, e in zip(self.project, embeddings, strict=True)], dim=1)
        latents = latents * weight
        fused = (self.gates(latents, present).unsqueeze(-1) * latents).sum(dim=1)
        count = weight.sum(dim=1)
        # Σ over pairs = ((Σ z)² − Σ z²) / 2 takes time linear in the number of parties.
        pairs = (latents.sum(dim=1).square() - latents.square().sum(dim=1)) / 2
        pairs = pairs / (count * (count - 1) / 2).clamp(min=1)
        logits: Tensor = self.classify(torch.cat([fused, pairs], dim=1))
        direct = torch.stack([linear(e) for linear, e in zip(self.linear, embeddings, strict=True)], dim=1)
        return logits + (direct * weight).sum(dim=1) / count
