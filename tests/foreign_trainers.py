"""Train with trainers of TRL and sentence-transformers, and print what came out as JSON: `plain` as they are, `patched` as learners.

For learners, also what the same run ends in when it goes back, and when a new learner resumes it from a checkpoint, or from one of the unpatched run
(THEIRS: folders of these runs by name, as JSON). With `two` as the first name in two processes: those of Accelerate, and for learners also of `launch`."""
import functools, hashlib, json, os, shutil, sys, tempfile, warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "CI": "1"}   # TRL sends nothing
warnings.simplefilter("ignore")
import torch

torch.set_num_threads(1)
PATCHED = sys.argv[1] == "patched"
THEIRS = json.loads(os.environ.get("THEIRS", "{}"))
if PATCHED and sys.argv[2:3] != ["two"]:
    from trainer_nb import patch_transformers
    patch_transformers()
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent/"data")]
import transformers
from datasets import Dataset
from test_chat import DATA, NAMES, chats, make_model, make_tokenizer

PAIRS = [{"prompt": c["messages"][:1], "chosen": [c["messages"][1]], "rejected": [{"role": "assistant", "content": "it is big ."}]} for c in chats()]
SMALL = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)


def settings(folder, **given):
    return dict(output_dir=folder, report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, seed=3, logging_steps=1, max_steps=6, learning_rate=1e-2,
                per_device_train_batch_size=4, save_steps=3, eval_strategy="steps", eval_steps=3) | given


def sft(folder, kind="text", lora=False, stream=False, **given):
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer
    rows = Dataset.from_list(DATA[kind]())
    data = rows.to_iterable_dataset() if stream else rows
    return SFTTrainer(make_model(), SFTConfig(**settings(folder, max_length=None, **given)), train_dataset=data, eval_dataset=rows.select(range(16)),
                      processing_class=make_tokenizer(), peft_config=LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM") if lora else None)


def dpo(folder, **given):
    from trl import DPOConfig, DPOTrainer
    rows = Dataset.from_list(PAIRS)
    return DPOTrainer(make_model(), make_model(), DPOConfig(**settings(folder, max_length=None, **given)), train_dataset=rows,
                      eval_dataset=rows.select(range(16)), processing_class=make_tokenizer())


def orpo(folder):   # maps with a method of the trainer before its constructor
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer
    rows = Dataset.from_list(PAIRS)
    return ORPOTrainer(make_model(), ORPOConfig(**settings(folder, max_length=64)), train_dataset=rows, eval_dataset=rows.select(range(16)),
                       processing_class=make_tokenizer())


def reward(folder):
    from trl import RewardConfig, RewardTrainer
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(NAMES), num_key_value_heads=2, max_position_embeddings=128, num_labels=1, pad_token_id=0, **SMALL)
    return RewardTrainer(transformers.LlamaForSequenceClassification(config), RewardConfig(**settings(folder, max_length=None)),
                         train_dataset=Dataset.from_list(PAIRS), eval_dataset=Dataset.from_list(PAIRS[:16]), processing_class=make_tokenizer())


def grpo(folder):   # samples inside of a step, where the random numbers are others than the Trainer's
    from trl import GRPOConfig, GRPOTrainer
    def words(completions, **_): return [float(len(set(c[0]["content"].split()))) for c in completions]
    return GRPOTrainer(make_model(), words, GRPOConfig(**settings(folder, num_generations=4, max_completion_length=8, eval_strategy="no")),
                       train_dataset=Dataset.from_list([{"prompt": c["messages"][:1]} for c in chats()]), processing_class=make_tokenizer())


@functools.cache
def sentence_model():
    "Return the folder of a model; of one process, which others inherit."
    torch.manual_seed(0)
    base = tempfile.mkdtemp()
    transformers.BertModel(transformers.BertConfig(vocab_size=len(NAMES), max_position_embeddings=64, hidden_dropout_prob=0.0,
                                                   attention_probs_dropout_prob=0.0, **SMALL)).save_pretrained(base)
    make_tokenizer().save_pretrained(base)
    return base


