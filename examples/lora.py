"""Adapt a language model with LoRA: a small part of the weights is trained, and only this part is saved.

The base model is small and made here; `AutoModelForCausalLM.from_pretrained(...)` takes its place where there is a pretrained one.

    python lora.py
    python lora.py --quick"""
import argparse
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from trainer_nb import Learner, set_seed

WORDS = 64


def counting(step: int, count: int) -> list[dict]:
    "Return rows of numbers that grow by `step`."
    starts = torch.arange(count) * 7 % WORDS
    rows = (starts[:, None] + step * torch.arange(12)) % WORDS
    return [{"input_ids": row, "labels": row} for row in rows]


def make_base() -> LlamaForCausalLM:
    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                        num_key_value_heads=4, max_position_embeddings=32, bos_token_id=None, eos_token_id=None))


def train(model, data: list[dict], steps: int, folder: str, **settings) -> Learner:
    learn = Learner(model, train_dataset=data, eval_dataset=data[:32], per_device_train_batch_size=32, max_steps=steps,
                    output_dir=folder, save_strategy="no", logging_steps=20, **settings)
    learn.train()
    return learn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    steps = 60 if parser.parse_args().quick else 300

    # a base model that can count by ones
    base = make_base()
    train(base, counting(1, 256), steps, "base", learning_rate=3e-3).save_model("base/final")

    # the adapter that lets it count by twos
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"))
    model.print_trainable_parameters()
    twos = counting(2, 256)
    before = Learner(model, eval_dataset=twos[:32]).evaluate()["eval_loss"]
    learn = train(model, twos, steps, "adapter", learning_rate=1e-2)
    after = learn.evaluate()["eval_loss"]
    print(f"loss of counting by twos {before:.2f} -> {after:.2f}")

    # what is saved is the adapter alone; loaded onto the base, it is the same model
    learn.save_model("adapter/final")
    print("saved", sorted(path.name for path in Path("adapter/final").glob("adapter*")))
    again = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained("base/final"), "adapter/final")
    assert Learner(again, eval_dataset=twos[:32]).evaluate()["eval_loss"] == after


if __name__ == "__main__": main()
