"""Stable Diffusion (Rombach et al., CVPR 2022) as a generator: host code, by diffusers and torch.

    w ~ N(0, I), the flat initial latent of denoising  ->  denoising, guided by one fixed prompt
    ->  decoder

There is no mapping network, so every normal vector is a valid latent. The prompt is encoded once
and cached beside the networks; only that needs transformers. Only weights and configurations are
read from the folder, never code.
"""

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_ht.check.packages import needing
from fedjax_ht.core.trees import PyTree
from fedjax_ht.lab.files import atomic_open
from fedjax_ht.lab.safe.arrays import opened_npz
from fedjax_ht.lab.safe.bounded import in_one_line, read_json
from fedjax_ht.models.generator import Card, Generator

PROMPT_FILE = "prompt_embedding.npz"
_SCHEDULERS = ("PNDMScheduler", "DDIMScheduler")  # they draw no noise: w alone sets the image


class Networks(NamedTuple):
    """A folder's networks on one device, and the embedded prompts.

    Attributes:
      unet, vae, scheduler: networks and scheduler of diffusers.
      prompts: torch float32 [2, tokens, width], of the empty prompt and of the prompt.
    """

    unet: Any
    vae: Any
    scheduler: Any
    prompts: Any


def load_diffusion(
    path: Path | str, prompt: str = "a cat", steps: int = 50, guidance: float = 7.5
) -> Generator:
    """Loads the generator in a Stable Diffusion folder; it runs on a GPU if torch has one.

    Args:
      path: a folder with the sub-folders unet, vae and scheduler; for a new prompt also tokenizer
        and text_encoder.
      prompt: text that describes every image. Its embedding is cached in the folder, if that is
        writable.
      steps: number of scheduler steps.
      guidance: factor on the difference between the predictions with and without the prompt (Ho and
        Salimans, 2022); 1 predicts with the prompt alone.

    Raises:
      FileNotFoundError: a sub-folder is missing.
      ImportError: diffusers or torch is missing, or transformers if the prompt must be encoded.
      ValueError: a network is damaged, or the networks do not fit together. One line.
    """
    path = Path(path)
    for name in ("unet", "vae", "scheduler"):
        if not (path / name).is_dir():
            raise FileNotFoundError(
                f"no {name} in {path}; a folder of Stable Diffusion has unet, vae and scheduler"
            )
    networks = _load_networks(path, prompt)
    size = networks.unet.config.sample_size  # of a latent, one side or both
    sides = (size, size) if isinstance(size, int) else size
    shape = (networks.unet.config.in_channels, *sides)
    prompt_width = networks.unet.config.cross_attention_dim
    channels, width = networks.vae.config.latent_channels, networks.prompts.shape[-1]
    if channels != shape[0] or width != prompt_width:
        raise ValueError(
            f"{path}: the unet takes {shape[0]} channels and prompts of {prompt_width}, but the "
            f"vae has {channels}, the text encoder {width}"
        )
    dim = int(np.prod(shape))

    def sample_w(_: PyTree, key: jax.Array, n: int) -> jax.Array:
        return jax.random.normal(key, (n, dim))

    def synthesize(_: PyTree, w: Any) -> np.ndarray:
        latents = np.array(w, np.float32).reshape(-1, *shape)
        return np.stack([_denoise(networks, latent, steps, guidance) for latent in latents])

    origin = f"Stable Diffusion folder {path.name}, prompt {prompt!r}, {steps} steps, "
    origin += f"guidance {guidance}"
    return Generator(
        card=Card(path.name, licence="the folder's own", origin=origin),
        latent_dim=dim,
        sample_w=sample_w,
        synthesize=synthesize,
        host=True,
    )