def sentences(folder, several=False, own_weights=False, all_layers=False):
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.models import Pooling, Transformer
    model = SentenceTransformer(modules=[Transformer(sentence_model()), Pooling(16)], device="cpu")
    rows = Dataset.from_list([{"anchor": c["messages"][0]["content"], "positive": c["messages"][1]["content"]} for c in chats()])
    if own_weights: rows = rows.add_column("label", [i % 3 for i in range(len(rows))])
    torch.manual_seed(1)
    loss = losses.SoftmaxLoss(model, 16, 3) if own_weights else losses.MultipleNegativesRankingLoss(model)
    if all_layers: loss = losses.AdaptiveLayerLoss(model, loss, n_layers_per_step=-1)   # transformers captures outputs by hooks
    evaluator = EmbeddingSimilarityEvaluator(rows["anchor"][:6], rows["positive"][:6], [i / 6 for i in range(6)], name="dev")
    more = dict(max_steps=9) if own_weights else {}   # beyond the end of an epoch
    return SentenceTransformerTrainer(model, SentenceTransformerTrainingArguments(**settings(folder, **more)), evaluator=evaluator, eval_dataset=rows.select(range(16)),
                                      train_dataset={"a": rows, "b": rows.select(range(12))} if several else rows, loss=loss)


PROGRAMS = {
    "text": sft, "prompt and completion": lambda f: sft(f, "prompt and completion"), "conversations": lambda f: sft(f, "messages"),
    "accumulation": lambda f: sft(f, gradient_accumulation_steps=2), "LoRA": lambda f: sft(f, lora=True),
    "a stream": lambda f: sft(f, stream=True), "ORPO": orpo, "DPO": dpo, "reward": reward, "GRPO": grpo, "sentences": sentences, "sentences of several data sets": lambda f: sentences(f, True),
    "a loss with weights": lambda f: sentences(f, own_weights=True), "a loss of all layers": lambda f: sentences(f, all_layers=True),
}


def outcome(trainer, folder):
    "Weights, logs, and the weights' files, without times."
    log = [{k: float(v) for k, v in sorted(o.items()) if "time" not in k and "second" not in k} for o in trainer.state.log_history]
    weights = hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in trainer.model.state_dict().values())).hexdigest()
    files = {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(Path(folder).rglob("*model.safetensors"))}
    return {"weights": weights, "log": log, "files": files}


def in_a_process(name, folder):
    if PATCHED: __import__("trainer_nb").patch_transformers()
    trainer = PROGRAMS[name](folder)
    trainer.train()
    if trainer.is_world_process_zero(): Path(folder, "outcome.json").write_text(json.dumps(outcome(trainer, folder)))


def in_two_processes(names):
    from accelerate import notebook_launcher
    results = {}
    sentence_model()
    for name in names:
        folder = tempfile.mkdtemp()
        notebook_launcher(in_a_process, (name, folder), num_processes=2)
        results[name] = json.loads(Path(folder, "outcome.json").read_text())
    # not before, because the Trainer's module imports libraries that Accelerate's launcher refuses
    if PATCHED: __import__("trainer_nb").patch_transformers()
    for name in names if PATCHED else ():
        trainer = PROGRAMS[name](folder := tempfile.mkdtemp())
        with trainer.launch(2, start="spawn" if name == "text" else None):
            trainer.step(2); trainer.rewind(1); trainer.train()
        assert any(row.discarded for row in trainer.history)
        results[name]["launched"] = outcome(trainer, folder)
    print("RESULTS" + json.dumps(results))


def main(names):
    if names[0] == "two": return in_two_processes(names[1:])
    results = {}
    for name in names:
        make = PROGRAMS[name]
        def begin(): return make(folder := tempfile.mkdtemp()), folder
        trainer, folder = begin()
        trainer.train()
        results[name] = outcome(trainer, folder) | {"folder": folder}
        results[name]["evaluated"] = None if trainer.eval_dataset is None else {k: v for k, v in sorted(trainer.evaluate().items()) if k.startswith("eval_") and "second" not in k and "time" not in k}
        if not PATCHED: continue
        trainer, folder = begin()
        trainer.step(trainer.args.max_steps - 1)
        trainer.rewind(3)   # of nine steps, into an earlier epoch
        trainer.train()
        results[name]["back"] = outcome(trainer, folder)
        trainer, folder = begin()
        trainer.step(4)
        trainer.save_checkpoint()
        shutil.rmtree(Path(folder)/"checkpoint-3")
        resumed = make(folder)
        resumed.train(resume_from_checkpoint=True)
        results[name]["resumed"] = outcome(resumed, folder)
        if name not in THEIRS: continue
        trainer, folder = begin()
        trainer.train(resume_from_checkpoint=f"{THEIRS[name]}/checkpoint-3")
        results[name]["taken over"] = outcome(trainer, folder)
    print("RESULTS" + json.dumps(results))


if __name__ == "__main__": main(sys.argv[2:] or list(PROGRAMS))
