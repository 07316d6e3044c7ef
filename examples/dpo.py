"""Train on preferences with DPO: a loss of one's own, against a reference model, an adapter that is disabled, or stored log-probabilities.

The model learns which number comes after another one; the pairs are made here.

    python dpo.py
    python dpo.py --quick"""
import argparse
import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainer_nb import DataCollatorForPreference, Trainer, TrainingArguments, set_seed


def log_probs(model, batch: dict) -> torch.Tensor:
    "Return the log-probability of each completion of a batch: the sum over its tokens."
    ids = batch["input_ids"]
    logits = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits[:, :-1]
    tokens = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return (tokens * batch["completion_mask"][:, 1:]).sum(1)


class DPOTrainer(Trainer):
    """Train on preference pairs, relative to a frozen reference model.

    Its log-probabilities may be in the data as ref_chosen_logps and ref_rejected_logps. Without them and without ref_model,
    the reference is the model with its adapter disabled."""
    not_state = ("ref_model",)   # it does not change, so a rewind need not restore it

    def __init__(self, *args, ref_model=None, beta: float = 0.1, **kwargs):
        super().__init__(*args, **kwargs)
        self.ref_model, self.beta, self.margins = ref_model, beta, []
        if ref_model is not None: ref_model.to(self.args.device).eval().requires_grad_(False)

    @torch.no_grad()
    def reference(self, model, batch: dict) -> torch.Tensor:
        if "ref_chosen_logps" in batch: return torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]])
        if self.ref_model is not None: return log_probs(self.ref_model, batch)
        adapted = self.accelerator.unwrap_model(model)
        if not hasattr(adapted, "disable_adapter"):
            raise ValueError("DPO needs a reference: ref_model=, a model with an adapter, or ref_*_logps in the data.")
        with adapted.disable_adapter(): return log_probs(model, batch)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # the first half of a batch are the chosen completions, the second half the rejected ones
        chosen, rejected = (log_probs(model, inputs) - self.reference(model, inputs)).chunk(2)
        margins = self.beta * (chosen - rejected)
        if model.training: self.margins.append(margins.detach().mean())
        loss = -F.logsigmoid(margins).mean()
        return (loss, {"margins": margins}) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad(): return self.compute_loss(model, self._prepare_inputs(inputs)), None, None

    def log(self, logs, start_time=None):
        "Log the mean margin since the last log, too."
        if self.margins and "loss" in logs: logs["rewards/margins"] = float(torch.stack(self.margins).mean())
        self.margins.clear()
        super().log(logs, start_time)


NUMBERS = [str(i) for i in range(10)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    names = ["<pad>", "<end>", "<unk>", "after", "comes", *NUMBERS]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unk>")


def make_model(tokenizer) -> LlamaForCausalLM:
    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                                        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=None, eos_token_id=1, pad_token_id=0))


def pairs(count: int) -> list[dict]:
    "Return prompts with the right number as the chosen answer, and another one as the rejected answer."
    rng, found = random.Random(0), []
    for _ in range(count):
        number = rng.randrange(9)
        wrong = rng.choice([n for n in NUMBERS if n != str(number + 1)])
        found.append({"prompt": f"after {number} comes", "chosen": f" {number + 1}", "rejected": f" {wrong}"})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    steps = 40 if parser.parse_args().quick else 200
    tokenizer = make_tokenizer()
    args = TrainingArguments("out", per_device_train_batch_size=32, learning_rate=3e-3, max_steps=steps, logging_steps=steps // 4,
                             save_strategy="no", report_to="none")
    trainer = DPOTrainer(make_model(tokenizer), args, ref_model=make_model(tokenizer), train_dataset=pairs(500),
                         eval_dataset=pairs(100), data_collator=DataCollatorForPreference(tokenizer))
    before = trainer.evaluate()["eval_loss"]   # log 2: the model is the reference
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    print("margins", [round(row["rewards/margins"], 2) for row in trainer.state.log_history if "rewards/margins" in row])
    print(f"loss {before:.3f} -> {after:.3f}")


if __name__ == "__main__": main()