def _load_networks(path: Path, prompt: str) -> Networks:
    with needing(f"{path}:"):
        import diffusers
        import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    unet = _pretrained(diffusers.UNet2DConditionModel, path / "unet").to(device)
    vae = _pretrained(diffusers.AutoencoderKL, path / "vae").to(device)
    scheduler = _load_scheduler(diffusers, path / "scheduler")
    prompts = torch.from_numpy(_prompt_embedding(path, prompt)).to(device)
    return Networks(unet=unet, vae=vae, scheduler=scheduler, prompts=prompts)


def _pretrained(kind: Any, folder: Path) -> Any:
    """Loads a folder's network as float32; from half-precision files only if it has no others."""
    files = [file.name for file in folder.iterdir() if file.suffix in (".safetensors", ".bin")]
    half = bool(files) and all(".fp16." in name for name in files)
    with in_one_line(f"{folder}: no {kind.__name__} can be read from it"):
        network = kind.from_pretrained(
            folder, local_files_only=True, variant="fp16" if half else None
        )
    return network.float().eval()


def _load_scheduler(diffusers: Any, folder: Path) -> Any:
    with in_one_line(f"{folder}: no scheduler_config.json with a _class_name"):
        config = read_json(folder / "scheduler_config.json", dict)
        name = config["_class_name"]
    if name not in _SCHEDULERS:
        raise ValueError(
            f"{folder}: the scheduler is a {name}; only {' and '.join(_SCHEDULERS)} are supported"
        )
    return getattr(diffusers, name).from_config(config)


def _prompt_embedding(path: Path, prompt: str) -> np.ndarray:
    """Returns the embeddings of the empty prompt and of `prompt`, float32 [2, tokens, width].

    They are read from `PROMPT_FILE` if that has this prompt, else encoded and cached there.
    """
    cache = path / PROMPT_FILE
    if cache.is_file():
        about = f"{cache}: damaged, and without it the prompt is encoded anew"
        with in_one_line(about), opened_npz(cache) as file:
            kept, embedding = str(file["prompt"]), np.asarray(file["embedding"], np.float32)
        if kept == prompt:
            return embedding
    embedding = _encode(path, prompt)
    # A read-only folder caches nothing: the prompt is encoded again next time.
    with contextlib.suppress(OSError), atomic_open(cache, "wb") as file:
        np.savez(file, prompt=np.array(prompt), embedding=embedding)
    return embedding


def _encode(path: Path, prompt: str) -> np.ndarray:
    try:
        import torch
        from transformers import CLIPTextModel, CLIPTokenizer
    except ImportError as error:
        raise ImportError(
            f"{path}: needs transformers to encode {prompt!r}, once; pip install transformers"
        ) from error
    with in_one_line(f"{path}: no text_encoder and tokenizer can be read from it"):
        tokenizer = CLIPTokenizer.from_pretrained(path / "tokenizer", local_files_only=True)
        encoder = CLIPTextModel.from_pretrained(path / "text_encoder", local_files_only=True)
        encoder = encoder.float().eval()
    length = tokenizer.model_max_length
    tokens = tokenizer(
        ["", prompt], padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    )
    with torch.inference_mode():
        return encoder(tokens.input_ids)[0].numpy()


def _denoise(networks: Networks, latent: np.ndarray, steps: int, guidance: float) -> np.ndarray:
    """Denoises a latent float32 [channels, height, width] to an image float32 [h, w, 3] in [0, 1].

    Uses classifier-free guidance (Ho and Salimans, 2022).
    """
    import torch

    unet, vae, scheduler, prompts = networks
    with torch.inference_mode():
        scheduler.set_timesteps(steps, device=prompts.device)
        x = torch.from_numpy(latent)[None].to(prompts.device) * scheduler.init_noise_sigma
        for step in scheduler.timesteps:
            inputs = scheduler.scale_model_input(torch.cat([x, x]), step)
            free, prompted = unet(inputs, step, encoder_hidden_states=prompts).sample.chunk(2)
            x = scheduler.step(free + guidance * (prompted - free), step, x).prev_sample
        image = vae.decode(x / vae.config.scaling_factor).sample[0]
        return (image / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).cpu().numpy()
