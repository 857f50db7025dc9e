"""What is committed: small, complete, and free to import."""

import json
import subprocess
import sys

from demo_models import DRAFT_GGUF, PROMPTS, ROOT, TARGET_DIR
from demo_models.corpus import HELD_OUT

MAX_BYTES = 48 * 1024 * 1024


def test_all_weights_together_are_below_the_limit() -> None:
    weights = [path for path in ROOT.rglob("*") if path.suffix in {".safetensors", ".gguf"}]
    assert sum(path.stat().st_size for path in weights) <= MAX_BYTES


def test_the_pair_is_complete() -> None:
    names = {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert names <= {path.name for path in TARGET_DIR.iterdir()}
    assert DRAFT_GGUF.is_file()


def test_importing_the_package_does_not_import_torch() -> None:
    check = "import sys, demo_models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT.parent, check=False).returncode == 0


def test_prompts_come_from_held_out_modules() -> None:
    prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    assert len(prompts) == 8
    assert {prompt["module"] for prompt in prompts} <= set(HELD_OUT)
    assert len({prompt["name"] for prompt in prompts}) == len(prompts)
