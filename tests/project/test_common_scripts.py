"""Common scripts of the field, run with transformers and with trainer_nb: the same numbers, predictions and files.

The scripts of tests/programs/scripts are written as examples of the Trainer are: dataclasses of arguments,
HfArgumentParser, datasets, a tokenizer, a collator, metrics, and every verb from train() to the model card. Only their
first line differs between the two sides. Each side runs all cases of a group in one process.

Losses that are logged may differ by rounding (1e-6): the Trainer adds them up in single precision. With label smoothing
weights may, too: it is computed by another formula. All else is compared exactly, except what INTENDED lists.
"""
import json, os, pickle, subprocess, sys

import numpy as np
import pytest

from conftest import ROOT

for needed in ("transformers", "datasets", "tokenizers", "optuna"): pytest.importorskip(needed)

SCRIPTS = ROOT / "tests" / "programs" / "scripts"

# Files that only one side writes: the Trainer's pickles, and this package's checkpoint and log (save_format="safetensors").
THEIR_FILES = {"training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
OUR_FILES = {"training_args.json", "manifest.json", "optimizer.safetensors", "rest.safetensors", "run.json"}

# Differences on purpose; the feature table of nbs/trainer.ipynb has them.
INTENDED = {
    "stateful_callbacks": "kept in run.json",
    "train_tokens_per_second": "in the metrics of train() too, not only in its logs",
}
TIMES = ("_runtime", "_per_second")
LOSSES = ("loss", "perplexity", "twice", "result[1]", "train[1]", "best[1]")

COMMON = "--output_dir OUT --report_to none --use_cpu --per_device_train_batch_size 4 --learning_rate 3e-3 "
QUICK = {
    "classes": ["run_classification", "--do_train --do_eval --do_predict --max_steps 30 --gradient_accumulation_steps 2"
                " --eval_strategy steps --eval_steps 5 --save_steps 5 --logging_steps 3 --warmup_steps 0.1 --patience 2"
                " --load_best_model_at_end --metric_for_best_model accuracy --save_total_limit 2 --weight_decay 0.01"],
    "entities": ["run_ner", "--do_train --do_eval --do_predict --num_train_epochs 2 --eval_strategy epoch"
                 " --save_strategy epoch --logging_steps 4 --return_entity_level_metrics --eval_accumulation_steps 1"
                 " --label_smoothing_factor 0.1"],
    "answers": ["run_qa", "--do_train --do_eval --do_predict --num_train_epochs 2 --eval_strategy epoch"
                " --save_strategy epoch --logging_strategy epoch --load_best_model_at_end"
                " --metric_for_best_model exact_match --lr_scheduler_type cosine"],
    "summaries": ["run_summarization", "--do_train --do_eval --do_predict --num_train_epochs 2 --eval_strategy epoch"
                  " --per_device_eval_batch_size 5 --logging_steps 4 --predict_with_generate --num_beams 2"],
    "translations": ["run_translation", "--num_train_epochs 1 --eval_strategy epoch --per_device_eval_batch_size 5"
                     " --generation_max_length 7 --generation_num_beams 2 --predict_with_generate --optim adafactor"
                     " --logging_steps 4"],
    "language": ["run_clm", "--do_train --do_eval --bf16 --max_steps 12 --eval_strategy steps --eval_steps 5"
                 " --logging_steps 3 --logging_first_step --include_num_input_tokens_seen True"],
    "masks": ["run_mlm", "--static_masks --max_steps 12 --eval_strategy steps --eval_steps 6 --save_strategy no"],
    "pictures": ["run_image_classification", "--do_train --do_eval --num_train_epochs 1 --eval_strategy epoch"
                 " --remove_unused_columns False --dataloader_num_workers 2 --logging_steps 4"],
    "sounds": ["run_audio_classification", "--do_train --do_eval --num_train_epochs 1 --gradient_checkpointing"
               " --remove_unused_columns False --logging_steps 4 --eval_strategy epoch"],
    "speech": ["run_ctc", "--num_train_epochs 1 --eval_strategy epoch --logging_steps 4"],
    "own": ["run_custom", "--max_steps 13 --gradient_accumulation_steps 2 --eval_strategy steps --eval_steps 5"
            " --per_device_eval_batch_size 5 --save_steps 6 --logging_steps 2 --weight_decay 0.1"],
    "search": ["run_search", "--n_trials 2 --max_steps 6 --eval_strategy steps --eval_steps 3 --logging_steps 2"
               " --save_strategy no --weight_decay 0.01"],
}
SLOW = {
    "numbers": ["run_classification", "--do_train --do_eval --task_name scores --save_strategy best --num_train_epochs 3"
                " --eval_strategy epoch --metric_for_best_model mse --greater_is_better False --load_best_model_at_end"
                " --pad_to_max_length False --eval_on_start --logging_first_step --logging_steps 5 --warmup_steps 3"
                " --lr_scheduler_type cosine --dataloader_num_workers 2 --weight_decay 0.1"],
    "no training": ["run_classification", "--do_eval --do_predict"],
    "inputs": ["run_classification", "--do_train --do_eval --do_predict --max_steps 7 --gradient_accumulation_steps 3"
               " --include_for_metrics inputs loss --eval_strategy steps --eval_steps 0.3 --save_steps 0.5"
               " --logging_steps 0.2 --eval_delay 4 --save_only_model --max_grad_norm 0.5 --seed 7 --data_seed 3"],
    "resumed": ["run_custom", "--max_steps 13 --own_optimizer False --batch_eval_metrics --stop_after 8 --save_steps 3"
                " --eval_strategy epoch --logging_steps 4 --weight_decay 0.1 --per_device_eval_batch_size 5",
                "--max_steps 13 --own_optimizer False --batch_eval_metrics --save_steps 3"
                " --eval_strategy epoch --logging_steps 4 --weight_decay 0.1 --per_device_eval_batch_size 5"],
    "resumed by name": ["run_clm", "--do_train --bf16 --num_train_epochs 1 --logging_steps 5 --save_steps 5"
                        " --gradient_accumulation_steps 2",
                        "--do_train --do_eval --bf16 --num_train_epochs 1 --logging_steps 5 --save_steps 5"
                        " --gradient_accumulation_steps 2 --resume_from_checkpoint OUT/checkpoint-5 --output_dir OUT/again"],
    "streams": ["run_clm", "--do_train --do_eval --streaming --max_steps 8 --logging_steps 2 --save_steps 4"
                " --gradient_accumulation_steps 2 --eval_strategy steps --eval_steps 4"],
    "padded summaries": ["run_summarization", "--do_train --do_eval --do_predict --per_device_eval_batch_size 5"
                         " --num_train_epochs 2 --pad_to_max_length --predict_with_generate --eval_strategy epoch"
                         " --val_max_target_length 6 --load_best_model_at_end --metric_for_best_model rouge1"
                         " --save_strategy epoch --logging_steps 3 --train_sampling_strategy sequential"],
    "padded translations": ["run_translation", "--per_device_eval_batch_size 5 --num_train_epochs 1 --logging_steps 3"
                            " --pad_to_max_length"],
    "residual": ["run_image_classification", "--do_train --do_eval --model_type resnet --num_train_epochs 2"
                 " --remove_unused_columns False --eval_strategy epoch --logging_steps 4 --dataloader_drop_last False"],
}


# Differences of single cases, which must be there.
RESUMED = {"train_loss": "of the whole run; the Trainer's is of the steps since it resumed"}
DIFFERENT = {
    "resumed": RESUMED | {
        "result[1]": "likewise",
        "]/loss": "the mean since the last log, as without the stop; the Trainer's is of the steps since it resumed",
        "events": "attributes of callbacks are restored, too",
    },
    "resumed by name": RESUMED,
    "classes": {"learn.loss_is_scaled_for_ga": "a warning that the losses of a step's micro-batches are added up, as in the Trainer",
                "train_result": "the line to which the warning points"},
    "no training": {"model_preparation_time": "the Trainer's metric of an evaluation without training"},
}


def run_side(side, cases, folder):
    "Run all cases of one side in one process; return what each run found, by case."
    plan = [[case, script, [*COMMON.split(), *more.split()]] for case, (script, *runs) in cases.items() for more in runs]
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(plan))
    # MKL's products depend on the alignment of their operands, unless it is told not to choose by it
    # with CI in the environment, transformers hands its log on to the root logger
    outside = {k: v for k, v in os.environ.items() if k != "CI"}
    env = outside | {"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, SCRIPTS / "run_side.py", side, folder, folder / "plan.json"], env=env,
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return {case: [*unpickled(folder / f"{case}.pickle")] for case in cases}


def unpickled(path):
    with open(path, "rb") as file:
        while file.peek(1): yield pickle.load(file)


def sides(cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    return {side: (folder / side, run_side(side, cases, folder / side)) for side in ("transformers", "trainer_nb")}


@pytest.fixture(scope="module")
def quick(tmp_path_factory): return sides(QUICK, tmp_path_factory)


@pytest.fixture(scope="module")
def slow(tmp_path_factory): return sides(SLOW, tmp_path_factory)


def differences(theirs, ours, place="", close=LOSSES):
    "Where two values differ, as lines; times are compared by their names, losses up to rounding."
    if isinstance(theirs, dict) and isinstance(ours, dict):
        names = {k: k for k in [*theirs, *ours] if k not in INTENDED}
        for k in names:
            if k not in theirs or k not in ours: yield f"{place}/{k}: only {'theirs' if k in theirs else 'ours'}"
            elif not str(k).endswith(TIMES): yield from differences(theirs[k], ours[k], f"{place}/{k}", close)
    elif isinstance(theirs, (list, tuple)) and isinstance(ours, (list, tuple)):
        if len(theirs) != len(ours): yield f"{place}: {len(theirs)} and {len(ours)} entries"
        for i, pair in enumerate(zip(theirs, ours)): yield from differences(*pair, f"{place}[{i}]", close)
    elif isinstance(theirs, np.ndarray) and isinstance(ours, np.ndarray):
        rounded = any(name in place for name in close)
        same = np.array_equal(theirs, ours) or (rounded and np.allclose(theirs, ours, rtol=1e-5, atol=1e-6))
        if not same or theirs.dtype != ours.dtype: yield f"{place}: {theirs.dtype}{theirs.shape} and {ours.dtype}{ours.shape}"
    elif isinstance(theirs, float) and isinstance(ours, float) and place.endswith(close):
        if ours != pytest.approx(theirs, rel=1e-6): yield f"{place}: {theirs!r} and {ours!r}"
    elif theirs != ours: yield f"{place}: {theirs!r} and {ours!r}"


def files(folder): return {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}


def compare_files(theirs, ours, close):
    "Differences of the written files: their names, and the contents of those that both have."
    a, b = files(theirs), files(ours)
    for path in sorted(a - b):
        if path.name not in THEIR_FILES: yield f"{path}: only theirs"
    for path in sorted(b - a):
        if path.name not in OUR_FILES and path.parent.name != "runs": yield f"{path}: only ours"
    for path in sorted(a & b):
        one, other = theirs / path, ours / path
        # the Trainer's generation fills the model's generation configuration with defaults; the card has a text of its own
        if path.name in ("generation_config.json", "README.md", *THEIR_FILES, *OUR_FILES): continue
        if path.suffix == ".json":
            texts = [json.loads(p.read_text().replace(str(folder), "")) for p, folder in ((one, theirs), (other, ours))]
            yield from differences(*texts, str(path), close)
        elif one.read_bytes() != other.read_bytes(): yield f"{path}: other bytes"


def table(text):
    "The names and values of log_metrics, without times."
    pairs = [[part.strip() for part in line.split(" = ")] for line in text.splitlines() if " = " in line]
    return {name: value.removesuffix(".0") for name, value in pairs if not name.endswith(TIMES)}


def compare(found, case, close=LOSSES):
    "All differences between the two sides of a case."
    (folder, theirs), (other, ours) = found["transformers"], found["trainer_nb"]
    for side, runs in (("transformers", theirs), ("trainer_nb", ours)):
        errors = [run["error"] for run in runs[case] if "error" in run]
        assert not errors, f"{side}: {errors[0]}"
    for a, b in zip(theirs[case], ours[case], strict=True):
        assert not {"stdout", "stderr", "seconds"} - {*a, *b}
        yield from differences(table(a["stdout"]), table(b["stdout"]), "stdout")
        rest = [{k: v for k, v in run.items() if k not in ("stdout", "stderr", "seconds")} for run in (a, b)]
        yield from differences(*rest, close=close)
    yield from compare_files(folder / case, other / case, close)


def check(found, case):
    "The two sides of a case differ in nothing, or exactly where they are expected to."
    lines, expected = [*compare(found, case)], DIFFERENT.get(case, {})
    assert [line for line in lines if not any(name in line for name in expected)] == []
    assert all(any(name in line for line in lines) for name in expected)


@pytest.mark.parametrize("case", [c for c in QUICK if c != "entities"])
def test_same(quick, case): check(quick, case)


def test_label_smoothing_is_the_same_within_rounding(quick):
    "Of attention's biases of keys, which no loss depends on, an optimizer amplifies the rounding."
    found = [*compare(quick, "entities", close=(*LOSSES, "grad_norm", "weights", "predict[0]"))]
    assert all(line.endswith("model.safetensors: other bytes") or "key.bias" in line for line in found), found


@pytest.mark.parametrize("case", SLOW)
def test_same_with_other_options(slow, case): check(slow, case)


def test_resumed_runs_end_in_the_same_weights(slow):
    "A run that was stopped and resumed has the callbacks' events, and the log, of one that was not."
    (_, theirs), (_, ours) = slow["transformers"], slow["trainer_nb"]
    wanted, got = theirs["resumed"][1]["events"], ours["resumed"][1]["events"]
    assert [name for name, *_ in wanted[:2]] == ["on_train_begin", "on_epoch_begin"]   # called, then the list is restored
    assert got[-len(wanted) + 2:] == wanted[2:] and len(got) > len(wanted)
    first, second = ours["resumed"]
    until = len([row for row in first["log"] if row["step"] <= 6])
    assert second["log"][:until] == first["log"][:until] and second["result"][0] == 13
    assert second["log"][until]["loss"] == first["log"][until]["loss"]   # of step 8, which both took
