"""A tiny folder of Stable Diffusion with random weights equals the library's own pipeline."""

import json
import shutil
import sys

import jax
import numpy as np
import pytest

from fedjax_ht.lab.generators import open_generator
from fedjax_ht.lab.generators.diffusion import PROMPT_FILE, load_diffusion
from tests.lab.generators.small import refused

PROMPT, STEPS, TOKENS, WIDTH = "a cat", 3, 8, 16


def save_networks(folder):
    diffusers = pytest.importorskip("diffusers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    shared = {"block_out_channels": (8, 8), "layers_per_block": 1, "norm_num_groups": 4}
    diffusers.UNet2DConditionModel(
        sample_size=(8, 4),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=4,
        **shared,
    ).save_pretrained(folder / "unet")
    down, up = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    vae = diffusers.AutoencoderKL(down_block_types=down, up_block_types=up, **shared)
    vae.save_pretrained(folder / "vae")
    noise = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    scheduler = diffusers.PNDMScheduler(skip_prk_steps=True, steps_offset=1, **noise)
    scheduler.save_pretrained(folder / "scheduler")
    return folder


def save_text_encoder(folder):
    transformers = pytest.importorskip("transformers")
    letters = [chr(code) for code in range(33, 127)]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    end = len(tokens) - 1
    vocabulary = {token: i for i, token in enumerate(tokens)}
    settings = {"model_max_length": TOKENS, "tokenizer_class": "CLIPTokenizer"}
    settings["pad_token"] = tokens[end]
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer/merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(settings))
    sizes = {"vocab_size": len(tokens), "max_position_embeddings": TOKENS}
    sizes |= {"hidden_size": WIDTH, "intermediate_size": WIDTH}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    config = transformers.CLIPTextConfig(**sizes, **ends)
    transformers.CLIPTextModel(config).save_pretrained(folder / "text_encoder")


def save_prompt(folder, prompt=PROMPT, width=WIDTH):
    embedding = np.random.default_rng(0).normal(size=(2, TOKENS, width)).astype(np.float32)
    np.savez(folder / PROMPT_FILE, prompt=np.array(prompt), embedding=embedding)


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    return save_networks(tmp_path_factory.mktemp("sd"))


@pytest.fixture
def folder(networks, tmp_path):
    """Networks and a prompt's embedding, no text encoder."""
    copied = shutil.copytree(networks, tmp_path / "sd")
    save_prompt(copied)
    return copied


def test_protocol(folder):
    generator = open_generator(folder)
    assert generator.host and generator.latent_dim == 4 * 8 * 4 and generator.variables == ()
    w = generator.sample_w((), jax.random.key(0), 500)
    assert w.shape == (500, 128) and abs(w.mean()) < 0.02 and abs(w.std() - 1) < 0.02
    generator = load_diffusion(folder, steps=STEPS)
    images = generator.synthesize((), w[:2])
    assert images.shape == (2, 16, 8, 3) and images.dtype == np.float32
    assert images.min() >= 0 and images.max() <= 1 and np.abs(images[0] - images[1]).max() > 0.05
    # and is deterministic
    np.testing.assert_array_equal(generator.synthesize((), np.asarray(w[1:2]))[0], images[1])


def test_equals_the_pipeline_and_encodes_once(networks, tmp_path, monkeypatch):
    folder = shutil.copytree(networks, tmp_path / "sd")
    save_text_encoder(folder)
    diffusers, torch = pytest.importorskip("diffusers"), pytest.importorskip("torch")
    from transformers import CLIPTextModel, CLIPTokenizer

    w = np.random.default_rng(1).normal(size=(2, 128)).astype(np.float32)
    images = load_diffusion(folder, steps=5).synthesize((), w)
    parts = {
        "vae": diffusers.AutoencoderKL,
        "text_encoder": CLIPTextModel,
        "tokenizer": CLIPTokenizer,
        "unet": diffusers.UNet2DConditionModel,
        "scheduler": diffusers.PNDMScheduler,
    }
    loaded = {name: kind.from_pretrained(folder / name) for name, kind in parts.items()}
    nothing = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    pipeline = diffusers.StableDiffusionPipeline(**loaded, **nothing)
    pipeline.set_progress_bar_config(disable=True)
    options = {"height": 16, "width": 8, "num_inference_steps": 5, "guidance_scale": 7.5}
    for image, latent in zip(images, w):
        latents = torch.from_numpy(latent.reshape(1, 4, 8, 4))
        want = pipeline(PROMPT, latents=latents, output_type="np", **options).images[0]
        np.testing.assert_allclose(image, want, rtol=0, atol=1e-5)
    monkeypatch.setitem(sys.modules, "transformers", None)  # the embedding was kept
    again = load_diffusion(folder, steps=5).synthesize((), w[:1])
    np.testing.assert_array_equal(again[0], images[0])
    with pytest.raises(ImportError, match="needs transformers to encode 'a dog', once"):
        load_diffusion(folder, prompt="a dog")


NOISY = "EulerAncestralDiscreteScheduler"
DAMAGE = {  # file, its content, and the message
    "unet": ("unet/config.json", None, "unet: no UNet2DConditionModel can"),
    "weights": ("vae/diffusion_pytorch_model.safetensors", "x", "vae: no AutoencoderKL can be"),
    "scheduler": ("scheduler/scheduler_config.json", "{}", "no scheduler_config.json"),
    "noisy scheduler": (
        "scheduler/scheduler_config.json",
        json.dumps({"_class_name": NOISY}),
        f"the scheduler is a {NOISY}; only PNDMScheduler and DDIMScheduler",
    ),
    "embedding": (PROMPT_FILE, "PK", "prompt_embedding.npz: damaged"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_folders_are_one_clear_line(folder, what):
    file, content, message = DAMAGE[what]
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    refused(message, open_generator, folder)


def test_an_embedding_of_another_width_is_refused(folder):
    save_prompt(folder, width=5)
    refused("prompts of 16, but the vae has 4", open_generator, folder)


def test_diffusers_is_asked_for_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    for name in ("unet", "vae", "scheduler"):
        (tmp_path / name).mkdir()
    with pytest.raises(ImportError, match=r"needs diffusers; run pip install"):
        open_generator(tmp_path)
