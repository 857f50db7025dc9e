# /// script
# requires-python = ">=3.11"
# dependencies = ["lm-eval[api]==0.4.13"]
# [tool.uv]
# exclude-newer = "2026-11-24T00:00:00Z"
# ///
"""Runs lm-eval, in an environment of its own: run_lm_eval.py ADDRESS TASKS LIMIT OUT MODEL...

TASKS is a file with lm-eval's descriptions of tasks. OUT gets each model's score and texts of each task.
"""

import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

ADDRESS, TASKS, LIMIT, OUT, *MODELS = sys.argv[1:]


def scored(model):
    told = simple_evaluate(
        "local-completions",
        model_args=f"model={model},base_url=http://{ADDRESS}/v1/completions,tokenizer_backend=none",
        tasks=json.loads(Path(TASKS).read_text()),
        limit=int(LIMIT),
        batch_size=1,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
    )
    return {
        task: {
            "score": told["results"][task]["chrf,none"],
            "texts": [each["resps"][0][0] for each in sorted(samples, key=lambda each: each["doc_id"])],
        }
        for task, samples in told["samples"].items()
    }


Path(OUT).write_text(json.dumps({model: scored(model) for model in MODELS}))
