"""The speakers that a checkpoint brings along in `spk_dict.pt`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from antiphon.errors import InvalidRequestError, ModelUnavailableError
from antiphon.models.qwen2_5_omni.params import SPEAKER, SPEAKERS_FILE
from antiphon.pipeline.suggest import did_you_mean

_USUAL = "chelsie"  # transformers' `generate` has it as its default


@dataclass(frozen=True, slots=True)
class Speaker:
    """One of them."""

    name: str
    bos_token: int  # token of the thinker that begins this speaker's speech
    conditioning: torch.Tensor  # [1, enc_emb_dim]
    reference_mel: torch.Tensor  # [1, frames, mel_dim]


class Speakers:
    """All of a checkpoint. The constructor reads the file; ModelUnavailableError if it cannot."""

    def __init__(self, folder: str | Path) -> None:
        file = Path(folder) / SPEAKERS_FILE
        try:
            found: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            made = [
                Speaker(name, int(value["bos_token"]), value["cond"], value["ref_mel"])
                for name, value in found.items()
            ]
        except OSError as error:
            raise ModelUnavailableError(
                f"{file} cannot be read: {error.strerror}; the checkpoint needs it for speech"
            ) from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelUnavailableError(f"{file} does not describe speakers: {error}") from error
        except (RuntimeError, EOFError, UnpicklingError) as error:
            raise ModelUnavailableError(
                f"{file} is damaged (a download that was cut off, or a Git LFS pointer?)"
            ) from error
        self.by_name = {speaker.name: speaker for speaker in made}
        if not made:
            raise ModelUnavailableError(f"{file} names no speaker")
        usual = (name for name in self.by_name if name.lower() == _USUAL)
        self.default = next(usual, made[0].name)

    def chosen(self, params: Mapping[str, object]) -> Speaker:
        """The one that a request's parameters name, or the default.

        Raises InvalidRequestError, with all names, for one that there is not.
        """
        name = params.get(SPEAKER, self.default)
        found = [s for s in self.by_name.values() if s.name.lower() == str(name).lower()]
        if not found:
            known = ", ".join(self.by_name)
            near = did_you_mean(str(name), self.by_name)
            hint = near if "did you mean" in near else ""  # else it lists what stands here as well
            raise InvalidRequestError(
                f"{SPEAKER} is {name!r}{hint}; the checkpoint's speakers are {known}"
            )
        return found[0]
