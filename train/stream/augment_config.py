"""What augmentation can be asked to do; `augment.py` does it."""

from __future__ import annotations

from pydantic import Field, model_validator

from ...pipeline.config import StrictModel


class AugmentConfig(StrictModel):
    """Changes of the training samples, drawn by seed, epoch and sample; none unless told."""

    flips: bool = False
    """Mirror and turn every sample at random; labels, mask and targets of tiles turn with it."""
    quarter_turns: bool = True
    """With `flips`: turn by 90 degrees too. false keeps rows rows, where stripes of the sensor run along them."""
    spectral_shift_bands: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    """Largest shift of the spectrum in widths of a source band, to either side; the stored values are interpolated."""
    mixup_alpha: float = Field(default=0.0, ge=0, le=10, allow_inf_nan=False)
    """Mix samples by shares from Beta(alpha, alpha) (Zhang et al. 2018); 0: off, 0.2 is usual."""
    noise_std_relative: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    """Standard deviation of normal noise, in standard deviations of each band over the training pixels."""
    noise_std: float | tuple[float, ...] = 0.0
    """The same in the store's own units, one for all bands or one per band; give one of the two."""
    band_dropout_probability: float = Field(default=0.0, ge=0, le=0.9, allow_inf_nan=False)
    """Share of the bands that are set to 0, drawn band by band; at least one stays."""

    @model_validator(mode="after")
    def _one_noise(self) -> AugmentConfig:
        given = self.noise_std if isinstance(self.noise_std, tuple) else (self.noise_std,)
        if not given or not all(0 <= value < float("inf") for value in given):
            raise ValueError(f"noise_std must be 0 or more, for one band or all, got {self.noise_std}")
        if self.noise_std_relative and any(given):
            raise ValueError("give noise_std_relative or noise_std, not both")
        return self

    @property
    def active(self) -> bool:
        """Whether anything is changed at all."""
        return self.model_copy(update={"quarter_turns": True}) != AugmentConfig()
