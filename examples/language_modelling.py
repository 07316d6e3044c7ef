"""Train a small language model from scratch on packed texts, and let it write.

The texts are functions of Python's standard library. They are shorter than a row, so several share one, without attention across
them; nothing is padded.

    python language_modelling.py
    python language_modelling.py --quick"""
import argparse
import sysconfig
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainer_nb import DataCollatorForChat, Learner, TrainingArguments, pack_dataset, set_seed, tokenize_chat

LENGTH = 256       # tokens in a row


def functions(count: int) -> Dataset:
    "Return the first functions of the standard library as texts."
    texts = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        texts += [f"def {text}"[:600] for text in path.read_text(encoding="utf-8", errors="ignore").split("\ndef ")[1:]]
    return Dataset.from_dict({"text": texts[:count]})


def make_tokenizer(texts) -> PreTrainedTokenizerFast:
    "Return a tokenizer whose tokens are frequent sequences of bytes."
    bytes_of = Tokenizer(models.BPE())
    bytes_of.pre_tokenizer, bytes_of.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bytes_of.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1024, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=bytes_of, eos_token="<end>", pad_token="<end>")


def write(model, tokenizer, start: str, tokens: int) -> str:
    "Continue a text, without sampling."
    inputs = tokenizer(start, return_tensors="pt", return_token_type_ids=False).to(model.device)
    return tokenizer.decode(model.eval().generate(**inputs, max_new_tokens=tokens, do_sample=False)[0], skip_special_tokens=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="train for a moment, to see that everything works")
    quick = parser.parse_args().quick

    texts = functions(200 if quick else 2000)
    tokenizer = make_tokenizer(texts["text"])
    collate = DataCollatorForChat(tokenizer, max_length=LENGTH)
    rows = pack_dataset(tokenize_chat(texts, collate), LENGTH).train_test_split(0.1, seed=0)
    print(f"{len(texts)} texts in {len(rows['train']) + len(rows['test'])} rows of up to {LENGTH} tokens")

    set_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=LENGTH, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))
    args = TrainingArguments(output_dir="language", per_device_train_batch_size=4, learning_rate=3e-3, lr_scheduler_type="cosine",
                             warmup_steps=0.1, max_steps=30 if quick else 400, logging_steps=10, save_strategy="no")
    learn = Learner(model, args, train_dataset=rows["train"], eval_dataset=rows["test"], data_collator=collate)
    before = learn.evaluate()["eval_loss"]
    learn.train()
    print(f"loss {before:.2f} -> {learn.evaluate()['eval_loss']:.2f}")
    print(write(model, tokenizer, "def get", 20 if quick else 100))


if __name__ == "__main__": main()
