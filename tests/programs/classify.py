# Text classification, as introductions to the Trainer show it; only the first import line is changed.
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainingArguments, set_seed
import os, sys
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerFast
from datasets import Dataset, DatasetDict

out = sys.argv[1]
set_seed(7)

nouns, good, bad = ["film", "book", "song", "meal", "room"], ["lovely", "fine", "great"], ["poor", "dull", "awful"]
rows = [{"text": f"a {word} {noun} {noun if i % 3 else ''}", "label": int(word in good)} for i, noun in enumerate(nouns) for word in good + bad] * 2
raw = DatasetDict(train=Dataset.from_list(rows[:40]), validation=Dataset.from_list(rows[40:]))

words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.train_from_iterator(raw["train"]["text"], trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=16)

tokenized = raw.map(lambda batch: tokenizer(batch["text"], truncation=True), batched=True)
model = BertForSequenceClassification(BertConfig(
    vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16,
    num_labels=2, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1}))


class StopWhenGood(TrainerCallback):
    def __init__(self, enough): self.enough, self.seen = enough, []
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.seen.append(metrics["eval_accuracy"])
        if metrics["eval_accuracy"] >= self.enough: control.should_training_stop = True
        return control


def compute_metrics(eval_pred: EvalPrediction):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


args = TrainingArguments(
    output_dir=out, learning_rate=1e-2, per_device_train_batch_size=4, per_device_eval_batch_size=8, gradient_accumulation_steps=2, num_train_epochs=6,
    weight_decay=0.01, warmup_steps=2, eval_strategy="epoch", save_strategy="epoch", save_total_limit=2, logging_strategy="steps", logging_steps=2,
    load_best_model_at_end=True, metric_for_best_model="accuracy", greater_is_better=True, fp16=torch.cuda.is_available(),
    report_to="none", disable_tqdm=True, seed=7)
callback = StopWhenGood(0.95)
trainer = Trainer(model=model, args=args, train_dataset=tokenized["train"], eval_dataset=tokenized["validation"], processing_class=tokenizer,
                  data_collator=DataCollatorWithPadding(tokenizer=tokenizer), compute_metrics=compute_metrics, callbacks=[callback])

result = trainer.train()
metrics = result.metrics
metrics["train_samples"] = len(tokenized["train"])
evaluated = trainer.evaluate()
predictions, label_ids, test_metrics = trainer.predict(tokenized["validation"])
trainer.save_model(os.path.join(out, "final"))

again = AutoModelForSequenceClassification.from_pretrained(os.path.join(out, "final"))
back = AutoTokenizer.from_pretrained(os.path.join(out, "final"))
with torch.no_grad(): label = again(**back("a great film", return_tensors="pt")).logits.argmax(-1).item()
found = dict(steps=result.global_step, loss=result.training_loss, accuracy=evaluated["eval_accuracy"], best=trainer.state.best_metric, label=again.config.id2label[label],
             predicted=predictions.shape, labels=label_ids.tolist(), test=test_metrics["test_accuracy"], stopped=callback.seen, logged=len(trainer.state.log_history),
             checkpoints=sorted(n for n in os.listdir(out) if n.startswith("checkpoint")))
